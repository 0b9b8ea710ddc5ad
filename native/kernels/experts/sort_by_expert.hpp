// sort_by_expert: a stable counting sort of (token, choice) pairs by the expert that was chosen.
#pragma once

#include <cstdint>

#include "runtime/kernel.hpp"

namespace gpk::kernels {

inline constexpr int kMaxSortExperts = 1024;

struct SortByExpertParams {
    const std::int32_t* experts;  // [pairs], top of each token; those outside 0..count-1 are left out
    std::int32_t* tokens;         // [pairs]: the token of each sorted row; -1 past the last
    std::int32_t* places;         // [pairs]: the sorted row of each pair; -1 where it was left out
    std::int32_t* offsets;        // [count + 1]: the first sorted row of each expert
    std::int32_t pairs, top;
    std::int32_t count;  // of experts, at most kMaxSortExperts
};

inline constexpr int kSortThreads = 1024;  // of the one block

const Kernel& sort_by_expert();

}  // namespace gpk::kernels
