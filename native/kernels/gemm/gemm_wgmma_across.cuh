// An operand a of 32 bits that lies across k: the instruction reads shared memory along k only, but takes a
// from registers. Rows of a box are k, and hold 32 lines of m in pieces of 16 bytes, swizzled: piece i of row
// k lies at i ^ k % 8.
//
// A thread needs two lines of m, for two of each eight k: t = lane % 4 and t + 4. It takes two neighbours, at
// once, and which lines are whose is ours to say: the 16 of a warp are the pieces f, f + 1, f + 4 and f + 5,
// so that those that half a warp reads, two pieces of four rows k, lie in different banks:
//     {f ^ t} and {(f + 4) ^ t}, t = 0 to 3, are all eight.
// Neighbours they are in c too, which is written as they lie (WgmmaStore::pairs).
#pragma once

#include "kernels/gemm/gemm_wgmma_store.cuh"

namespace gpk::kernels {

// Which line of m, of a part of 64, a thread's first is; the next one is its second.
__device__ __forceinline__ int across_line(int thread) {
    const int warp = thread / 32, line = thread % 32 / 4;
    const int piece = warp % 2 * 2 + line / 4 + line / 2 % 2 * 4;
    return warp / 2 * 32 + piece * 4 + line % 2 * 2;
}

template <class W>
struct Across {
    std::uint32_t first, second;  // where k is t and t + 4, of stage 0
    __device__ __forceinline__ Across(const unsigned char* stages, int part_row) {
        const int thread = threadIdx.x % kWarpgroup, line = across_line(thread), k = thread % 4;
        const std::uint32_t box = shared_address(stages) + (part_row + line) / 32 * W::kBoxBytes;
        const auto at = [&](int row) { return box + row * 128 + (line % 32 / 4 ^ row) * 16 + line % 4 * 4; };
        first = at(k), second = at(k + 4);
    }
    // Half a stage, as wgmma takes it: both lines where k is t, then where it is t + 4.
    __device__ __forceinline__ void load(std::uint32_t (&to)[W::kParts][W::kSteps / 2][4], int stage,
                                         int half) const {
        const auto two = [](std::uint32_t* pair, std::uint32_t from) {
            asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                         : "=r"(pair[0]), "=r"(pair[1])
                         : "r"(from)
                         : "memory");
        };
#pragma unroll
        for (int step = 0; step < W::kSteps / 2; ++step) {
#pragma unroll
            for (int i = 0; i < W::kParts; ++i) {
                const std::uint32_t by = stage * W::kStageBytes + i * (64 / 32) * W::kBoxBytes +
                                         (half * (W::kSteps / 2) + step) * 1024;
                two(to[i][step], first + by);
                two(to[i][step] + 2, second + by);
            }
        }
    }
};

// Two neighbours along m of each of a thread's columns, or where c lies along n two neighbours along that.
template <class W>
__device__ __forceinline__ void store_pairs(const GemmWgmmaParams& p, const Part& part, const Place& at,
                                            const float (&sums)[W::kParts][W::kOwnSums]) {
    const GemmProblem& g = p.problem;
    const int thread = threadIdx.x % kWarpgroup;
    float* c = static_cast<float*>(g.c) + at.batch[0] * batch_stride(g.c_batch, g.batch_rank, 0) +
               at.batch[1] * batch_stride(g.c_batch, g.batch_rank, 1);
    const bool aligned = reinterpret_cast<std::uintptr_t>(c) % 8 == 0;
    const bool along_m = aligned && g.c_row == 1 && g.c_col % 2 == 0,
               along_n = aligned && g.c_col == 1 && g.c_row % 2 == 0 && part.column % 2 == 0;
    using Two = Vector<float, 2>;
#pragma unroll
    for (int i = 0; i < W::kParts; ++i) {
        const std::int64_t row = part.row + i * 64 + across_line(thread),
                           column0 = part.column + thread % 4 * 2;
        float* to = c + row * g.c_row + column0 * g.c_col;
        const bool whole = row + 1 < g.m && part.column + W::kOwnColumns <= g.n;
        if (whole && along_m) {
#pragma unroll
            for (int j = 0; j < W::kOwnSums; j += 4, to += 8 * g.c_col) {
                const float* d = sums[i] + j;
                *reinterpret_cast<Two*>(to) = {d[0], d[2]};
                *reinterpret_cast<Two*>(to + g.c_col) = {d[1], d[3]};
            }
        } else if (whole && along_n) {
#pragma unroll
            for (int j = 0; j < W::kOwnSums; j += 4) {
                const float* d = sums[i] + j;
                *reinterpret_cast<Two*>(to + j * 2) = {d[0], d[1]};
                *reinterpret_cast<Two*>(to + j * 2 + g.c_row) = {d[2], d[3]};
            }
        } else {
#pragma unroll
            for (int j = 0; j < W::kOwnSums; ++j) {
                const std::int64_t line = j / 2 % 2, column = j / 4 * 8 + j % 2;
                if (row + line < g.m && column0 + column < g.n)
                    to[line * g.c_row + column * g.c_col] = sums[i][j];
            }
        }
    }
}

}  // namespace gpk::kernels
