#include "ops/glu.hpp"

#include "base/error.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"

namespace gpk::ops {

namespace {

constexpr const char* kNames[kGluOpCount] = {
#define GPK_NAME(name, function) #name,
    GPK_GLU_OPS(GPK_NAME)
#undef GPK_NAME
};
const char* name_of(GluOp op) { return kNames[static_cast<int>(op)]; }

// gate and up: rows of n elements without gaps, each with a stride of its own from row to row.
Array launch_rows(GluOp op, const Array& gate, const Array& up, const Dims& shape, std::int64_t gate_stride,
                  std::int64_t up_stride, const Array* out) {
    const char* call = name_of(op);
    Array y = prepare_output(call, gate.device(), shape, gate.dtype(), out);
    require_contiguous(call, "out", y);
    require_no_overlap(call, y, {&gate, &up});
    if (y.size() == 0) return y;
    const std::int64_t n = shape.back(), size = static_cast<std::int64_t>(itemsize(gate.dtype()));
    const bool vectorized = n * size % 16 == 0 && gate_stride * size % 16 == 0 &&
                            up_stride * size % 16 == 0 && aligned16(gate) && aligned16(up) && aligned16(y);
    const kernels::GluParams params{
        .gate = gate.as<>(),
        .up = up.as<>(),
        .y = y.as<>(),
        .rows = y.size() / n,
        .n = n,
        .gate_stride = gate_stride,
        .up_stride = up_stride,
        .vectorized = vectorized,
    };
    const std::int64_t accesses = vectorized ? y.size() * size / 16 : y.size();
    // Small blocks: a single token's row then still uses many multiprocessors.
    launch(kernels::glu(op, gate.dtype()), grid_for(accesses, 64, INT32_MAX), params,
           {.flops = 4 * static_cast<double>(y.size()), .bytes = 3 * static_cast<double>(y.nbytes())},
           {&gate, &up}, {&y});
    return y;
}

}  // namespace

Array glu(GluOp op, const Array& gate, const Array& up, const Array* out) {
    const char* call = name_of(op);
    require_model_float(call, "gate", gate.dtype());
    require_array(call, "up", up, gate.shape(), gate.dtype());
    common_device(call, {&gate, &up});
    const Array g = contiguous(gate), u = contiguous(up);
    if (g.rank() == 0) {  // one row of one element
        const Array flat_gate = g.expand_dims(0), flat_up = u.expand_dims(0);
        if (out == nullptr) return launch_rows(op, flat_gate, flat_up, {1}, 1, 1, nullptr).squeeze(0);
        const Array flat_out = out->expand_dims(0);
        launch_rows(op, flat_gate, flat_up, {1}, 1, 1, &flat_out);
        return *out;
    }
    const std::int64_t n = g.shape().back();
    return launch_rows(op, g, u, g.shape(), n, n, out);
}

Array glu(GluOp op, const Array& gate_up, const Array* out) {
    const char* call = name_of(op);
    require_model_float(call, "gate_up", gate_up.dtype());
    if (gate_up.rank() == 0 || gate_up.shape().back() % 2 != 0) {
        throw error(ErrorKind::value, {.call = call,
                                       .argument = "gate_up",
                                       .expected = "a last dimension of even length",
                                       .got = to_string(gate_up.shape())});
    }
    const Array both = contiguous(gate_up);
    const int last = both.rank() - 1;
    const std::int64_t n = both.shape().back() / 2;
    Dims shape = both.shape();
    shape[last] = n;
    return launch_rows(op, both.slice(last, 0, 1, n), both.slice(last, n, 1, n), shape, 2 * n, 2 * n, out);
}

}  // namespace gpk::ops
