#include "kernels/norm/softmax.hpp"

#include "kernels/device.cuh"
#include "kernels/floats.hpp"

namespace gpk::kernels {

// One block a row. Maximum and sum come from one pass (Milakov & Gimelshein 2018, arXiv:1805.02867):
// each thread keeps the sum relative to its own maximum, and the block rescales them to the common one.
template <class T>
__device__ __forceinline__ void softmax_rows(const SoftmaxParams& p) {
    wait_for_predecessor();
    __shared__ float shared[32];
    const auto add = [](float a, float b) { return a + b; };
    // Keeps a NaN, so that a row with one becomes NaN throughout, as in NumPy.
    const auto larger = [](float a, float b) { return a > b || a != a ? a : b; };
    for (std::int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const T* x = static_cast<const T*>(p.x) + row * p.n;
        T* y = static_cast<T*>(p.y) + row * p.n;
        float highest = -INFINITY, sum = 0;
        for (std::int64_t i = threadIdx.x; i < p.n; i += blockDim.x) {
            const float value = float(x[i]);
            if (!(value <= highest)) {
                sum = highest == -INFINITY ? 0.0f : sum * expf(highest - value);
                highest = value;
            }
            sum += value == -INFINITY ? 0.0f : expf(value - highest);
        }
        const float top = block_reduce(highest, larger, -INFINITY, shared);
        sum = block_reduce(highest == -INFINITY ? 0.0f : sum * expf(highest - top), add, 0.0f, shared);
        for (std::int64_t i = threadIdx.x; i < p.n; i += blockDim.x) {
            y[i] = T(expf(float(x[i]) - top) / sum);
        }
    }
}

#define X(suffix, T)                                                                       \
    extern "C" __global__ void softmax_##suffix(const __grid_constant__ SoftmaxParams p) { \
        softmax_rows<T>(p);                                                                \
    }
GPK_FLOAT_TYPES(X)
#undef X

}  // namespace gpk::kernels
