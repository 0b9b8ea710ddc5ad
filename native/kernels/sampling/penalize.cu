#include "kernels/sampling/penalize.hpp"

#include "kernels/device.cuh"
#include "kernels/floats.hpp"

namespace gpk::kernels {

namespace {

template <class T>
__device__ __forceinline__ void penalize_rows(const PenalizeParams& p) {
    wait_for_predecessor();
    for (std::int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
        const Penalties penalties(p, row);
        const T* logits = static_cast<const T*>(p.logits) + row * p.pitch;
        const std::int64_t first = row * p.n;
#pragma unroll 4
        for (std::int32_t i = static_cast<std::int32_t>(global_thread()); i < p.n;
             i += static_cast<std::int32_t>(grid_threads())) {
            float logit = convert<float>(logits[i]);
            if (p.bias != nullptr) logit += p.bias[row * p.bias_pitch + i];
            const std::int32_t count = p.counts != nullptr ? p.counts[first + i] : 0;
            p.out[first + i] = penalties.apply(logit, count, p.prompt != nullptr && p.prompt[first + i]);
        }
    }
}

}  // namespace

#define X(suffix, T)                                                  \
    extern "C" __global__ void __launch_bounds__(256)                 \
        penalize_##suffix(const __grid_constant__ PenalizeParams p) { \
        penalize_rows<T>(p);                                          \
    }
GPK_FLOAT_TYPES(X)
#undef X

}  // namespace gpk::kernels
