// What the products of few rows on the tensor cores share: fragments, and the end of a block's work.
//
// The weights are the 16-row operand of mma.sync (m16n8k16), the activations the one of 8 columns, so that
// 1 to 8 rows of activations cost one instruction and 9 to 16 two. Below, g = lane / 4 and t = lane % 4, as
// in PTX ISA 8.0, "Matrix fragments for mma.m16n8k16". A sum over k may be taken in any order, so a lane
// gives the instruction the k that it loaded together, not those that the layout names.
#pragma once

#include <type_traits>

#include "kernels/device.cuh"
#include "kernels/gemm/gemv_mma.hpp"
#include "kernels/team.cuh"

namespace gpk::kernels {

// Weights are read once: they need not push other things out of the caches.
__device__ __forceinline__ uint4 load_once(const void* from) {
    uint4 words;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(from));
    return words;
}

// `count` elements (of 8 or fewer), zeros after them.
template <class T>
__device__ __forceinline__ uint4 load_some(const T* from, std::int64_t stride, std::int64_t count) {
    std::uint32_t words[4] = {};
#pragma unroll
    for (int e = 0; e < 8; ++e) {
        if (e < count) words[e / 2] |= static_cast<std::uint32_t>(from[e * stride].bits) << (16 * (e % 2));
    }
    return {words[0], words[1], words[2], words[3]};
}

template <class T>
__device__ __forceinline__ void multiply_add(float (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                             std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                             std::uint32_t b1) {
    if constexpr (std::is_same_v<T, bfloat16>) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
}

// Adds up what the warps of a block, and the blocks of its cluster, have of kRows x kColumns sums (in
// `parts`, [warp][element]) in a fixed order, and gives each to store(element, sum) once.
template <int kElements, class Store>
__device__ __forceinline__ void add_parts(float (&parts)[kGemvMmaWarps][kElements], Store store) {
    const std::uint32_t blocks = team_blocks(), rank = team_rank();
    const auto of_block = [&](int element) {
        float sum = 0;
#pragma unroll
        for (int warp = 0; warp < kGemvMmaWarps; ++warp) sum += parts[warp][element];
        return sum;
    };
    __syncthreads();
    if (blocks == 1) {
        for (int element = threadIdx.x; element < kElements; element += kGemvMmaThreads) {
            store(element, of_block(element));
        }
    } else {
        for (int element = threadIdx.x; element < kElements; element += kGemvMmaThreads) {
            parts[0][element] = of_block(element);
        }
        team_sync();
        for (int element = rank * kGemvMmaThreads + threadIdx.x; element < kElements;
             element += blocks * kGemvMmaThreads) {
            float sum = 0;
            for (std::uint32_t other = 0; other < blocks; ++other) {
                sum += *of_team(&parts[0][element], other);
            }
            store(element, sum);
        }
        team_sync();  // another block may still read these parts
    }
}

}  // namespace gpk::kernels
