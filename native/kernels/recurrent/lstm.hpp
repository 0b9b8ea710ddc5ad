// lstm: one step of a long short-term memory (Hochreiter & Schmidhuber 1997), with PyTorch's gates i, f, g,
// o: c = sigmoid(f) c + sigmoid(i) tanh(g), h = sigmoid(o) tanh(c).
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

struct LstmParams {
    const void* x_gates;  // [batch, 4, hidden], without gaps: what the input and the biases add to the gates
    const void* h_gates;  // the same of the last step's h; null: the kernel computes it from the two below
    const void* weight;   // [4, hidden, hidden], without gaps
    const void* h;        // [batch, hidden] of the last step
    float* c;             // [batch, hidden], without gaps; becomes this step's
    void* y;              // [batch, hidden]: this step's h
    std::int64_t batch, hidden;
    std::int64_t h_stride, y_stride;  // elements from row to row
    std::int32_t vectorized;          // rows of weight and h suit accesses of 16 bytes
};

// So many rows of the batch share what is read of the weight; times four gates, a value for each lane.
inline constexpr int kLstmRows = 8;
inline constexpr int kLstmThreads = 128;  // the most of a block

// Units of a block of the kernel for the tensor cores, and its threads.
inline constexpr int kLstmMmaUnits = 8, kLstmMmaThreads = 256;

const Kernel& lstm(DType dtype);
// float16 and bfloat16, where hidden is a multiple of 32 and everything is vectorized; h_gates is null.
const Kernel& lstm_mma(DType dtype);

}  // namespace gpk::kernels
