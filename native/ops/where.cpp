// where and clip.
#include <algorithm>
#include <string>

#include "base/error.hpp"
#include "kernels/elementwise/clip.hpp"
#include "kernels/elementwise/where.hpp"
#include "ops/collapse.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/scalar_bits.hpp"

namespace gpk::ops {

namespace {

// A choice: an array, or the bits of a number.
struct Choice {
    Array array;
    std::uint64_t bits = 0;
};

Array where_of(const Array& condition, const Choice& a, const Choice& b, const Dims& shape, DType dtype) {
    if (condition.dtype() != DType::bool_) {
        throw error(ErrorKind::type, {.call = "where",
                                      .argument = "condition",
                                      .expected = "bool",
                                      .got = std::string(name(condition.dtype())),
                                      .fix = "compare it with 0, or convert it with astype"});
    }
    const Array out = Array::empty(condition.device(), shape, dtype);
    if (out.size() == 0) return out;
    const auto strides_of = [&](const Array& array) {
        return array.defined() ? broadcast_strides(array.shape(), array.strides(), shape)
                               : Dims::filled(shape.size(), 0);
    };
    const auto layout =
        collapse<4>(shape, {out.strides(), strides_of(condition), strides_of(a.array), strides_of(b.array)});
    const void* a_data = a.array.defined() ? a.array.as() : nullptr;
    const void* b_data = b.array.defined() ? b.array.as() : nullptr;
    const auto size = static_cast<std::int32_t>(itemsize(dtype));
    const Cost cost{.bytes =
                        static_cast<double>(condition.nbytes()) + 2.0 * static_cast<double>(out.nbytes())};
    const Array &a_read = a.array.defined() ? a.array : condition,
                &b_read = b.array.defined() ? b.array : condition;
    const auto address = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data); };
    PackOperands<3> operands{.pointers = {condition.data(), address(a_data), address(b_data)},
                             .item_bytes = {1, size, size},
                             .runs = {}};
    kernels::WherePacksParams packs{.count = layout.count,
                                    .layout = {},
                                    .out = out.as(),
                                    .condition = condition.as<std::uint8_t>(),
                                    .a = a_data,
                                    .b = b_data,
                                    .a_bits = a.bits,
                                    .b_bits = b.bits,
                                    .element_bytes = size,
                                    .is_run = {}};
    if (out.data() % 16 == 0 && in_packs<3>(layout, 16 / size, operands, packs.layout)) {
        std::copy(operands.runs.begin(), operands.runs.end(), packs.is_run);
        launch(kernels::where_packs_kernel(), packs_grid(layout.count, 16 / size), packs, cost,
               {&condition, &a_read, &b_read}, {&out});
        return out;
    }
    const kernels::WhereParams params{.layout = layout,
                                      .out = out.as(),
                                      .condition = condition.as<std::uint8_t>(),
                                      .a = a_data,
                                      .b = b_data,
                                      .a_bits = a.bits,
                                      .b_bits = b.bits,
                                      .element_bytes = size};
    launch(kernels::where_kernel(), streaming_grid(out.device(), layout.count), params, cost,
           {&condition, &a_read, &b_read}, {&out});
    return out;
}

Array as_dtype(const Array& x, DType dtype) { return x.dtype() == dtype ? x : astype(x, dtype); }

// As Scalar -> element, but an integer past the dtype's range becomes its nearest end: clipping to it is
// clipping to nothing (NumPy's clip does the same).
std::uint64_t bound_bits(const Scalar& bound, DType dtype) {
    if (!is_integer(dtype) || bound.fits(dtype)) return scalar_bits("clip", bound, dtype);
    const int bits = 8 * static_cast<int>(itemsize(dtype));
    const bool is_low = !bound.is_unsigned() && bound.as_int64() < 0;
    if (info(dtype).kind == DTypeKind::unsigned_integer) return is_low ? 0 : ~std::uint64_t{0} >> (64 - bits);
    const std::uint64_t lowest = std::uint64_t{1} << (bits - 1);
    return is_low ? lowest : lowest - 1;
}

}  // namespace

Array where(const Array& condition, const Array& a, const Array& b) {
    common_device("where", {&condition, &a, &b});
    const DType dtype = promote(a.dtype(), b.dtype());
    const Dims shape =
        broadcast_shapes("where", broadcast_shapes("where", a.shape(), b.shape()), condition.shape());
    return where_of(condition, {as_dtype(a, dtype)}, {as_dtype(b, dtype)}, shape, dtype);
}

Array where(const Array& condition, const Array& a, const Scalar& b) {
    common_device("where", {&condition, &a});
    const DType dtype = promote_scalar(a.dtype(), b.kind());
    const Dims shape = broadcast_shapes("where", a.shape(), condition.shape());
    return where_of(condition, {as_dtype(a, dtype)}, {{}, scalar_bits("where", b, dtype)}, shape, dtype);
}

Array where(const Array& condition, const Scalar& a, const Array& b) {
    common_device("where", {&condition, &b});
    const DType dtype = promote_scalar(b.dtype(), a.kind());
    const Dims shape = broadcast_shapes("where", b.shape(), condition.shape());
    return where_of(condition, {{}, scalar_bits("where", a, dtype)}, {as_dtype(b, dtype)}, shape, dtype);
}

Array clip(const Array& x, const std::optional<Scalar>& low, const std::optional<Scalar>& high,
           const Array* out) {
    DType dtype = x.dtype();
    if (is_float8(dtype)) {
        throw error(ErrorKind::type, {.call = "clip",
                                      .expected = "a dtype with arithmetic",
                                      .got = std::string(name(dtype)),
                                      .fix = "convert with astype first"});
    }
    if (low) dtype = promote_scalar(dtype, low->kind());
    if (high) dtype = promote_scalar(dtype, high->kind());
    const Array result = prepare_output("clip", x.device(), x.shape(), dtype, out);
    const Array operand = as_dtype(x, dtype);
    const bool in_place = out == nullptr || !writes_over(result, operand);
    const Array target = in_place ? result : Array::empty(x.device(), x.shape(), dtype);
    if (target.size() == 0) return result;
    const kernels::ClipBounds bounds{.low_bits = low ? bound_bits(*low, dtype) : 0,
                                     .high_bits = high ? bound_bits(*high, dtype) : 0,
                                     .dtype = dtype,
                                     .has_low = low.has_value(),
                                     .has_high = high.has_value()};
    const std::int64_t count = target.size();
    const Cost cost{.flops = 2.0 * static_cast<double>(count),
                    .bytes = 2.0 * static_cast<double>(target.nbytes())};
    const Kernel* packs = kernels::clip_packs(dtype);
    const bool one_run = target.is_contiguous() && operand.is_contiguous();
    if (packs != nullptr && one_run && (target.data() | operand.data()) % 16 == 0) {
        launch(
            *packs, packs_grid(count, 16 / static_cast<std::int64_t>(itemsize(dtype))),
            kernels::ClipPacksParams{.count = count, .out = target.as(), .x = operand.as(), .bounds = bounds},
            cost, {&operand}, {&target});
    } else {
        launch(kernels::clip_kernel(kernels::compute_type(dtype)), streaming_grid(x.device(), count),
               kernels::ClipParams{.layout = collapse<2>(x.shape(), {target.strides(), operand.strides()}),
                                   .out = target.as(),
                                   .x = operand.as(),
                                   .bounds = bounds},
               cost, {&operand}, {&target});
    }
    if (!in_place) assign(result, target);
    return result;
}

}  // namespace gpk::ops
