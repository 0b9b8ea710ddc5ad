// What a product's kernel may do with a sum before it is stored: activation(scale * row scale * column scale
// * sum + bias) + residual, in float32, rounded once.
#pragma once

#include <cstdint>

#include "base/float_types.hpp"

namespace gpk {

enum class GemmActivation : std::int32_t { none, relu, gelu, gelu_tanh, silu };

struct GemmEpilogue {
    const void* bias = nullptr;      // or n elements without gaps, of c's type
    const void* residual = nullptr;  // or m x n elements of c's type
    std::int64_t residual_row = 0, residual_col = 0;
    GemmActivation activation = GemmActivation::none;
    float scale = 1;
    // Or one for each row, one for each column, or one for all (a step of 0).
    const float* row_scale = nullptr;
    const float* column_scale = nullptr;
    std::int64_t row_scale_step = 0, column_scale_step = 0;
};

// Scales of blocks along k, of a's elements in each row and of b's in each square.
inline constexpr int kGemmScaleBlock = 128;
struct GemmBlockScales {
    const float* a = nullptr;  // m x blocks of k
    const float* b = nullptr;  // blocks of n x blocks of k
    std::int64_t a_row = 0, a_col = 0, b_row = 0, b_col = 0;
};

// A bias or a residual, or neither, and nothing else.
GPK_HD bool adds_only(const GemmEpilogue& e) {
    return e.activation == GemmActivation::none && e.scale == 1 && e.row_scale == nullptr &&
           e.column_scale == nullptr;
}
GPK_HD bool changes(const GemmEpilogue& e) {
    return e.bias != nullptr || e.residual != nullptr || !adds_only(e);
}

}  // namespace gpk
