#include <string>

#include "base/error.hpp"
#include "ops/collapse.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/memory_order.hpp"
#include "ops/transpose.hpp"

namespace gpk::ops {

namespace {

[[noreturn]] void refuse(UnaryOp op, const char* expected, DType got) {
    throw error(ErrorKind::type, {.call = info(op).name,
                                  .expected = expected,
                                  .got = std::string(name(got)),
                                  .fix = is_float8(got) ? "convert with astype first" : ""});
}

// The dtype that the op computes in. Throws Error (type) for what the op does not take.
DType operand_dtype(UnaryOp op, DType dtype) {
    if (is_float8(dtype)) refuse(op, "a dtype with arithmetic", dtype);
    const bool is_bool = dtype == DType::bool_;
    switch (info(op).rule) {
        case UnaryRule::number:
            if (is_bool) refuse(op, "numbers (for bool use logical_not)", dtype);
            return dtype;
        case UnaryRule::widened: return is_bool ? DType::int8 : dtype;
        case UnaryRule::floating: return float_for(dtype);
        case UnaryRule::bitwise:
            if (is_floating(dtype)) refuse(op, "integers or bool", dtype);
            return dtype;
        case UnaryRule::any:
        case UnaryRule::predicate: return dtype;
    }
    return dtype;
}

void run(UnaryOp op, const Array& x, const Array& out) {
    const std::int64_t count = out.size();
    if (count == 0) return;
    const Cost cost{.flops = static_cast<double>(count),
                    .bytes = static_cast<double>(x.nbytes()) + static_cast<double>(out.nbytes())};
    const Kernel* contiguous_kernel = kernels::unary_contiguous(op, x.dtype());
    const bool one_run = x.is_contiguous() && out.is_contiguous();
    if (contiguous_kernel != nullptr && one_run && (out.data() | x.data()) % 16 == 0) {
        const std::int64_t pack = 16 / static_cast<std::int64_t>(itemsize(x.dtype()));
        launch(*contiguous_kernel, packs_grid(count, pack),
               kernels::UnaryContiguousParams{.count = count, .x = x.as(), .out = out.as()}, cost, {&x},
               {&out});
        return;
    }
    launch(kernels::unary_strided(kernels::compute_type(x.dtype())), streaming_grid(out.device(), count),
           kernels::UnaryStridedParams{.layout = collapse<2>(out.shape(), {out.strides(), x.strides()}),
                                       .x = x.as(),
                                       .out = out.as(),
                                       .x_dtype = x.dtype(),
                                       .out_dtype = out.dtype(),
                                       .op = op},
           cost, {&x}, {&out});
}

}  // namespace

Array unary(UnaryOp op, const Array& x, const Array* out) {
    const char* call = info(op).name;
    if (op == UnaryOp::invert && x.dtype() == DType::bool_) op = UnaryOp::logical_not;
    const DType dtype = operand_dtype(op, x.dtype());
    if (out == nullptr) {
        if (const auto order = memory_order(x))
            return unary(op, x.transpose(*order)).transpose(undone(*order));
    }
    const DType result_dtype = kernels::gives_bool(info(op).rule) ? DType::bool_ : dtype;
    const Array result = prepare_output(call, x.device(), x.shape(), result_dtype, out);
    const Array operand = x.dtype() != dtype ? astype(x, dtype) : runs_across(x) ? contiguous(x) : x;
    const bool in_place = out == nullptr || !writes_over(result, operand);
    const Array target = in_place ? result : Array::empty(x.device(), x.shape(), result_dtype);
    run(op, operand, target);
    if (!in_place) assign(result, target);
    return result;
}

}  // namespace gpk::ops
