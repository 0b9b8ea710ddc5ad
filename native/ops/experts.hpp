// What a mixture of experts needs around its products: where tokens go, their order by expert, and the sum of
// what comes back. Nothing of it is read by the host.
#pragma once

#include "array/array.hpp"

namespace gpk::ops {

inline constexpr std::int64_t kMostExperts = 1024, kMostRouteTop = 32;

struct Routes {
    Array weights;  // float32 (tokens, k)
    Array experts;  // int32 (tokens, k), from the likeliest down
};
// Softmax over logits (tokens, experts) of float32, float16 or bfloat16, of which each token keeps the k
// largest; `normalize`: divided by their sum. A NaN counts as the largest, of equals the lower expert is
// first.
Routes route(const Array& logits, std::int64_t k, bool normalize = true);

struct ExpertOrder {
    Array tokens;   // int32 (tokens * k): of each sorted row; -1 past the last
    Array places;   // int32 (tokens, k): the sorted row of each choice; -1 of one that is left out
    Array offsets;  // int32 (num_experts + 1): the first sorted row of each expert
};
// The rows that (tokens, k) choices give, by expert, else in their order. Choices outside 0..num_experts - 1
// are left out.
ExpertOrder sort_by_expert(const Array& experts, std::int64_t num_experts);

// Sums over k of weights * y[places], plus residual: y (rows, n) of float32, float16 or bfloat16, places and
// weights (tokens, k) of int32 and float32; the result (tokens, n) of y's dtype, rounded once. Places outside
// the rows add nothing. `out` may be the residual.
Array combine_experts(const Array& y, const Array& places, const Array& weights,
                      const Array* residual = nullptr, const Array* out = nullptr);

}  // namespace gpk::ops
