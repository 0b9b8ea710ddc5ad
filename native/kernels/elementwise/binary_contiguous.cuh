// The body of every contiguous binary kernel.
#pragma once

#include "kernels/elementwise/access.cuh"
#include "kernels/elementwise/binary_functors.hpp"

namespace gpk::kernels {

template <class T>
__device__ __forceinline__ compute_type_t<T> single_value(const Operand& operand) {
    using S = stored_t<T>;
    S value{};
    if (operand.kind == OperandKind::immediate) {
        memcpy(&value, &operand.bits, sizeof(S));
    } else if (operand.kind == OperandKind::element) {
        value = *static_cast<const S*>(operand.data);
    }
    return decode<T, compute_type_t<T>>(value);
}

template <class F, class T>
__device__ __forceinline__ void binary_contiguous_body(const BinaryContiguousParams& p) {
    wait_for_predecessor();
    using S = stored_t<T>;
    using C = compute_type_t<T>;
    using R = result_t<T, decltype(F::apply(C{}, C{}))>;
    constexpr int N = 16 / sizeof(S);

    const C a_value = single_value<T>(p.a), b_value = single_value<T>(p.b);
    const bool a_array = p.a.kind == OperandKind::array, b_array = p.b.kind == OperandKind::array;
    const std::int64_t packs = p.count / N;
    for (std::int64_t i = global_thread(); i < packs; i += grid_threads()) {
        Pack<S, N> a{}, b{};
        if (a_array) a = Pack<S, N>::load(p.a.data, i);
        if (b_array) b = Pack<S, N>::load(p.b.data, i);
        Pack<stored_t<R>, N> out;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            out.values[k] = encode<R>(F::apply(a_array ? decode<T, C>(a.values[k]) : a_value,
                                               b_array ? decode<T, C>(b.values[k]) : b_value));
        }
        out.store(p.out, i);
    }
    // The elements that fill no pack.
    const std::int64_t i = packs * N + global_thread();
    if (i < p.count) {
        const C a = a_array ? decode<T, C>(load_stored<T>(p.a.data, i)) : a_value;
        const C b = b_array ? decode<T, C>(load_stored<T>(p.b.data, i)) : b_value;
        static_cast<stored_t<R>*>(p.out)[i] = encode<R>(F::apply(a, b));
    }
}

#define GPK_CONTIGUOUS_KERNEL(op, dtype, T)                                            \
    extern "C" __global__ void binary_##op##_##dtype(                                  \
        const __grid_constant__ gpk::kernels::BinaryContiguousParams p) {              \
        gpk::kernels::binary_contiguous_body<gpk::kernels::binary_functors::op, T>(p); \
    }

}  // namespace gpk::kernels
