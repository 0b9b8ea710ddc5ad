#include "kernels/norm/softmax_columns.hpp"

#include "kernels/floats.hpp"
#include "kernels/norm/exp_below.cuh"
#include "kernels/norm/rows.cuh"

namespace gpk::kernels {

namespace {

// A thread has N columns: their sums first, and what they become in a second reading.
template <class T, int N>
__device__ __forceinline__ void softmax_of_columns(const SoftmaxColumnsParams& p) {
    using Vec = Vector<T, N>;
    constexpr int kInFlight = 4;
    __shared__ OnlineSum<T> shared[kColumnRows][kColumnLanes][N + 1];
    const std::int64_t columns = p.inner / N, outer = blockIdx.x / p.column_blocks;
    const std::int64_t column =
        static_cast<std::int64_t>(blockIdx.x - outer * p.column_blocks) * kColumnLanes + threadIdx.x;
    const std::int64_t first = outer * p.n * columns + column;
    const Vec* x = static_cast<const Vec*>(p.x) + first;
    Vec* y = static_cast<Vec*>(p.y) + first;
    OnlineSum<T> sums[N];
#pragma unroll
    for (int j = 0; j < N; ++j) sums[j] = OnlineSum<T>::nothing();
    if (column < columns) {
        for (std::int64_t k = threadIdx.y; k < p.n; k += kInFlight * kColumnRows) {
            Vec v[kInFlight];
#pragma unroll
            for (int f = 0; f < kInFlight; ++f) {
                const std::int64_t row = k + f * kColumnRows;
                v[f] = x[(row < p.n ? row : k) * columns];  // past the end again the first, not added
            }
#pragma unroll
            for (int j = 0; j < N; ++j) {
                float top = float(v[0].values[j]);
#pragma unroll
                for (int f = 1; f < kInFlight; ++f) top = max_or_nan(top, float(v[f].values[j]));
                sums[j].raise(top);
#pragma unroll
                for (int f = 0; f < kInFlight; ++f) {
                    if (k + f * kColumnRows < p.n) sums[j].add(float(v[f].values[j]));
                }
            }
        }
    }
#pragma unroll
    for (int j = 0; j < N; ++j) shared[threadIdx.y][threadIdx.x][j] = sums[j];
    __syncthreads();
    if (column >= columns) return;
    float top[N], scale[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
        top[j] = -INFINITY;
        for (int r = 0; r < kColumnRows; ++r) top[j] = max_or_nan(top[j], shared[r][threadIdx.x][j].top);
        float sum = 0;
        for (int r = 0; r < kColumnRows; ++r) {
            const OnlineSum<T> part = shared[r][threadIdx.x][j];
            if (part.top != -INFINITY) sum += part.sum * exp_below<T>(part.top, top[j]);
        }
        scale[j] = 1.0f / sum;
    }
#pragma unroll 4
    for (std::int64_t k = threadIdx.y; k < p.n; k += kColumnRows) {
        Vec v = x[k * columns];
#pragma unroll
        for (int j = 0; j < N; ++j) v.values[j] = T(exp_below<T>(float(v.values[j]), top[j]) * scale[j]);
        y[k * columns] = v;
    }
}

}  // namespace

#define X(suffix, T)                                                               \
    extern "C" __global__ void __launch_bounds__(kColumnLanes* kColumnRows)        \
        softmax_columns_##suffix(const __grid_constant__ SoftmaxColumnsParams p) { \
        wait_for_predecessor();                                                    \
        if (p.vectorized) {                                                        \
            softmax_of_columns<T, 16 / sizeof(T)>(p);                              \
        } else {                                                                   \
            softmax_of_columns<T, 1>(p);                                           \
        }                                                                          \
    }
GPK_FLOAT_TYPES(X)
#undef X

}  // namespace gpk::kernels
