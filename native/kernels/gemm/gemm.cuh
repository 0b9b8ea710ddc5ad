// One tile of a product on the ordinary arithmetic units.
#pragma once

#include "kernels/device.cuh"
#include "kernels/gemm/gemm.hpp"
#include "kernels/gemm/tiles.cuh"

namespace gpk::kernels {

namespace {

constexpr int kDepth = 16;  // of k at a time

// This thread's share of a kTile x kDepth part of an operand, on its way to shared memory. Neighbouring
// threads take neighbouring elements along whichever of the two dimensions is contiguous.
template <class T, int kTile>
struct Share {
    static constexpr int kCount = kTile * kDepth / kGemmThreads;
    using M = MultiplyAdd<T>;

    const T* base;                // this thread's first element of the next part
    std::int64_t k_stride, step;  // elements between two of this thread's
    int index, depth, index_step, depth_step;
    T values[kCount];

    __device__ __forceinline__ Share(const T* tile, std::int64_t index_stride, std::int64_t k_stride_)
        : k_stride(k_stride_) {
        const bool along_k = k_stride == 1;
        const int t = threadIdx.x;
        index = along_k ? t / kDepth : t % kTile;
        depth = along_k ? t % kDepth : t / kTile;
        index_step = along_k ? kGemmThreads / kDepth : 0;
        depth_step = along_k ? 0 : kGemmThreads / kTile;
        step = index_step * index_stride + depth_step * k_stride;
        base = tile + index * index_stride + depth * k_stride;
    }

    // The next kDepth of k, of which only `left` exist, as do only `count` rows (columns) of the tile.
    __device__ __forceinline__ void load(std::int64_t left, int count) {
        const int depths = left < kDepth ? static_cast<int>(left) : kDepth;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const bool inside = index + i * index_step < count && depth + i * depth_step < depths;
            values[i] = inside ? base[i * step] : M::store(typename M::type(0));
        }
        base += kDepth * k_stride;
    }

    template <int kPitch>
    __device__ __forceinline__ void store(typename M::type (&to)[kDepth][kPitch]) const {
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            to[depth + i * depth_step][index + i * index_step] = M::load(values[i]);
    }
};

// Thread (x, y) of 16 x 16 owns rows and columns in runs of four: y * 4 + 0..3, and 64 further on.
template <int kTile>
__device__ __forceinline__ int owned(int thread, int i) {
    return i / 4 * 64 + thread * 4 + i % 4;
}

template <class C, int kPer, int kTile>
__device__ __forceinline__ void load_owned(C (&to)[kPer], const C* row, int thread) {
    constexpr int kWide = 16 / sizeof(C);
#pragma unroll
    for (int i = 0; i < kPer; i += kWide) {
        const auto wide = *reinterpret_cast<const Vector<C, kWide>*>(row + owned<kTile>(thread, i));
#pragma unroll
        for (int j = 0; j < kWide; ++j) to[i + j] = wide.values[j];
    }
}

// The tile of each batch that falls to this block.
template <class T, int kTile>
__device__ __forceinline__ void gemm_tile(const GemmProblem& p, const Tile& tile) {
    using M = MultiplyAdd<T>;
    using C = typename M::type;
    constexpr int kPer = kTile / 16, kPitch = kTile + 4;
    __shared__ __align__(16) C a_tile[2][kDepth][kPitch];
    __shared__ __align__(16) C b_tile[2][kDepth][kPitch];
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    const std::int64_t row0 = tile.row * kTile, column0 = tile.column * kTile;
    const int rows = p.m - row0 < kTile ? static_cast<int>(p.m - row0) : kTile;
    const int columns = p.n - column0 < kTile ? static_cast<int>(p.n - column0) : kTile;

    for (std::int64_t batch = blockIdx.y; batch < p.batches; batch += gridDim.y) {
        const BatchOffsets offsets = batch_offsets(p, batch);
        Share<T, kTile> a(static_cast<const T*>(p.a) + offsets.a + row0 * p.a_row, p.a_row, p.a_col);
        Share<T, kTile> b(static_cast<const T*>(p.b) + offsets.b + column0 * p.b_col, p.b_col, p.b_row);
        C sums[kPer][kPer] = {};
        a.load(p.k, rows);
        b.load(p.k, columns);
        int now = 0;
        a.store(a_tile[now]);
        b.store(b_tile[now]);
        __syncthreads();
        for (std::int64_t k0 = 0; k0 < p.k; k0 += kDepth) {
            const bool more = k0 + kDepth < p.k;
            if (more) {
                a.load(p.k - k0 - kDepth, rows);
                b.load(p.k - k0 - kDepth, columns);
            }
#pragma unroll
            for (int l = 0; l < kDepth; ++l) {
                C left[kPer], right[kPer];
                load_owned<C, kPer, kTile>(left, a_tile[now][l], y);
                load_owned<C, kPer, kTile>(right, b_tile[now][l], x);
#pragma unroll
                for (int i = 0; i < kPer; ++i) {
#pragma unroll
                    for (int j = 0; j < kPer; ++j) M::step(sums[i][j], left[i], right[j]);
                }
            }
            if (more) {
                now ^= 1;
                a.store(a_tile[now]);
                b.store(b_tile[now]);
            }
            __syncthreads();
        }
        T* c = static_cast<T*>(p.c) + offsets.c + row0 * p.c_row + column0 * p.c_col;
#pragma unroll
        for (int i = 0; i < kPer; ++i) {
            const int row = owned<kTile>(y, i);
            if (row >= rows) continue;
            T* line = c + row * p.c_row;
#pragma unroll
            for (int j = 0; j < kPer; ++j) {
                const int column = owned<kTile>(x, j);
                if (column < columns) line[column * p.c_col] = M::store(sums[i][j]);
            }
        }
        __syncthreads();  // the next batch overwrites the tiles
    }
}

}  // namespace

}  // namespace gpk::kernels
