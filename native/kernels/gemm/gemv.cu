#include "kernels/gemm/gemv.hpp"

#include "kernels/device.cuh"

namespace gpk::kernels {

namespace {

// Weights are read once: they need not push other things out of L1.
template <class T>
__device__ __forceinline__ Vector<T, 16 / sizeof(T)> load_once(const T* from) {
    uint4 words;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
        : "l"(from));
    return detail::bit_cast<Vector<T, 16 / sizeof(T)>>(words);
}

template <class T>
__device__ __forceinline__ Vector<T, 16 / sizeof(T)> load(const T* from) {
    return *reinterpret_cast<const Vector<T, 16 / sizeof(T)>*>(from);
}

template <class T, int kRows>
__device__ __forceinline__ void gemv_rows(const GemmProblem& p) {
    constexpr int kChunk = 16 / sizeof(T);
    constexpr int kUnroll = kRows == 1 ? 4 : kRows == 2 ? 2 : 1;
    __shared__ float parts[kGemvThreads / 32][kRows * kGemvColumns];
    const int lane = threadIdx.x, share = threadIdx.y * 32 + lane, shares = blockDim.y * 32;
    const std::int64_t column0 =
        (static_cast<std::int64_t>(blockIdx.x) * blockDim.z + threadIdx.z) * kGemvColumns;
    const std::int64_t chunks = p.k / kChunk;

    for (std::int64_t batch = blockIdx.y; batch < p.batches; batch += gridDim.y) {
        const BatchOffsets offsets = batch_offsets(p, batch);
        // Rows and columns past the end read the last one; nobody stores what comes of it.
        const T* x[kRows];
        const T* weights[kGemvColumns];
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            x[i] = static_cast<const T*>(p.a) + offsets.a + (i < p.m ? i : p.m - 1) * p.a_row;
        }
#pragma unroll
        for (int j = 0; j < kGemvColumns; ++j) {
            const std::int64_t column = column0 + j < p.n ? column0 + j : p.n - 1;
            weights[j] = static_cast<const T*>(p.b) + offsets.b + column * p.b_col;
        }
        float sums[kRows][kGemvColumns] = {};
#pragma unroll kUnroll
        for (std::int64_t chunk = share; chunk < chunks; chunk += shares) {
            Vector<T, kChunk> w[kGemvColumns];
#pragma unroll
            for (int j = 0; j < kGemvColumns; ++j) w[j] = load_once(weights[j] + chunk * kChunk);
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                const Vector<T, kChunk> v = load(x[i] + chunk * kChunk);
#pragma unroll
                for (int e = 0; e < kChunk; ++e) {
#pragma unroll
                    for (int j = 0; j < kGemvColumns; ++j) {
                        sums[i][j] += convert<float>(v.values[e]) * convert<float>(w[j].values[e]);
                    }
                }
            }
        }
        for (std::int64_t l = chunks * kChunk + share; l < p.k; l += shares) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
#pragma unroll
                for (int j = 0; j < kGemvColumns; ++j) {
                    sums[i][j] += convert<float>(x[i][l]) * convert<float>(weights[j][l]);
                }
            }
        }
        const int warp = threadIdx.z * blockDim.y + threadIdx.y;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
            for (int j = 0; j < kGemvColumns; ++j) {
                const float sum = warp_reduce(sums[i][j], [](float u, float v) { return u + v; });
                if (lane == 0) parts[warp][i * kGemvColumns + j] = sum;
            }
        }
        __syncthreads();
        const int row = lane / kGemvColumns;
        const std::int64_t column = column0 + lane % kGemvColumns;
        if (threadIdx.y == 0 && lane < kRows * kGemvColumns && row < p.m && column < p.n) {
            float sum = 0;
            for (unsigned i = 0; i < blockDim.y; ++i) sum += parts[warp + i][lane];
            static_cast<T*>(p.c)[offsets.c + row * p.c_row + column * p.c_col] = convert<T>(sum);
        }
        __syncthreads();  // the next batch overwrites the parts
    }
}

template <class T>
__device__ __forceinline__ void gemv_columns(const GemmProblem& p) {
    constexpr int kChunk = 16 / sizeof(T), kShares = 32;
    __shared__ float parts[kShares][kGemvChunks * kChunk];
    const int first = threadIdx.x * kChunk, share = threadIdx.y;
    const std::int64_t column0 = static_cast<std::int64_t>(blockIdx.x) * kGemvChunks * kChunk + first;
    const int columns = p.n - column0 < kChunk ? static_cast<int>(p.n - column0) : kChunk;  // may be negative

    for (std::int64_t batch = blockIdx.y; batch < p.batches; batch += gridDim.y) {
        const BatchOffsets offsets = batch_offsets(p, batch);
        const T* x = static_cast<const T*>(p.a) + offsets.a;
        const T* weights = static_cast<const T*>(p.b) + offsets.b + column0;
        float sums[kChunk] = {};
        if (columns == kChunk) {
#pragma unroll 4
            for (std::int64_t l = share; l < p.k; l += kShares) {
                const Vector<T, kChunk> w = load_once(weights + l * p.b_row);
                const float v = convert<float>(x[l * p.a_col]);
#pragma unroll
                for (int e = 0; e < kChunk; ++e) sums[e] += v * convert<float>(w.values[e]);
            }
        } else {
            for (std::int64_t l = share; l < p.k; l += kShares) {
                const float v = convert<float>(x[l * p.a_col]);
#pragma unroll
                for (int e = 0; e < kChunk; ++e) {
                    if (e < columns) sums[e] += v * convert<float>(weights[l * p.b_row + e]);
                }
            }
        }
#pragma unroll
        for (int e = 0; e < kChunk; ++e) parts[share][first + e] = sums[e];
        __syncthreads();
        for (int step = kShares / 2; step > 0; step /= 2) {
            if (share < step) {
#pragma unroll
                for (int e = 0; e < kChunk; ++e) parts[share][first + e] += parts[share + step][first + e];
            }
            __syncthreads();
        }
        if (share == 0) {
#pragma unroll
            for (int e = 0; e < kChunk; ++e) {
                if (e < columns) {
                    static_cast<T*>(p.c)[offsets.c + (column0 + e) * p.c_col] =
                        convert<T>(parts[0][first + e]);
                }
            }
        }
        __syncthreads();
    }
}

}  // namespace

#define GPK_X(symbol, T, rows)                                 \
    extern "C" __global__ void __launch_bounds__(kGemvThreads) \
        symbol(const __grid_constant__ GemmProblem p) {        \
        wait_for_predecessor();                                \
        gemv_rows<T, rows>(p);                                 \
    }
GPK_GEMV_ROWS_KERNELS(GPK_X)
#undef GPK_X

#define GPK_X(symbol, T)                                       \
    extern "C" __global__ void __launch_bounds__(kGemvThreads) \
        symbol(const __grid_constant__ GemmProblem p) {        \
        wait_for_predecessor();                                \
        gemv_columns<T>(p);                                    \
    }
GPK_GEMV_COLUMNS_KERNELS(GPK_X)
#undef GPK_X

}  // namespace gpk::kernels
