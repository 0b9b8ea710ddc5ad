// The body of every binary kernel that moves packs.
#pragma once

#include "kernels/elementwise/access.cuh"
#include "kernels/elementwise/binary_functors.hpp"

namespace gpk::kernels {

// One side of an op: N values at a time in the compute type.
template <class T, int N>
class PackSide {
   public:
    using S = stored_t<T>;
    using C = compute_type_t<T>;

    __device__ __forceinline__ explicit PackSide(const Operand& operand) : operand_(operand) {
        if (operand.kind != OperandKind::immediate) return;
        S value;
        memcpy(&value, &operand.bits, sizeof(S));
        one_ = decode<T, C>(value);
    }
    // Before any value is used, so that both sides' loads are under way together.
    __device__ __forceinline__ void load(std::int64_t at) {
        if (operand_.kind == OperandKind::array) {
            pack_ = Pack<S, N>::load(operand_.data, at);
        } else if (operand_.kind == OperandKind::element) {
            one_ = decode<T, C>(load_stored<T>(operand_.data, at));
        }
    }
    __device__ __forceinline__ C value(int k) const {
        return operand_.kind == OperandKind::array ? decode<T, C>(pack_.values[k]) : one_;
    }

   private:
    const Operand& operand_;
    Pack<S, N> pack_;
    C one_;
};

template <class F, class T, int N>
__device__ __forceinline__ void binary_pack(const BinaryPacksParams& p, std::int64_t i, std::int64_t a_at,
                                            std::int64_t b_at) {
    using C = compute_type_t<T>;
    using R = result_t<T, decltype(F::apply(C{}, C{}))>;
    PackSide<T, N> a(p.a), b(p.b);
    a.load(a_at);
    b.load(b_at);
    Pack<stored_t<R>, N> out;
#pragma unroll
    for (int k = 0; k < N; ++k) out.values[k] = encode<R>(F::apply(a.value(k), b.value(k)));
    out.store(p.out, i);
}

template <class F, class T>
__device__ __forceinline__ void binary_packs_body(const BinaryPacksParams& p) {
    wait_for_predecessor();
    constexpr int N = 16 / sizeof(stored_t<T>);
    const std::int64_t packs = p.count / N, i = global_thread();
    if (i < packs) {
        std::int64_t at[2];
        p.layout.offsets(i, at);
        binary_pack<F, T, N>(p, i, at[0], at[1]);
        return;
    }
    // The elements that fill no pack, where there is but one axis.
    const std::int64_t element = packs * N + i - packs;
    if (element < p.count) {
        binary_pack<F, T, 1>(p, element, element * p.layout.axis[0].stride[0],
                             element * p.layout.axis[0].stride[1]);
    }
}

#define GPK_PACKS_KERNEL(op, dtype, T)                                            \
    extern "C" __global__ void binary_##op##_##dtype(                             \
        const __grid_constant__ gpk::kernels::BinaryPacksParams p) {              \
        gpk::kernels::binary_packs_body<gpk::kernels::binary_functors::op, T>(p); \
    }

}  // namespace gpk::kernels
