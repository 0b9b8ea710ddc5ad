#include "kernels/device.cuh"
#include "kernels/elementwise/binary_functors.hpp"

namespace gpk::kernels {

template <class C>
__device__ __forceinline__ C operand_value(const Operand& operand, std::int64_t i) {
    return operand.kind == OperandKind::immediate ? load<C>(operand.dtype, &operand.bits, 0)
                                                  : load<C>(operand.dtype, operand.data, i);
}

template <class C>
__device__ __forceinline__ void put(const BinaryStridedParams& p, std::int64_t i, C value) {
    store_same<C>(p.out_dtype, p.out, i, value);
}
template <class C>
__device__ __forceinline__ void put(const BinaryStridedParams& p, std::int64_t i, bool value) {
    static_cast<std::uint8_t*>(p.out)[i] = value;
}

template <class C>
__device__ __forceinline__ void binary_strided_body(const BinaryStridedParams& p) {
    wait_for_predecessor();
    for (std::int64_t i = global_thread(); i < p.layout.count; i += grid_threads()) {
        std::int64_t at[3];
        p.layout.offsets(i, at);
        const C a = operand_value<C>(p.a, at[1]), b = operand_value<C>(p.b, at[2]);
        switch (p.op) {
#define GPK_CASE(name, rule)                                      \
    case BinaryOp::name:                                          \
        if constexpr (binary_computes<BinaryRule::rule, C>) {     \
            put<C>(p, at[0], binary_functors::name::apply(a, b)); \
        }                                                         \
        break;
            GPK_BINARY_OPS(GPK_CASE)
        }
    }
}

#define GPK_KERNEL(name, C)                                                                           \
    extern "C" __global__ void binary_strided_##name(const __grid_constant__ BinaryStridedParams p) { \
        binary_strided_body<C>(p);                                                                    \
    }
GPK_COMPUTE_TYPES(GPK_KERNEL)

}  // namespace gpk::kernels
