#include <optional>
#include <string>

#include "base/error.hpp"
#include "kernels/elementwise/binary_functors.hpp"
#include "ops/collapse.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/memory_order.hpp"
#include "ops/scalar_bits.hpp"
#include "ops/transpose.hpp"

namespace gpk::ops {

namespace {

using kernels::Operand;
using kernels::OperandKind;

// One side of the op: an array or a number.
struct Side {
    const Array* array = nullptr;
    const Scalar* scalar = nullptr;
};

[[noreturn]] void refuse(BinaryOp op, const char* expected, DType got) {
    throw error(ErrorKind::type, {.call = info(op).name,
                                  .expected = expected,
                                  .got = std::string(name(got)),
                                  .fix = is_float8(got) ? "convert with astype first" : ""});
}

DType common_dtype(const Side& a, const Side& b) {
    if (a.array != nullptr && b.array != nullptr) return promote(a.array->dtype(), b.array->dtype());
    return a.array != nullptr ? promote_scalar(a.array->dtype(), b.scalar->kind())
                              : promote_scalar(b.array->dtype(), a.scalar->kind());
}

// What NumPy's functions of two reals compute in: each integer side finds its own float first, so that
// int8 with uint8 gives float16 and not int16's float32.
DType float_of(const Side& a, const Side& b, DType common) {
    const bool both_integer = a.array != nullptr && b.array != nullptr && !is_floating(a.array->dtype()) &&
                              !is_floating(b.array->dtype());
    return both_integer ? promote(float_for(a.array->dtype()), float_for(b.array->dtype()))
                        : float_for(common);
}

// The dtype that the op computes in. Throws Error (type) for what the op does not take.
DType operand_dtype(BinaryOp op, const Side& a, const Side& b) {
    const DType common = common_dtype(a, b);
    if (is_float8(common)) refuse(op, "a dtype with arithmetic", common);
    const bool is_bool = common == DType::bool_;
    switch (info(op).rule) {
        case BinaryRule::number:
            if (is_bool) refuse(op, "numbers (for bool use logical_xor)", common);
            return common;
        case BinaryRule::widened: return is_bool ? DType::int8 : common;
        case BinaryRule::quotient: return is_floating(common) ? common : DType::float64;
        case BinaryRule::floating: return float_of(a, b, common);
        case BinaryRule::bitwise:
            if (is_floating(common)) refuse(op, "integers or bool", common);
            return common;
        case BinaryRule::shift:
            if (is_floating(common)) refuse(op, "integers", common);
            return is_bool ? DType::int8 : common;
        case BinaryRule::any:
        case BinaryRule::comparison:
        case BinaryRule::logical: return common;
    }
    return common;
}

DType result_dtype(BinaryOp op, DType operand) {
    return kernels::gives_bool(info(op).rule) ? DType::bool_ : operand;
}

Cost cost_of(std::int64_t count, const Array& out, double bytes_read) {
    return {.flops = static_cast<double>(count),
            .bytes = bytes_read + static_cast<double>(count) * static_cast<double>(itemsize(out.dtype()))};
}

// Elements of `dtype` in 16 bytes, and whether operands and result are aligned to be moved so.
std::int64_t pack_elements(DType dtype) { return 16 / static_cast<std::int64_t>(itemsize(dtype)); }
bool aligned(DType dtype, const Array& out) {
    return out.data() % (static_cast<std::uint64_t>(pack_elements(dtype)) * itemsize(out.dtype())) == 0;
}

// The common case, with nothing to convert or to broadcast: few checks, one launch. The result has the
// shape of `like`; a and b are of its dtype, which the op computes in.
const Kernel* plain_kernel(BinaryOp op, const Array& like) {
    const Kernel* kernel = kernels::binary_packs(op, like.dtype());
    return kernel != nullptr && like.is_contiguous() && like.data() % 16 == 0 ? kernel : nullptr;
}

Array binary_plain(BinaryOp op, const Kernel& kernel, const Operand& a, const Operand& b, const Array& like,
                   const Array& other) {
    Device& device = like.device();
    Array out = Array::empty(device, like.shape(), result_dtype(op, like.dtype()));
    const std::int64_t count = like.size();
    if (count == 0) return out;
    kernels::BinaryPacksParams params{
        .count = count, .a = a, .b = b, .out = out.as(), .layout = kernels::one_run<2>()};
    const double bytes_read = static_cast<double>(like.nbytes()) * (&like == &other ? 1 : 2);
    launch(kernel, packs_grid(count, pack_elements(like.dtype())), params, cost_of(count, out, bytes_read),
           {&like, &other}, {&out});
    return out;
}

Operand array_operand(const Array& array) { return {array.as(), 0, OperandKind::array, array.dtype()}; }
Operand immediate(std::uint64_t bits, DType dtype) { return {nullptr, bits, OperandKind::immediate, dtype}; }

// A side as the kernels take it. `array` holds its converted copy where there is one.
struct PreparedSide {
    Array array;
    Operand operand;
    Dims strides;
};

PreparedSide prepare(BinaryOp op, const Side& side, DType dtype, const Dims& shape) {
    if (side.scalar != nullptr) {
        return {{},
                immediate(scalar_bits(info(op).name, *side.scalar, dtype), dtype),
                Dims::filled(shape.size(), 0)};
    }
    // The strided kernels read any dtype of their class, so a conversion within it costs nothing.
    const bool readable = kernels::compute_type(side.array->dtype()) == kernels::compute_type(dtype);
    PreparedSide prepared{readable ? *side.array : astype(*side.array, dtype), {}, {}};
    if (readable && runs_across(*side.array)) prepared.array = contiguous(*side.array);
    const Array& array = prepared.array;
    prepared.operand = array_operand(array);
    prepared.strides = broadcast_strides(array.shape(), array.strides(), shape);
    return prepared;
}

// The op by packs, where its dtype, layout and addresses allow it.
bool run_packs(BinaryOp op, const PreparedSide& a, const PreparedSide& b, DType dtype, const Array& out,
               const kernels::Layout<3>& layout, const Cost& cost, const Array& a_read, const Array& b_read) {
    const Kernel* kernel = kernels::binary_packs(op, dtype);
    if (kernel == nullptr || !aligned(dtype, out)) return false;
    for (const Operand* each : {&a.operand, &b.operand}) {
        if (each->kind == OperandKind::array && each->dtype != dtype) return false;
    }
    const int size = static_cast<int>(itemsize(dtype));
    PackOperands<2> operands{.pointers = {reinterpret_cast<std::uintptr_t>(a.operand.data),
                                          reinterpret_cast<std::uintptr_t>(b.operand.data)},
                             .item_bytes = {size, size},
                             .runs = {}};
    kernels::BinaryPacksParams params{
        .count = layout.count, .a = a.operand, .b = b.operand, .out = out.as(), .layout = {}};
    const std::int64_t pack = pack_elements(dtype);
    if (!in_packs<2>(layout, static_cast<int>(pack), operands, params.layout)) return false;
    for (int k = 0; k < 2; ++k) {
        Operand& operand = k == 0 ? params.a : params.b;
        if (operand.kind == OperandKind::array && !operands.runs[k]) operand.kind = OperandKind::element;
    }
    launch(*kernel, packs_grid(layout.count, pack), params, cost, {&a_read, &b_read}, {&out});
    return true;
}

void run(BinaryOp op, PreparedSide& a, PreparedSide& b, DType dtype, const Array& out) {
    const auto layout = collapse<3>(out.shape(), {out.strides(), a.strides, b.strides});
    if (layout.count == 0) return;
    const Array& a_read = a.array.defined() ? a.array : out;
    const Array& b_read = b.array.defined() ? b.array : out;
    const double bytes_read = static_cast<double>(a.array.defined() ? a.array.nbytes() : 0) +
                              static_cast<double>(b.array.defined() ? b.array.nbytes() : 0);
    const Cost cost = cost_of(layout.count, out, bytes_read);
    if (run_packs(op, a, b, dtype, out, layout, cost, a_read, b_read)) return;
    launch(kernels::binary_strided(kernels::compute_type(dtype)), streaming_grid(out.device(), layout.count),
           kernels::BinaryStridedParams{.layout = layout,
                                        .a = a.operand,
                                        .b = b.operand,
                                        .out = out.as(),
                                        .out_dtype = out.dtype(),
                                        .op = op},
           cost, {&a_read, &b_read}, {&out});
}

Array binary_general(BinaryOp op, const Side& a, const Side& b, const Array* out) {
    const char* call = info(op).name;
    Device& device = common_device(call, {a.array, b.array});
    const DType dtype = operand_dtype(op, a, b);
    const Dims shape = a.array == nullptr   ? b.array->shape()
                       : b.array == nullptr ? a.array->shape()
                                            : broadcast_shapes(call, a.array->shape(), b.array->shape());
    const Array result = prepare_output(call, device, shape, result_dtype(op, dtype), out);
    PreparedSide x = prepare(op, a, dtype, shape), y = prepare(op, b, dtype, shape);
    const bool in_place = out == nullptr || ((a.array == nullptr || !writes_over(result, x.array)) &&
                                             (b.array == nullptr || !writes_over(result, y.array)));
    const Array target = in_place ? result : Array::empty(device, shape, result.dtype());
    run(op, x, y, dtype, target);
    if (!in_place) assign(result, target);
    return result;
}

// What `array op value` (or `value op array`) is everywhere, for an integer past the array's range: NumPy
// compares as if the numbers had no bounds.
bool comparison_beyond_range(BinaryOp op, bool value_is_low, bool value_is_left) {
    const std::int64_t value = value_is_low ? -1 : 1;
    const std::int64_t a = value_is_left ? value : 0, b = value_is_left ? 0 : value;
    switch (op) {
#define GPK_CASE(name) \
    case BinaryOp::name: return kernels::binary_functors::name::apply(a, b);
        GPK_PACKS_COMPARISONS(GPK_CASE)
#undef GPK_CASE
        default: return false;
    }
}

Array binary_scalar(BinaryOp op, const Array& array, const Scalar& scalar, bool scalar_is_left,
                    const Array* out) {
    const Side number{.scalar = &scalar}, operand{.array = &array};
    const Side &a = scalar_is_left ? number : operand, &b = scalar_is_left ? operand : number;
    const bool integer = scalar.kind() != ScalarKind::floating && is_integer(array.dtype());
    switch (info(op).rule) {
        case BinaryRule::logical: {
            // Only its truth matters, in any dtype.
            const Scalar truth(scalar.as_double() != 0);
            const Side truth_side{.scalar = &truth};
            return binary_general(op, scalar_is_left ? truth_side : a, scalar_is_left ? b : truth_side, out);
        }
        case BinaryRule::comparison:
            if (integer && !scalar.fits(array.dtype())) {
                const Array result =
                    prepare_output(info(op).name, array.device(), array.shape(), DType::bool_, out);
                const bool is_low = !scalar.is_unsigned() && scalar.as_int64() < 0;
                assign(result, Scalar(comparison_beyond_range(op, is_low, scalar_is_left)));
                return result;
            }
            break;
        default: break;
    }
    if (op == BinaryOp::power && !scalar_is_left) {
        if (integer && !scalar.is_unsigned() && scalar.as_int64() < 0) {
            throw error(ErrorKind::value, {.call = info(op).name,
                                           .argument = "b",
                                           .expected = "an exponent of 0 or more for integers",
                                           .got = std::to_string(scalar.as_int64()),
                                           .fix = "convert the base to a float with astype"});
        }
        if (is_floating(array.dtype()) && scalar.as_double() == 2) return unary(UnaryOp::square, array, out);
    }
    const Kernel* kernel = out == nullptr ? plain_kernel(op, array) : nullptr;
    if (kernel != nullptr && operand_dtype(op, a, b) == array.dtype()) {
        const Operand value = immediate(scalar_bits(info(op).name, scalar, array.dtype()), array.dtype());
        return scalar_is_left ? binary_plain(op, *kernel, value, array_operand(array), array, array)
                              : binary_plain(op, *kernel, array_operand(array), value, array, array);
    }
    if (out == nullptr) {
        if (const auto order = memory_order(array)) {
            return binary_scalar(op, array.transpose(*order), scalar, scalar_is_left, nullptr)
                .transpose(undone(*order));
        }
    }
    return binary_general(op, a, b, out);
}

// `other` as it is beside `array` in that one's memory order; nothing where it has an order of its own.
std::optional<Array> beside(const Array& array, const Array& other, const Dims& order) {
    if (other.shape() == array.shape()) {
        if (other.strides() != array.strides()) return std::nullopt;
        return other.transpose(order);
    }
    if (other.size() >= array.size() || other.rank() > array.rank()) return std::nullopt;
    for (int i = 1; i <= other.rank(); ++i) {
        const std::int64_t extent = other.shape()[other.rank() - i];
        if (extent != 1 && extent != array.shape()[array.rank() - i]) return std::nullopt;
    }
    return other.broadcast_to(array.shape()).transpose(order);
}

}  // namespace

Array binary(BinaryOp op, const Array& a, const Array& b, const Array* out) {
    const bool alike = a.dtype() == b.dtype() && a.shape() == b.shape() && &a.device() == &b.device();
    if (out == nullptr && alike) {
        const Kernel* kernel = plain_kernel(op, a);
        if (kernel != nullptr && plain_kernel(op, b) != nullptr) {
            return binary_plain(op, *kernel, array_operand(a), array_operand(b), a, b);
        }
    }
    if (out == nullptr) {
        if (const auto order = memory_order(a)) {
            if (const auto other = beside(a, b, *order))
                return binary(op, a.transpose(*order), *other).transpose(undone(*order));
        }
        if (const auto order = memory_order(b)) {
            if (const auto other = beside(b, a, *order))
                return binary(op, *other, b.transpose(*order)).transpose(undone(*order));
        }
    }
    return binary_general(op, {.array = &a}, {.array = &b}, out);
}

Array binary(BinaryOp op, const Array& a, const Scalar& b, const Array* out) {
    return binary_scalar(op, a, b, false, out);
}

Array binary(BinaryOp op, const Scalar& a, const Array& b, const Array* out) {
    return binary_scalar(op, b, a, true, out);
}

}  // namespace gpk::ops
