#include "ops/lstm.hpp"

#include "base/error.hpp"
#include "kernels/recurrent/lstm.hpp"
#include "ops/creation.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/matmul.hpp"
#include "ops/model_checks.hpp"

namespace gpk::ops {

namespace {

constexpr const char* kCall = "lstm";
// How a step is made. Measured on an H200 with 1024 hidden units: the tensor cores pay from two rows of a
// batch on; without them, and for float32, a product of its own pays for large batches alone, since it is a
// launch more.
enum class Way { fused, mma, product };
constexpr std::int64_t kMmaBatch = 64, kFusedBatch16 = 16, kFusedBatch32 = 48;

Way way_of(const kernels::LstmParams& p, DType dtype) {
    const bool is16 = dtype != DType::float32;
    if (is16 && p.vectorized && p.hidden % 32 == 0 && p.batch >= 2 && p.batch <= kMmaBatch) return Way::mma;
    return p.batch <= (is16 ? kFusedBatch16 : kFusedBatch32) ? Way::fused : Way::product;
}

void validate(const Array& x, const LstmWeights& w, const Array* h, const Array* c) {
    require_model_float(kCall, "x", x.dtype());
    if (x.rank() != 2 && x.rank() != 3) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "x",
                                       .expected = "shape (steps, batch, inputs) or (steps, inputs)",
                                       .got = to_string(x.shape())});
    }
    if (w.recurrent.rank() != 2 || w.recurrent.shape()[0] != 4 * w.recurrent.shape()[1]) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "weight_hh",
                                       .expected = "shape (4 * hidden, hidden)",
                                       .got = to_string(w.recurrent.shape())});
    }
    const std::int64_t hidden = w.recurrent.shape()[1];
    require_array(kCall, "weight_hh", w.recurrent, w.recurrent.shape(), x.dtype());
    require_array(kCall, "weight_ih", w.input, {4 * hidden, x.shape().back()}, x.dtype());
    if (w.input_bias != nullptr) require_array(kCall, "bias_ih", *w.input_bias, {4 * hidden}, x.dtype());
    if (w.recurrent_bias != nullptr)
        require_array(kCall, "bias_hh", *w.recurrent_bias, {4 * hidden}, x.dtype());
    const Dims state = x.rank() == 3 ? Dims{x.shape()[1], hidden} : Dims{hidden};
    if (h != nullptr) require_array(kCall, "h", *h, state, x.dtype());
    if (c != nullptr) require_array(kCall, "c", *c, state, x.dtype());
}

// What the input and the biases add to the gates of all steps.
Array input_gates(const Array& x, const LstmWeights& w) {
    const Array gates = linear(x, w.input, {.bias = w.input_bias});
    if (w.recurrent_bias != nullptr) binary(BinaryOp::add, gates, *w.recurrent_bias, &gates);
    return gates;
}

void step(const Array& x_gates, const Array& weight, const Array& h, const Array& c, const Array& y) {
    const std::int64_t batch = h.shape()[0], hidden = h.shape()[1];
    const auto size = static_cast<std::int64_t>(itemsize(h.dtype()));
    kernels::LstmParams params{.x_gates = x_gates.as<>(),
                               .h_gates = nullptr,
                               .weight = weight.as<>(),
                               .h = h.as<>(),
                               .c = c.as<float>(),
                               .y = y.as<>(),
                               .batch = batch,
                               .hidden = hidden,
                               .h_stride = h.strides()[0],
                               .y_stride = y.strides()[0],
                               .vectorized = hidden * size % 16 == 0 && h.strides()[0] * size % 16 == 0 &&
                                             aligned16(h) && aligned16(weight)};
    const double elements = static_cast<double>(batch) * static_cast<double>(hidden);
    Cost cost{.flops = 40 * elements, .bytes = elements * (12.0 * static_cast<double>(size) + 8)};
    const Way way = way_of(params, h.dtype());
    if (way == Way::product) {
        const Array h_gates = matmul(h, weight.transpose({1, 0}));
        params.h_gates = h_gates.as<>();
        return launch(kernels::lstm(h.dtype()), grid_for(batch * hidden, kernels::kLstmThreads), params, cost,
                      {&x_gates, &h_gates}, {&c, &y});
    }
    cost.flops += 8 * elements * static_cast<double>(hidden);
    cost.bytes += static_cast<double>(weight.nbytes());
    const bool mma = way == Way::mma;
    const LaunchConfig config =
        mma ? grid_for(hidden / kernels::kLstmMmaUnits * kernels::kLstmMmaThreads, kernels::kLstmMmaThreads)
            : grid_for(hidden * 32, kernels::kLstmThreads);
    launch(mma ? kernels::lstm_mma(h.dtype()) : kernels::lstm(h.dtype()), config, params, cost,
           {&x_gates, &weight, &h}, {&c, &y});
}

}  // namespace

LstmResult lstm(const Array& input, const LstmWeights& w, const Array* h, const Array* c, bool reverse) {
    validate(input, w, h, c);
    Device& device =
        common_device(kCall, {&input, &w.input, &w.recurrent, w.input_bias, w.recurrent_bias, h, c});
    const bool batched = input.rank() == 3;
    const Array x = batched ? input : input.expand_dims(1);
    const std::int64_t steps = x.shape()[0], batch = x.shape()[1], hidden = w.recurrent.shape()[1];
    const auto rows = [&](const Array& state) { return batched ? state : state.expand_dims(0); };
    const auto as_given = [&](const Array& state) { return batched ? state : state.select(0, 0); };

    const Array output = Array::empty(device, {steps, batch, hidden}, x.dtype());
    Array last = h != nullptr ? contiguous(rows(*h)) : full(device, {batch, hidden}, 0, x.dtype());
    const Array cell =
        c != nullptr ? astype(rows(*c), DType::float32) : full(device, {batch, hidden}, 0, DType::float32);
    if (output.size() > 0) {
        const Array gates = input_gates(x, w), weight = contiguous(w.recurrent);
        for (std::int64_t i = 0; i < steps; ++i) {
            const std::int64_t at = reverse ? steps - 1 - i : i;
            const Array y = output.select(0, at);
            step(gates.select(0, at), weight, last, cell, y);
            last = y;
        }
    }
    return {.output = batched ? output : output.select(1, 0),
            .h = as_given(astype(last, x.dtype())),
            .c = as_given(astype(cell, x.dtype()))};
}

}  // namespace gpk::ops
