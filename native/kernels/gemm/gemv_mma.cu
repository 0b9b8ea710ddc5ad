#include "kernels/gemm/gemv_mma.hpp"

#include "kernels/gemm/gemv_mma.cuh"

namespace gpk::kernels {

namespace {

__device__ __forceinline__ std::uint32_t word(const uint4& words, int i) {
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// A warp takes kGroups * 16 columns of c, and of k pairs of 64-byte units in turn with the other warps: a
// lane loads 16 bytes of a row of the weights for each unit, kPairs pairs at a time.
template <class T, class Out, int kGroups, int kTiles, int kPairs>
__device__ __forceinline__ void gemv_mma_rows(const GemmProblem& p) {
    constexpr int kUnits = 2 * kPairs, kColumns = 16 * kGroups, kElements = 8 * kTiles * kColumns;
    __shared__ float parts[kGemvMmaWarps][kElements];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const std::int64_t blocks = team_blocks();
    const std::int64_t column0 = static_cast<std::int64_t>(blockIdx.x) / blocks * kColumns;
    const std::int64_t share = team_rank() * kGemvMmaWarps + warp, shares = blocks * kGemvMmaWarps;
    const std::int64_t chunks = p.k / 8, units = (chunks + 3) / 4, pairs = (units + 1) / 2;

    for (std::int64_t batch = blockIdx.y; batch < p.batches; batch += gridDim.y) {
        const BatchOffsets offsets = batch_offsets(p, batch);
        // Rows and columns past the end read the last one; nobody stores what comes of it.
        const T* x[kTiles];
        const T* weights[2 * kGroups];
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
            x[i] = static_cast<const T*>(p.a) + offsets.a + (8 * i + g < p.m ? 8 * i + g : p.m - 1) * p.a_row;
        }
#pragma unroll
        for (int j = 0; j < 2 * kGroups; ++j) {
            const std::int64_t column = column0 + 8 * j + g < p.n ? column0 + 8 * j + g : p.n - 1;
            weights[j] = static_cast<const T*>(p.b) + offsets.b + column * p.b_col;
        }
        float sums[kGroups][kTiles][4] = {};
        const auto step = [&](const uint4(&w)[2 * kGroups], const uint4(&v)[kTiles]) {
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
#pragma unroll
                for (int j = 0; j < kGroups; ++j) {
                    const uint4 &low = w[2 * j], &high = w[2 * j + 1];
                    multiply_add<T>(sums[j][i], low.x, high.x, low.y, high.y, v[i].x, v[i].y);
                    multiply_add<T>(sums[j][i], low.z, high.z, low.w, high.w, v[i].z, v[i].w);
                }
            }
        };
        for (std::int64_t pair = share; pair < pairs; pair += kPairs * shares) {
            uint4 w[kUnits][2 * kGroups], v[kUnits][kTiles];
#pragma unroll
            for (int u = 0; u < kUnits; ++u) {
                const std::int64_t chunk = ((pair + u / 2 * shares) * 2 + u % 2) * 4 + t;
                const bool inside = chunk < chunks;
#pragma unroll
                for (int j = 0; j < 2 * kGroups; ++j) {
                    w[u][j] = inside ? load_once(weights[j] + chunk * 8) : uint4{};
                }
#pragma unroll
                for (int i = 0; i < kTiles; ++i) {
                    v[u][i] = inside && 8 * i + g < p.m ? *reinterpret_cast<const uint4*>(x[i] + chunk * 8)
                                                        : uint4{};
                }
            }
#pragma unroll
            for (int u = 0; u < kUnits; ++u) step(w[u], v[u]);
        }
        if (p.k % 8 != 0 && share == shares - 1) {  // the rest of k, in the first lanes' chunk
            uint4 w[2 * kGroups], v[kTiles];
            const std::int64_t rest = t == 0 ? p.k % 8 : 0;
#pragma unroll
            for (int j = 0; j < 2 * kGroups; ++j) w[j] = load_some(weights[j] + chunks * 8, 1, rest);
#pragma unroll
            for (int i = 0; i < kTiles; ++i) v[i] = load_some(x[i] + chunks * 8, 1, rest);
            step(w, v);
        }
#pragma unroll
        for (int j = 0; j < kGroups; ++j) {
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    parts[warp][(8 * i + 2 * t + e % 2) * kColumns + 16 * j + 8 * (e / 2) + g] =
                        sums[j][i][e];
                }
            }
        }
        add_parts(parts, [&](int element, float sum) {
            const std::int64_t row = element / kColumns, column = column0 + element % kColumns;
            if (row < p.m && column < p.n) {
                static_cast<Out*>(p.c)[offsets.c + row * p.c_row + column * p.c_col] = convert<Out>(sum);
            }
        });
        __syncthreads();  // the next batch overwrites the parts
    }
}

// A warp takes 64 columns of c; a lane loads 8 columns of 4 rows of the weights for a step of 16 of k, kSteps
// steps at a time.
template <class T, class Out, int kTiles, int kSteps>
__device__ __forceinline__ void gemv_mma_columns(const GemmProblem& p) {
    constexpr int kColumns = 64, kElements = 8 * kTiles * kColumns;
    __shared__ float parts[kGemvMmaWarps][kElements];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const std::int64_t blocks = team_blocks();
    const std::int64_t column0 = static_cast<std::int64_t>(blockIdx.x) / blocks * kColumns;
    const std::int64_t share = team_rank() * kGemvMmaWarps + warp, shares = blocks * kGemvMmaWarps;
    const std::int64_t steps = (p.k + 15) / 16, columns = p.n - (column0 + 8 * g);  // may be negative

    for (std::int64_t batch = blockIdx.y; batch < p.batches; batch += gridDim.y) {
        const BatchOffsets offsets = batch_offsets(p, batch);
        const T* x = static_cast<const T*>(p.a) + offsets.a;
        const T* weights = static_cast<const T*>(p.b) + offsets.b + column0 + 8 * g;
        const bool x_in_fours =
            p.a_col == 1 && p.a_row % 4 == 0 && reinterpret_cast<std::uintptr_t>(x) % (4 * sizeof(T)) == 0;
        float sums[4][kTiles][4] = {};
        for (std::int64_t step0 = share; step0 < steps; step0 += kSteps * shares) {
            uint4 w[kSteps][4];
            uint2 v[kSteps][kTiles];
#pragma unroll
            for (int s = 0; s < kSteps; ++s) {
                const std::int64_t first = (step0 + s * shares) * 16 + 4 * t;
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    const T* from = weights + (first + r) * p.b_row;
                    w[s][r] = uint4{};
                    if (first + r < p.k) {
                        if (columns >= 8) {
                            w[s][r] = load_once(from);
                        } else if (columns > 0) {
                            w[s][r] = load_some(from, 1, columns);
                        }
                    }
                }
#pragma unroll
                for (int i = 0; i < kTiles; ++i) {
                    const std::int64_t row = 8 * i + g;
                    v[s][i] = uint2{};
                    if (row < p.m) {
                        const T* from = x + row * p.a_row + first * p.a_col;
                        if (x_in_fours && first + 4 <= p.k) {
                            v[s][i] = *reinterpret_cast<const uint2*>(from);
                        } else {
                            const std::int64_t left = p.k - first;
                            const uint4 some = load_some(from, p.a_col, left < 4 ? left : 4);
                            v[s][i] = {some.x, some.y};
                        }
                    }
                }
            }
#pragma unroll
            for (int s = 0; s < kSteps; ++s) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const std::uint32_t r0 = word(w[s][0], j), r1 = word(w[s][1], j), r2 = word(w[s][2], j),
                                        r3 = word(w[s][3], j);
                    const std::uint32_t a0 = __byte_perm(r0, r1, 0x5410), a1 = __byte_perm(r0, r1, 0x7632),
                                        a2 = __byte_perm(r2, r3, 0x5410), a3 = __byte_perm(r2, r3, 0x7632);
#pragma unroll
                    for (int i = 0; i < kTiles; ++i) {
                        multiply_add<T>(sums[j][i], a0, a1, a2, a3, v[s][i].x, v[s][i].y);
                    }
                }
            }
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    parts[warp][(8 * i + 2 * t + e % 2) * kColumns + 8 * g + 2 * j + e / 2] = sums[j][i][e];
                }
            }
        }
        add_parts(parts, [&](int element, float sum) {
            const std::int64_t row = element / kColumns, column = column0 + element % kColumns;
            if (row < p.m && column < p.n) {
                static_cast<Out*>(p.c)[offsets.c + row * p.c_row + column * p.c_col] = convert<Out>(sum);
            }
        });
        __syncthreads();
    }
}

}  // namespace

// As many loads in flight as leave room for two blocks on a multiprocessor.
#define GPK_X(T, type, Out, suffix, tiles)                                                      \
    extern "C" __global__ void __launch_bounds__(kGemvMmaThreads, 2)                            \
        gemv_mma_##type##suffix##_rows_tiles##tiles(const __grid_constant__ GemmProblem p) {    \
        wait_for_predecessor();                                                                 \
        gemv_mma_rows<T, Out, gemv_mma_rows_columns(tiles) / 16, tiles, tiles == 1 ? 4 : 2>(p); \
    }                                                                                           \
    extern "C" __global__ void __launch_bounds__(kGemvMmaThreads, 2)                            \
        gemv_mma_##type##suffix##_columns_tiles##tiles(const __grid_constant__ GemmProblem p) { \
        wait_for_predecessor();                                                                 \
        gemv_mma_columns<T, Out, tiles, 2>(p);                                                  \
    }
GPK_GEMV_MMA_ALL(GPK_X)
#undef GPK_X

}  // namespace gpk::kernels
