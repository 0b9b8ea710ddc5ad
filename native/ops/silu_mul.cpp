#include "ops/silu_mul.hpp"

#include "base/error.hpp"
#include "kernels/activation/silu_mul.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"

namespace gpk::ops {

namespace {

constexpr const char* kCall = "silu_mul";

// gate and up: rows of n elements without gaps, each with a stride of its own from row to row.
Array launch_rows(const Array& gate, const Array& up, const Dims& shape, std::int64_t gate_stride,
                  std::int64_t up_stride, const Array* out) {
    Array y = prepare_output(kCall, gate.device(), shape, gate.dtype(), out);
    require_contiguous(kCall, "out", y);
    require_no_overlap(kCall, y, {&gate, &up});
    if (y.size() == 0) return y;
    const std::int64_t n = shape.back(), size = static_cast<std::int64_t>(itemsize(gate.dtype()));
    const bool vectorized = n * size % 16 == 0 && gate_stride * size % 16 == 0 &&
                            up_stride * size % 16 == 0 && aligned16(gate) && aligned16(up) && aligned16(y);
    const kernels::SiluMulParams params{
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
    launch(kernels::silu_mul(gate.dtype()), grid_for(accesses, 64), params,
           {.flops = 4 * static_cast<double>(y.size()), .bytes = 3 * static_cast<double>(y.nbytes())},
           {&gate, &up}, {&y});
    return y;
}

}  // namespace

Array silu_mul(const Array& gate, const Array& up, const Array* out) {
    require_model_float(kCall, "gate", gate.dtype());
    require_array(kCall, "up", up, gate.shape(), gate.dtype());
    common_device(kCall, {&gate, &up});
    const Array g = contiguous(gate), u = contiguous(up);
    if (g.rank() == 0) {  // one row of one element
        const Array flat_gate = g.expand_dims(0), flat_up = u.expand_dims(0);
        if (out == nullptr) return launch_rows(flat_gate, flat_up, {1}, 1, 1, nullptr).squeeze(0);
        const Array flat_out = out->expand_dims(0);
        launch_rows(flat_gate, flat_up, {1}, 1, 1, &flat_out);
        return *out;
    }
    const std::int64_t n = g.shape().back();
    return launch_rows(g, u, g.shape(), n, n, out);
}

Array silu_mul(const Array& gate_up, const Array* out) {
    require_model_float(kCall, "gate_up", gate_up.dtype());
    if (gate_up.rank() == 0 || gate_up.shape().back() % 2 != 0) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "gate_up",
                                       .expected = "a last dimension of even length",
                                       .got = to_string(gate_up.shape())});
    }
    const Array both = contiguous(gate_up);
    const int last = both.rank() - 1;
    const std::int64_t n = both.shape().back() / 2;
    Dims shape = both.shape();
    shape[last] = n;
    return launch_rows(both.slice(last, 0, 1, n), both.slice(last, n, 1, n), shape, 2 * n, 2 * n, out);
}

}  // namespace gpk::ops
