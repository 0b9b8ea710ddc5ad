#include "kernels/floats.hpp"
#include "kernels/recurrent/lstm.cuh"

namespace gpk::kernels {

// Each lane's share of the products of a unit's four rows of the weight with R rows of h. Rows past the batch
// repeat the last one: what comes of them is dropped.
template <class T, int R, int N>
__device__ __forceinline__ void lstm_sums(const LstmParams& p, std::int64_t unit, std::int64_t first_row,
                                          float (&sums)[R * 4]) {
    using Vec = Vector<T, N>;
    const T* weight = static_cast<const T*>(p.weight) + unit * p.hidden;
    const T* rows[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const std::int64_t row = first_row + r < p.batch ? first_row + r : p.batch - 1;
        rows[r] = static_cast<const T*>(p.h) + row * p.h_stride;
    }
#pragma unroll 2  // so that the loads of two are under way
    for (std::int64_t k = threadIdx.x % 32 * N; k < p.hidden; k += 32 * N) {
        Vec w[4], h[R];
#pragma unroll
        for (int g = 0; g < 4; ++g)
            w[g] = *reinterpret_cast<const Vec*>(weight + g * p.hidden * p.hidden + k);
#pragma unroll
        for (int r = 0; r < R; ++r) h[r] = *reinterpret_cast<const Vec*>(rows[r] + k);
#pragma unroll
        for (int j = 0; j < N; ++j) {
#pragma unroll
            for (int r = 0; r < R; ++r) {
                const float value = float(h[r].values[j]);
#pragma unroll
                for (int g = 0; g < 4; ++g) sums[r * 4 + g] += float(w[g].values[j]) * value;
            }
        }
    }
}

// Adds up over the warp: lane i gets the sum of everyone's i-th of 32 values, in 31 exchanges.
template <int half = 16>
__device__ __forceinline__ float sum_of_lane(float (&values)[32]) {
    const bool upper = threadIdx.x & half;
#pragma unroll
    for (int i = 0; i < half; ++i) {
        const float mine = upper ? values[i + half] : values[i];
        const float others = upper ? values[i] : values[i + half];
        values[i] = mine + __shfl_xor_sync(0xffffffffu, others, half);
    }
    if constexpr (half > 1) return sum_of_lane<half / 2>(values);
    return values[0];
}

// A warp has a unit, and all rows of the batch: one alone, or eight at a time.
template <class T, int N>
__device__ __forceinline__ void lstm_fused(const LstmParams& p) {
    const std::int64_t unit = global_thread() / 32;
    const int lane = threadIdx.x % 32;
    if (unit >= p.hidden) return;
    if (p.batch == 1) {
        float sums[4] = {};
        lstm_sums<T, 1, N>(p, unit, 0, sums);
#pragma unroll
        for (float& sum : sums) sum = warp_reduce(sum, [](float x, float y) { return x + y; });
        if (lane == 0) LstmUnit<T>(p, 0, unit).step(p, 0, unit, sums);
        return;
    }
    for (std::int64_t row = 0; row < p.batch; row += kLstmRows) {
        float sums[kLstmRows * 4] = {};
        lstm_sums<T, kLstmRows, N>(p, unit, row, sums);
        const float own = sum_of_lane(sums);  // of row lane / 4, gate lane % 4
        float gates[4];
#pragma unroll
        for (int g = 0; g < 4; ++g) gates[g] = __shfl_sync(0xffffffffu, own, lane / 4 * 4 + g);
        const std::int64_t own_row = row + lane / 4;
        if (lane % 4 == 0 && own_row < p.batch) LstmUnit<T>(p, own_row, unit).step(p, own_row, unit, gates);
    }
}

template <class T>
__device__ __forceinline__ void lstm_kernel(const LstmParams& p) {
    wait_for_predecessor();
    if (p.h_gates != nullptr) {
        for (std::int64_t i = global_thread(); i < p.batch * p.hidden; i += grid_threads()) {
            const std::int64_t row = i / p.hidden, unit = i % p.hidden;
            float sums[4];
#pragma unroll
            for (int g = 0; g < 4; ++g)
                sums[g] = float(static_cast<const T*>(p.h_gates)[(row * 4 + g) * p.hidden + unit]);
            LstmUnit<T>(p, row, unit).step(p, row, unit, sums);
        }
    } else if (p.vectorized) {
        lstm_fused<T, 16 / sizeof(T)>(p);
    } else {
        lstm_fused<T, 1>(p);
    }
}

#define X(suffix, T)                                           \
    extern "C" __global__ void __launch_bounds__(kLstmThreads) \
        lstm_##suffix(const __grid_constant__ LstmParams p) {  \
        lstm_kernel<T>(p);                                     \
    }
GPK_FLOAT_TYPES(X)
#undef X

}  // namespace gpk::kernels
