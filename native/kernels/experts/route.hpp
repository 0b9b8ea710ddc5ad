// route: which experts a token goes to, and with what weights: softmax over all experts, of which the k
// likeliest are kept. A NaN counts as the largest; of equals the lower expert comes first, so that every
// device chooses the same ones.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

inline constexpr int kMaxRouteExperts = 1024, kMaxRouteTop = 32;

struct RouteParams {
    const void* logits;     // [tokens, experts], rows `pitch` elements apart
    float* weights;         // [tokens, top]
    std::int32_t* experts;  // [tokens, top], from the likeliest down
    std::int64_t tokens, pitch;
    std::int32_t count;      // of experts, at most kMaxRouteExperts
    std::int32_t top;        // at most count and kMaxRouteTop
    std::int32_t normalize;  // weights of a token add up to 1; else they are its probabilities
};

inline constexpr int kRouteThreads = 128;  // a warp a token

const Kernel& route(DType dtype);

}  // namespace gpk::kernels
