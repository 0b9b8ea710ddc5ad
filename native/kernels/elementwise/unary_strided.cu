#include "kernels/device.cuh"
#include "kernels/elementwise/unary_functors.hpp"

namespace gpk::kernels {

template <class C>
__device__ __forceinline__ void put(const UnaryStridedParams& p, std::int64_t i, C value) {
    store_same<C>(p.out_dtype, p.out, i, value);
}
template <class C>
__device__ __forceinline__ void put(const UnaryStridedParams& p, std::int64_t i, bool value) {
    static_cast<std::uint8_t*>(p.out)[i] = value;
}

template <class C>
__device__ __forceinline__ void unary_strided_body(const UnaryStridedParams& p) {
    wait_for_predecessor();
    for (std::int64_t i = global_thread(); i < p.layout.count; i += grid_threads()) {
        std::int64_t at[2];
        p.layout.offsets(i, at);
        const C x = load<C>(p.x_dtype, p.x, at[1]);
        switch (p.op) {
#define GPK_CASE(name, rule)                                  \
    case UnaryOp::name:                                       \
        if constexpr (unary_computes<UnaryRule::rule, C>) {   \
            put<C>(p, at[0], unary_functors::name::apply(x)); \
        }                                                     \
        break;
            GPK_UNARY_OPS(GPK_CASE)
        }
    }
}

#define GPK_KERNEL(name, C)                                                                         \
    extern "C" __global__ void unary_strided_##name(const __grid_constant__ UnaryStridedParams p) { \
        unary_strided_body<C>(p);                                                                   \
    }
GPK_COMPUTE_TYPES(GPK_KERNEL)

}  // namespace gpk::kernels
