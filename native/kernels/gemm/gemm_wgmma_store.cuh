// How a consumer's sums become c.
#pragma once

#include "kernels/gemm/activate.hpp"
#include "kernels/gemm/gemm_wgmma_tile.cuh"

namespace gpk::kernels {

template <class T>
__device__ __forceinline__ std::uint32_t pack(float first, float second) {
    const Vector<T, 2> both = {convert<T>(first), convert<T>(second)};
    return *reinterpret_cast<const std::uint32_t*>(&both);
}

__device__ __forceinline__ void store_matrices(std::uint32_t to, std::uint32_t a, std::uint32_t b,
                                               std::uint32_t c, std::uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

// One consumer's part of c, from (row, column) on.
struct Part {
    int consumer, row, column;
    unsigned char* staging;
};

// Through shared memory and the copy engine, 64 columns at a time, and what is left of them.
template <class W>
__device__ __forceinline__ void store_by_map(const GemmWgmmaParams& p, const Part& part, const Place& at,
                                             const typename W::Sum (&sums)[W::kParts][W::kSums]) {
    using Out = typename W::Out;
    const int thread = threadIdx.x % kWarpgroup, lane = thread % 32;
    const int line = thread / 32 * 16 + lane % 16;
    int turn = 0;
#pragma unroll
    for (int i = 0; i < W::kParts; ++i) {
#pragma unroll
        for (int first = 0; first < W::kPartColumns; first += 64, turn ^= 1) {
            const int columns = W::kPartColumns - first < 64 ? W::kPartColumns - first : 64;
            unsigned char* box = part.staging + turn * kWgmmaBoxBytes;
            if (thread == 0) tma_store_wait<1>();  // the box of two turns ago has been read
            named_barrier_sync(kStoreBarrier + part.consumer, kWarpgroup);
            const std::uint32_t to = shared_address(box) + line * columns * 2;
            const auto* d = sums[i] + first / 2;
#pragma unroll
            for (int j = 0; j < columns / 16; ++j, d += 8) {
                const int piece = j * 2 + lane / 16;  // of 16 bytes; whole boxes are swizzled
                store_matrices(to + (columns == 64 ? piece ^ line % 8 : piece) * 16, pack<Out>(d[0], d[1]),
                               pack<Out>(d[2], d[3]), pack<Out>(d[4], d[5]), pack<Out>(d[6], d[7]));
            }
            fence_async_shared();
            named_barrier_sync(kStoreBarrier + part.consumer, kWarpgroup);
            if (thread == 0) {
                tma_store(columns == 64 ? p.c : p.c_rest, box, part.column + first, part.row + i * 64,
                          at.batch[0], at.batch[1]);
                tma_store_commit();
            }
        }
    }
}

// Up to 8 elements of a row, in one access where they are in a row and aligned.
template <class T>
__device__ __forceinline__ void load_row(float (&to)[8], const T* from, std::int64_t step, int count) {
    if (count == 8 && step == 1 && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
        constexpr int kWide = 16 / sizeof(T);
#pragma unroll
        for (int i = 0; i < 8; i += kWide) {
            const auto wide = *reinterpret_cast<const Vector<T, kWide>*>(from + i);
#pragma unroll
            for (int j = 0; j < kWide; ++j) to[i + j] = convert<float>(wide.values[j]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) to[i] = i < count ? convert<float>(from[i * step]) : 0;
    }
}
template <class T, class Sum>
__device__ __forceinline__ void store_row(T* to, std::int64_t step, const Sum (&from)[8], int count) {
    if (count == 8 && step == 1 && reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
        constexpr int kWide = 16 / sizeof(T);
#pragma unroll
        for (int i = 0; i < 8; i += kWide) {
            Vector<T, kWide> wide;
#pragma unroll
            for (int j = 0; j < kWide; ++j) wide.values[j] = convert<T>(from[i + j]);
            *reinterpret_cast<Vector<T, kWide>*>(to + i) = wide;
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (i < count) to[i * step] = convert<T>(from[i]);
        }
    }
}

// 8 sums of row y, from column x on, of which `count` exist.
template <class T>
__device__ __forceinline__ void finish_row(const GemmEpilogue& e, float (&v)[8], std::int64_t y,
                                           std::int64_t x, int count) {
    float add[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] *= e.scale;
    if (e.row_scale != nullptr) {
        const float scale = e.row_scale[y * e.row_scale_step];
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] *= scale;
    }
    if (e.column_scale != nullptr) {
        load_row(add, e.column_scale + x * e.column_scale_step, e.column_scale_step, count);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] *= add[j];
    }
    if (e.bias != nullptr) {
        load_row(add, static_cast<const T*>(e.bias) + x, 1, count);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] += add[j];
    }
    if (e.activation != GemmActivation::none) {
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = activate(e.activation, v[j]);
    }
    if (e.residual != nullptr) {
        load_row(add, static_cast<const T*>(e.residual) + y * e.residual_row + x * e.residual_col,
                 e.residual_col, count);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] += add[j];
    }
}

// Any c, and with the epilogue: through shared memory as float32, up to 32 columns at a time, so that a
// thread has 8 elements of one row. `own`: the sums of kOwnColumns columns.
template <class W>
__device__ __forceinline__ void store_rows(const GemmWgmmaParams& p, const Part& part, const Place& at,
                                           const typename W::Sum (&own)[W::kParts][W::kOwnSums]) {
    using Out = typename W::Out;
    using Sum = typename W::Sum;
    constexpr int kChunk = W::kOwnColumns % 32 == 0 ? 32 : W::kOwnColumns % 16 == 0 ? 16 : 8;
    constexpr int kInPart = W::kOwnColumns / kChunk, kPieces = kChunk / 8;  // of 8 columns
    const GemmProblem& g = p.problem;
    const int thread = threadIdx.x % kWarpgroup, lane = thread % 32;
    Out* c = static_cast<Out*>(g.c) + at.batch[0] * batch_stride(g.c_batch, g.batch_rank, 0) +
             at.batch[1] * batch_stride(g.c_batch, g.batch_rank, 1);
    // 16-byte pieces of a row of 128 bytes, permuted as the copy engine's widest swizzle does.
    const auto piece = [&](int row, int index) { return part.staging + row * 128 + (index ^ row % 8) * 16; };
#pragma unroll 1
    for (int chunk = 0; chunk < W::kParts * kInPart; ++chunk) {
        named_barrier_sync(kStoreBarrier + part.consumer, kWarpgroup);  // what was there has been read
#pragma unroll
        for (int each = 0; each < W::kParts * kInPart; ++each) {  // registers have constant numbers
            if (each != chunk) continue;
#pragma unroll
            for (int j = 0; j < kPieces; ++j) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int row = thread / 32 * 16 + half * 8 + lane / 4;
                    const Sum* d = own[each / kInPart] + each % kInPart * (kChunk / 2) + j * 4 + half * 2;
                    *reinterpret_cast<Vector<Sum, 2>*>(piece(row, j * 2 + lane % 4 / 2) + lane % 2 * 8) = {
                        d[0], d[1]};
                }
            }
        }
        named_barrier_sync(kStoreBarrier + part.consumer, kWarpgroup);
        const std::int64_t row0 = part.row + chunk / kInPart * 64,
                           column0 = part.column + chunk % kInPart * kChunk;
#pragma unroll 1
        for (int id = thread; id < 64 * kPieces; id += kWarpgroup) {
            const int row = id / kPieces, index = id % kPieces;
            const std::int64_t y = row0 + row, x = column0 + index * 8;
            const int count = static_cast<int>(min(g.n - x, std::int64_t{8}));
            if (y >= g.m || count <= 0) continue;
            Sum v[8];
#pragma unroll
            for (int j = 0; j < 8; j += 4) {
                const auto four = *reinterpret_cast<const Vector<Sum, 4>*>(piece(row, index * 2 + j / 4));
#pragma unroll
                for (int l = 0; l < 4; ++l) v[j + l] = four.values[l];
            }
            if constexpr (std::is_same_v<Sum, float>) {
                if (changes(g.epilogue)) finish_row<Out>(g.epilogue, v, y, x, count);
            }
            store_row(c + y * g.c_row + x * g.c_col, g.c_col, v, count);
        }
    }
}

}  // namespace gpk::kernels
