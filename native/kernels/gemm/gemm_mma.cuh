// One tile of a product by mma.sync.
//
// The instructions and the layout of their fragments: PTX ISA 8.0, "Matrix multiply-accumulate
// operation using mma instruction" (m16n8k16, and m16n8k8 for tf32) and "ldmatrix". Below, g = lane / 4
// and t = lane % 4, as there. One step takes 32 bytes of k for every type, so that a tf32 fragment of an
// operand that is contiguous along k is, byte for byte, a 16-bit one.
#pragma once

#include "kernels/device.cuh"
#include "kernels/gemm/gemm_mma.hpp"
#include "kernels/gemm/tiles.cuh"
#include "kernels/mma.cuh"

namespace gpk::kernels {

namespace {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes, of which the last 16 - `bytes` are zeros and not read.
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ std::uint32_t load_word(std::uint32_t address) {
    std::uint32_t word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    return word;
}

#define GPK_MMA(shape_and_types)                                                    \
    asm volatile("mma.sync.aligned." shape_and_types                                \
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

template <class T>
__device__ __forceinline__ void multiply(float (&c)[4], const std::uint32_t (&a)[4],
                                         const std::uint32_t (&b)[2]);
template <>
__device__ __forceinline__ void multiply<bfloat16>(float (&c)[4], const std::uint32_t (&a)[4],
                                                   const std::uint32_t (&b)[2]) {
    GPK_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
}
template <>
__device__ __forceinline__ void multiply<float16>(float (&c)[4], const std::uint32_t (&a)[4],
                                                  const std::uint32_t (&b)[2]) {
    GPK_MMA("m16n8k16.row.col.f32.f16.f16.f32");
}
template <>
__device__ __forceinline__ void multiply<float>(float (&c)[4], const std::uint32_t (&a)[4],
                                                const std::uint32_t (&b)[2]) {
    GPK_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
}
#undef GPK_MMA

// To nearest; the instruction by itself would cut the low bits off.
template <class T, int kCount>
__device__ __forceinline__ void round_to_tf32(std::uint32_t (&words)[kCount]) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(words[i]) : "f"(__uint_as_float(words[i])));
    }
}

// One operand's part of k in shared memory: kTile "lines" (rows of a, columns of b) by kMmaDepthBytes.
// Along k: a row of 64 bytes for each line. Else: a row of kTile elements for each k. Each row's 16-byte
// chunks are permuted so that neither ldmatrix nor the word loads below meet a bank twice.
template <class T, int kTile, bool kAlongK>
struct Operand {
    static constexpr int kThreads = mma_threads(kTile);
    static constexpr int kChunk = 16 / sizeof(T);              // elements
    static constexpr int kDepth = kMmaDepthBytes / sizeof(T);  // of k
    static constexpr int kRowBytes = kAlongK ? kMmaDepthBytes : kTile * static_cast<int>(sizeof(T));
    static constexpr int kRowChunks = kRowBytes / 16;
    static constexpr int kCopies = kTile * kMmaDepthBytes / 16 / kThreads;  // of chunks, by each thread
    static constexpr int kBytes = kTile * kMmaDepthBytes;

    __device__ __forceinline__ static int swizzle(int row) {
        if constexpr (kAlongK) return row / 2 % 4;
        return sizeof(T) == 2 ? row % 8 : row % 4 * 2;
    }
    __device__ __forceinline__ static int place(int row, int chunk) {
        return row * kRowBytes + (chunk ^ swizzle(row)) * 16;
    }

    const T* safe;              // an address to name where nothing is read
    const T* from[kCopies];     // this thread's chunks of the next part
    int across_bytes[kCopies];  // how much of the chunk the dimension other than k leaves
    std::int64_t step;

    // `lines` of the tile exist.
    __device__ __forceinline__ Operand(const T* tile, std::int64_t line_stride, std::int64_t k_stride,
                                       int lines)
        : safe(tile), step(kDepth * k_stride) {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
            const int id = threadIdx.x + i * kThreads, row = id / kRowChunks,
                      first = id % kRowChunks * kChunk;
            if constexpr (kAlongK) {
                from[i] = tile + row * line_stride + first;
                across_bytes[i] = row < lines ? 16 : 0;
            } else {
                from[i] = tile + row * k_stride + first;
                across_bytes[i] = min(max(lines - first, 0), kChunk) * static_cast<int>(sizeof(T));
            }
        }
    }

    // The next part, of which `left` of k exist.
    __device__ __forceinline__ void copy(std::uint32_t stage, int left) {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
            const int id = threadIdx.x + i * kThreads, row = id / kRowChunks, chunk = id % kRowChunks;
            int bytes = across_bytes[i];
            if constexpr (kAlongK) {
                bytes = min(bytes, max(left - chunk * kChunk, 0) * static_cast<int>(sizeof(T)));
            } else {
                bytes = row < left ? bytes : 0;
            }
            copy_async(stage + place(row, chunk), bytes > 0 ? from[i] : safe, bytes);
            from[i] += step;
        }
    }

    // The 16 x 32-byte fragment of a at `line`, for the step of k.
    __device__ __forceinline__ static void load_a(std::uint32_t (&to)[4], std::uint32_t stage, int line,
                                                  int k_step) {
        const int lane = threadIdx.x % 32;
        if constexpr (kAlongK) {
            load_matrices<false>(to, stage + place(line + lane % 16, k_step * 2 + lane / 16));
        } else if constexpr (sizeof(T) == 2) {
            load_matrices<true>(
                to, stage + place(k_step * 16 + lane / 16 * 8 + lane % 8, line / 8 + lane / 8 % 2));
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                to[i] = element(stage, k_step * 8 + lane % 4 + i / 2 * 4, line + lane / 4 + i % 2 * 8);
        }
        round_to_tf32<T>(to);
    }

    // The fragments of b for the 8 columns at `line` (to[0], to[1]) and the next 8 (to[2], to[3]).
    __device__ __forceinline__ static void load_b(std::uint32_t (&to)[4], std::uint32_t stage, int line,
                                                  int k_step) {
        const int lane = threadIdx.x % 32;
        if constexpr (kAlongK) {
            load_matrices<false>(to,
                                 stage + place(line + lane / 16 * 8 + lane % 8, k_step * 2 + lane / 8 % 2));
        } else if constexpr (sizeof(T) == 2) {
            load_matrices<true>(to, stage + place(k_step * 16 + lane % 16, line / 8 + lane / 16));
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                to[i] = element(stage, k_step * 8 + lane % 4 + i % 2 * 4, line + lane / 4 + i / 2 * 8);
        }
        round_to_tf32<T>(to);
    }

    __device__ __forceinline__ static std::uint32_t element(std::uint32_t stage, int k, int line) {
        return load_word(stage + place(k, line / 4) + line % 4 * 4);
    }
};

template <class T>
__device__ __forceinline__ void store_pair(T* to, std::int64_t step, float first, float second, int count,
                                           bool whole) {
    if (whole && count >= 2) {
        *reinterpret_cast<Vector<T, 2>*>(to) = {convert<T>(first), convert<T>(second)};
    } else {
        if (count >= 1) to[0] = convert<T>(first);
        if (count >= 2) to[step] = convert<T>(second);
    }
}

// The tile of each batch that falls to this block.
template <class T, int kTile, bool kAAlongK, bool kBAlongK>
__device__ __forceinline__ void gemm_mma(const GemmProblem& p, const Tile& tile) {
    using A = Operand<T, kTile, kAAlongK>;
    using B = Operand<T, kTile, kBAlongK>;
    constexpr int kWarpRows = 2;  // of warps in a tile
    constexpr int kWarpColumns = mma_threads(kTile) / 32 / kWarpRows;
    constexpr int kRows = kTile / kWarpRows / 16;  // of fragments in a warp's part
    constexpr int kColumns = kTile / kWarpColumns / 8;
    constexpr int kSteps = kMmaDepthBytes / 32;
    constexpr int kStage = A::kBytes + B::kBytes;
    extern __shared__ __align__(128) unsigned char shared[];

    const std::uint32_t stages = shared_address(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_row = warp % kWarpRows * (kTile / kWarpRows);
    const int warp_column = warp / kWarpRows * (kTile / kWarpColumns);
    const std::int64_t row0 = tile.row * kTile, column0 = tile.column * kTile;
    const int rows = p.m - row0 < kTile ? static_cast<int>(p.m - row0) : kTile;
    const int columns = p.n - column0 < kTile ? static_cast<int>(p.n - column0) : kTile;
    const int parts = static_cast<int>((p.k + A::kDepth - 1) / A::kDepth);
    const int last =
        static_cast<int>(p.k - static_cast<std::int64_t>(parts - 1) * A::kDepth);  // of k, in the last part

    for (std::int64_t batch = blockIdx.y; batch < p.batches; batch += gridDim.y) {
        const BatchOffsets offsets = batch_offsets(p, batch);
        A a(static_cast<const T*>(p.a) + offsets.a + row0 * p.a_row, p.a_row, p.a_col, rows);
        B b(static_cast<const T*>(p.b) + offsets.b + column0 * p.b_col, p.b_col, p.b_row, columns);
        float sums[kRows][kColumns][4] = {};

        // One group of copies for each part, empty past the last, so that the count of groups says
        // which part has come.
#pragma unroll
        for (int part = 0; part < kMmaStages - 1; ++part) {
            if (part < parts) {
                const std::uint32_t stage = stages + part * kStage;
                const int left = part == parts - 1 ? last : A::kDepth;
                a.copy(stage, left);
                b.copy(stage + A::kBytes, left);
            }
            commit_copies();
        }
        for (int part = 0; part < parts; ++part) {
            wait_copies<kMmaStages - 2>();
            __syncthreads();  // this part is there for all, and all are done with the one before
            const int next = part + kMmaStages - 1;
            if (next < parts) {
                const std::uint32_t stage = stages + next % kMmaStages * kStage;
                const int left = next == parts - 1 ? last : A::kDepth;
                a.copy(stage, left);
                b.copy(stage + A::kBytes, left);
            }
            commit_copies();
            const std::uint32_t stage = stages + part % kMmaStages * kStage;
#pragma unroll
            for (int k_step = 0; k_step < kSteps; ++k_step) {
                std::uint32_t left[kRows][4], right[kColumns][2];
#pragma unroll
                for (int i = 0; i < kRows; ++i) A::load_a(left[i], stage, warp_row + i * 16, k_step);
#pragma unroll
                for (int j = 0; j < kColumns; j += 2) {
                    std::uint32_t pair[4];
                    B::load_b(pair, stage + A::kBytes, warp_column + j * 8, k_step);
                    right[j][0] = pair[0], right[j][1] = pair[1];
                    right[j + 1][0] = pair[2], right[j + 1][1] = pair[3];
                }
#pragma unroll
                for (int i = 0; i < kRows; ++i) {
#pragma unroll
                    for (int j = 0; j < kColumns; ++j) multiply<T>(sums[i][j], left[i], right[j]);
                }
            }
        }
        wait_copies<0>();

        T* c = static_cast<T*>(p.c) + offsets.c + row0 * p.c_row + column0 * p.c_col;
        const bool pairs =
            p.c_col == 1 && p.c_row % 2 == 0 && reinterpret_cast<std::uintptr_t>(c) % (2 * sizeof(T)) == 0;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = warp_row + i * 16 + half * 8 + lane / 4;
                if (row >= rows) continue;
#pragma unroll
                for (int j = 0; j < kColumns; ++j) {
                    const int column = warp_column + j * 8 + lane % 4 * 2;
                    store_pair(c + row * p.c_row + column * p.c_col, p.c_col, sums[i][j][half * 2],
                               sums[i][j][half * 2 + 1], columns - column, pairs);
                }
            }
        }
        __syncthreads();  // the next batch overwrites the stages
    }
}

}  // namespace

}  // namespace gpk::kernels
