#include "kernels/floats.hpp"
#include "kernels/recurrent/lstm.cuh"

namespace gpk::kernels {

namespace {

constexpr int kWarps = kLstmMmaThreads / 32;
constexpr int kTiles = kLstmMmaUnits / 4;  // of 16 rows of the weight: four gates of four units

__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                                    float16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                                    bfloat16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

struct Words {  // eight elements of a row
    unsigned word[4];
};
template <class T>
__device__ __forceinline__ Words read_words(const T* at) {
    const uint4 v = *reinterpret_cast<const uint4*>(at);
    return {{v.x, v.y, v.z, v.w}};
}

}  // namespace

// A block has eight units; its warps share out k, 32 at a time, and add up in shared memory. Of 32 along k a
// thread reads eight neighbours of a row, which stand for places 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of two
// mma: the order along k is the same in the weight and in h, so the sums are too. N tiles of eight rows of
// the batch at a time.
template <class T, int N>
__device__ __forceinline__ void lstm_mma_rows(const LstmParams& p, float4* shared) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
    const std::int64_t first_unit = std::int64_t{blockIdx.x} * kLstmMmaUnits;
    // Row r of a tile is gate r / 4 of unit r % 4; a thread has rows `group` and `group` + 8.
    const T* weight = static_cast<const T*>(p.weight) +
                      (group / 4 * p.hidden + first_unit + group % 4) * p.hidden + quad * 8;
    for (std::int64_t first_row = 0; first_row < p.batch; first_row += 8 * N) {
        const T* rows[N];
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const std::int64_t row =
                first_row + n * 8 + group < p.batch ? first_row + n * 8 + group : p.batch - 1;
            rows[n] = static_cast<const T*>(p.h) + row * p.h_stride + quad * 8;
        }
        float sums[kTiles][N][4] = {};
#pragma unroll 2
        for (std::int64_t k = warp * 32; k < p.hidden; k += kWarps * 32) {
            Words low[kTiles], high[kTiles], h[N];
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
                low[i] = read_words(weight + i * 4 * p.hidden + k);
                high[i] = read_words(weight + (i * 4 + 2 * p.hidden) * p.hidden + k);
            }
#pragma unroll
            for (int n = 0; n < N; ++n) h[n] = read_words(rows[n] + k);
#pragma unroll
            for (int s = 0; s < 2; ++s) {
#pragma unroll
                for (int i = 0; i < kTiles; ++i) {
                    const unsigned a[4] = {low[i].word[2 * s], high[i].word[2 * s], low[i].word[2 * s + 1],
                                           high[i].word[2 * s + 1]};
#pragma unroll
                    for (int n = 0; n < N; ++n)
                        mma(sums[i][n], a, h[n].word[2 * s], h[n].word[2 * s + 1], T());
                }
            }
        }
        // A warp each has one of the tiles to finish: group < 4 column 2 t of gates i and g, its partner
        // column 2 t + 1 of f and o, after they have exchanged what the other lacks.
        const int tile = warp / N, n = warp % N, column = 2 * quad + group / 4;
        const std::int64_t row = first_row + n * 8 + column, unit = first_unit + tile * 4 + group % 4;
        const bool has_unit = tile < kTiles && row < p.batch;
        const LstmUnit<T> state(p, has_unit ? row : 0, has_unit ? unit : 0);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
            for (int j = 0; j < N; ++j) {
                const float (&c)[4] = sums[i][j];
                shared[((i * N + j) * kWarps + warp) * 32 + lane] = {c[0], c[1], c[2], c[3]};
            }
        }
        __syncthreads();
        if (tile < kTiles) {
            float4 sum = {};
#pragma unroll
            for (int w = 0; w < kWarps; ++w) {
                const float4 part = shared[(warp * kWarps + w) * 32 + lane];
                sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
            }
            const bool first = group < 4;
            const float one = __shfl_xor_sync(0xffffffffu, first ? sum.y : sum.x, 16);
            const float two = __shfl_xor_sync(0xffffffffu, first ? sum.w : sum.z, 16);
            const float gates[4] = {first ? sum.x : one, first ? one : sum.y, first ? sum.z : two,
                                    first ? two : sum.w};
            if (has_unit) state.step(p, row, unit, gates);
        }
        __syncthreads();
    }
}

template <class T>
__device__ __forceinline__ void lstm_mma_kernel(const LstmParams& p) {
    __shared__ float4 shared[kTiles * 4 * kWarps * 32];
    wait_for_predecessor();
    if (p.batch <= 8) {
        lstm_mma_rows<T, 1>(p, shared);
    } else if (p.batch <= 16) {
        lstm_mma_rows<T, 2>(p, shared);
    } else {
        lstm_mma_rows<T, 4>(p, shared);
    }
}

extern "C" __global__ void __launch_bounds__(kLstmMmaThreads)
    lstm_mma_f16(const __grid_constant__ LstmParams p) {
    lstm_mma_kernel<float16>(p);
}
extern "C" __global__ void __launch_bounds__(kLstmMmaThreads)
    lstm_mma_bf16(const __grid_constant__ LstmParams p) {
    lstm_mma_kernel<bfloat16>(p);
}

}  // namespace gpk::kernels
