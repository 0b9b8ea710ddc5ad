// How a reduction walks its input, on both sides: which elements go into which output, and how threads
// share them.
#pragma once

#include <cstdint>

#include "base/float_types.hpp"

namespace gpk {

inline constexpr int kReduceThreads = 256;
inline constexpr int kReduceMaxRank = 16;

// The kept dimensions come first, then the reduced ones, each in row-major order. Output number o is the
// reduction of `count` elements; part q of it takes those from q * part_count on, part_count of them or
// what is left, and goes to place o * parts + q.
struct ReduceLayout {
    int kept_rank, rank;
    std::int64_t extents[kReduceMaxRank];
    std::int64_t strides[kReduceMaxRank];  // in elements of the input
    std::int64_t outputs, count, parts, part_count;
    // A block is `lanes` threads for each of kReduceThreads / lanes outputs (a power of two). Neighbouring
    // threads belong to one output where neighbouring elements do (along_lanes), else to neighbouring
    // outputs. Grid: x covers the outputs, y the parts; both may be smaller.
    int lanes;
    bool along_lanes;
    bool vectors;  // lanes take 16 bytes at a time: one reduced dimension, contiguous and aligned
};

// The place in elements of number `index` of the dimensions first..last-1.
GPK_HD std::int64_t reduce_offset(const ReduceLayout& layout, int first, int last, std::int64_t index) {
    std::int64_t offset = 0;
    for (int i = last - 1; i > first; --i) {
        const std::int64_t extent = layout.extents[i];
        // 64-bit division is many times slower than 32-bit on a GPU.
        const std::int64_t rest = ((index | extent) >> 32) == 0
                                      ? static_cast<std::uint32_t>(index) / static_cast<std::uint32_t>(extent)
                                      : index / extent;
        offset += (index - rest * extent) * layout.strides[i];
        index = rest;
    }
    return last > first ? offset + index * layout.strides[first] : 0;
}

}  // namespace gpk
