// How a reduction walks its input, on both sides: which elements go into which output, and how threads
// share them.
#pragma once

#include <cstdint>

#include "base/float_types.hpp"

namespace gpk {

inline constexpr int kReduceThreadBits = 8, kReduceThreads = 1 << kReduceThreadBits;
inline constexpr int kReduceMaxRank = 16;

// What the threads of a block take at a time.
enum class ReduceWalk : std::uint8_t {
    rows,      // 16 bytes of one output: its innermost reduced dimension has no gaps
    columns,   // 16 bytes of neighbouring outputs: the innermost kept dimension has no gaps
    elements,  // one element
};
inline constexpr int kReduceWalkCount = 3;

// The kept dimensions come first, then the reduced ones, each in row-major order. Output number o is the
// reduction of `count` elements; part q of it takes those from q * part_count on, part_count of them or
// what is left, and goes to place q * outputs + o.
struct ReduceLayout {
    int kept_rank, rank;
    std::int64_t extents[kReduceMaxRank];
    std::int64_t strides[kReduceMaxRank];            // in elements of the input
    std::int64_t outputs, count, parts, part_count;  // part_count: at most kReducePartMost
    // A block is `lanes` threads (a power of two) for each of kReduceThreads / lanes outputs, or, of columns,
    // vectors of outputs. Neighbouring threads belong to one output where neighbouring elements do
    // (along_lanes), else to neighbouring outputs. Grid: (blocks for the outputs, parts).
    int lanes;
    bool along_lanes;
    ReduceWalk walk;
};
inline constexpr std::int64_t kReducePartMost = 1 << 30;  // so that threads count in 32 bits

// The place in elements of number `index` of the dimensions first..last-1.
GPK_HD std::int64_t reduce_offset(const ReduceLayout& layout, int first, int last, std::int64_t index) {
    std::int64_t offset = 0;
#ifdef __CUDA_ARCH__
#pragma unroll 1  // the divisions are long
#endif
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
