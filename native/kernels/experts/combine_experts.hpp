// combine_experts: what the experts made of a token, added up with its weights.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

struct CombineExpertsParams {
    const void* y;               // [rows, n], without gaps
    const std::int32_t* places;  // [tokens, top]: rows of y; those outside add nothing
    const float* weights;        // [tokens, top]
    const void* residual;        // [tokens, n], without gaps, or null
    void* out;                   // [tokens, n], without gaps; may be residual
    std::int64_t tokens, rows, n;
    std::int32_t top;
    std::int32_t vectorized;  // n and the addresses suit accesses of 16 bytes
};

inline constexpr int kCombineThreads = 128;  // grid: x covers a token's row, y the tokens

const Kernel& combine_experts(DType dtype);

}  // namespace gpk::kernels
