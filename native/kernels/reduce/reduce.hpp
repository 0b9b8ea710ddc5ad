// reduce: sum, mean, prod, max, min, any, all over any dimensions of a strided input.
#pragma once

#include <cstdint>
#include <limits>

#include "base/dtype.hpp"
#include "base/float_types.hpp"
#include "kernels/reduce/layout.hpp"

namespace gpk {

class Kernel;

enum class ReduceOp : std::uint8_t { sum, mean, max, min, prod, any, all };
inline constexpr int kReduceOpCount = 7;

enum class ReduceStore : std::uint8_t { accumulator, float16, bfloat16 };

struct ReduceParams {
    const void* input;
    void* output;  // parts * outputs, in the type that `store` says
    ReduceLayout layout;
    double divisor;     // of the result, for a mean; 1 otherwise
    ReduceStore store;  // a 16-bit float where the accumulator is float32 and this is the last pass
};

// The larger (smaller) of two, NaN where one is.
template <class C>
GPK_HD C larger_or_nan(C a, C b) {
    return a > b || a != a ? a : b;
}
template <class C>
GPK_HD C smaller_or_nan(C a, C b) {
    return a < b || a != a ? a : b;
}
#ifdef __CUDA_ARCH__
template <>
GPK_HD float larger_or_nan(float a, float b) {
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
}
template <>
GPK_HD float smaller_or_nan(float a, float b) {
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
}
#endif

// What a reduction does to one element: load() makes it the accumulator's type, step() joins two.
// Integers add and multiply as unsigned ones, which wrap.
// Reductions of 16-bit floats run in float32. A NaN is the largest and the smallest.
template <class T, class Wide>
struct SumOf {
    template <class U>
    using Rebind = SumOf<U, Wide>;  // the same, of another element type
    using Input = T;
    using type = Wide;
    GPK_HD static type identity() { return 0; }
    GPK_HD static type load(T value) { return convert<type>(value); }
    GPK_HD static type step(type a, type b) { return a + b; }
};
template <class T, class Wide>
struct ProdOf {
    template <class U>
    using Rebind = ProdOf<U, Wide>;
    using Input = T;
    using type = Wide;
    GPK_HD static type identity() { return 1; }
    GPK_HD static type load(T value) { return convert<type>(value); }
    GPK_HD static type step(type a, type b) { return a * b; }
};
template <class T>
struct MaxOf {
    template <class U>
    using Rebind = MaxOf<U>;
    using Input = T;
    using type = compute_t<T>;
    static constexpr type kLowest = std::numeric_limits<type>::has_infinity
                                        ? -std::numeric_limits<type>::infinity()
                                        : std::numeric_limits<type>::lowest();
    GPK_HD static type identity() { return kLowest; }
    GPK_HD static type load(T value) { return convert<type>(value); }
    GPK_HD static type step(type a, type b) { return larger_or_nan(a, b); }
};
template <class T>
struct MinOf {
    template <class U>
    using Rebind = MinOf<U>;
    using Input = T;
    using type = compute_t<T>;
    static constexpr type kHighest = std::numeric_limits<type>::has_infinity
                                         ? std::numeric_limits<type>::infinity()
                                         : std::numeric_limits<type>::max();
    GPK_HD static type identity() { return kHighest; }
    GPK_HD static type load(T value) { return convert<type>(value); }
    GPK_HD static type step(type a, type b) { return smaller_or_nan(a, b); }
};
// A NaN is true, as in NumPy.
template <class T>
struct AnyOf {
    template <class U>
    using Rebind = AnyOf<U>;
    using Input = T;
    using type = std::uint8_t;
    GPK_HD static type identity() { return 0; }
    GPK_HD static type load(T value) { return convert<compute_t<T>>(value) != compute_t<T>(0); }
    GPK_HD static type step(type a, type b) { return a | b; }
};
template <class T>
struct AllOf {
    template <class U>
    using Rebind = AllOf<U>;
    using Input = T;
    using type = std::uint8_t;
    GPK_HD static type identity() { return 1; }
    GPK_HD static type load(T value) { return convert<compute_t<T>>(value) != compute_t<T>(0); }
    GPK_HD static type step(type a, type b) { return a & b; }
};

// X(symbol but for the walk, ReduceOp, DType of the elements, functor). bool runs as uint8; so do sums,
// products and truth of integers where their bits agree, and means of floats as their sums (kernel_dtype in
// reduce.cpp).
#define GPK_REDUCE_WIDE(X, op, Functor)                                        \
    X(reduce_##op##_int8, op, int8, Functor<std::int8_t, std::uint64_t>)       \
    X(reduce_##op##_int16, op, int16, Functor<std::int16_t, std::uint64_t>)    \
    X(reduce_##op##_int32, op, int32, Functor<std::int32_t, std::uint64_t>)    \
    X(reduce_##op##_uint8, op, uint8, Functor<std::uint8_t, std::uint64_t>)    \
    X(reduce_##op##_uint16, op, uint16, Functor<std::uint16_t, std::uint64_t>) \
    X(reduce_##op##_uint32, op, uint32, Functor<std::uint32_t, std::uint64_t>) \
    X(reduce_##op##_uint64, op, uint64, Functor<std::uint64_t, std::uint64_t>) \
    X(reduce_##op##_float16, op, float16, Functor<gpk::float16, float>)        \
    X(reduce_##op##_bfloat16, op, bfloat16, Functor<gpk::bfloat16, float>)     \
    X(reduce_##op##_float32, op, float32, Functor<float, float>)               \
    X(reduce_##op##_float64, op, float64, Functor<double, double>)
#define GPK_REDUCE_MEAN(X)                                            \
    X(reduce_mean_int8, mean, int8, SumOf<std::int8_t, double>)       \
    X(reduce_mean_int16, mean, int16, SumOf<std::int16_t, double>)    \
    X(reduce_mean_int32, mean, int32, SumOf<std::int32_t, double>)    \
    X(reduce_mean_int64, mean, int64, SumOf<std::int64_t, double>)    \
    X(reduce_mean_uint8, mean, uint8, SumOf<std::uint8_t, double>)    \
    X(reduce_mean_uint16, mean, uint16, SumOf<std::uint16_t, double>) \
    X(reduce_mean_uint32, mean, uint32, SumOf<std::uint32_t, double>) \
    X(reduce_mean_uint64, mean, uint64, SumOf<std::uint64_t, double>)
#define GPK_REDUCE_ORDER(X, op, Functor)                            \
    X(reduce_##op##_int8, op, int8, Functor<std::int8_t>)           \
    X(reduce_##op##_int16, op, int16, Functor<std::int16_t>)        \
    X(reduce_##op##_int32, op, int32, Functor<std::int32_t>)        \
    X(reduce_##op##_int64, op, int64, Functor<std::int64_t>)        \
    X(reduce_##op##_uint8, op, uint8, Functor<std::uint8_t>)        \
    X(reduce_##op##_uint16, op, uint16, Functor<std::uint16_t>)     \
    X(reduce_##op##_uint32, op, uint32, Functor<std::uint32_t>)     \
    X(reduce_##op##_uint64, op, uint64, Functor<std::uint64_t>)     \
    X(reduce_##op##_float16, op, float16, Functor<gpk::float16>)    \
    X(reduce_##op##_bfloat16, op, bfloat16, Functor<gpk::bfloat16>) \
    X(reduce_##op##_float32, op, float32, Functor<float>)           \
    X(reduce_##op##_float64, op, float64, Functor<double>)
#define GPK_REDUCE_TRUTH(X, op, Functor)                            \
    X(reduce_##op##_uint8, op, uint8, Functor<std::uint8_t>)        \
    X(reduce_##op##_uint16, op, uint16, Functor<std::uint16_t>)     \
    X(reduce_##op##_uint32, op, uint32, Functor<std::uint32_t>)     \
    X(reduce_##op##_uint64, op, uint64, Functor<std::uint64_t>)     \
    X(reduce_##op##_float16, op, float16, Functor<gpk::float16>)    \
    X(reduce_##op##_bfloat16, op, bfloat16, Functor<gpk::bfloat16>) \
    X(reduce_##op##_float32, op, float32, Functor<float>)           \
    X(reduce_##op##_float64, op, float64, Functor<double>)

// One list an image, so that no image takes long to compile.
#define GPK_REDUCE_SUM_KERNELS(X)    \
    GPK_REDUCE_WIDE(X, sum, SumOf)   \
    GPK_REDUCE_WIDE(X, prod, ProdOf) \
    GPK_REDUCE_MEAN(X)
#define GPK_REDUCE_ORDER_KERNELS(X) \
    GPK_REDUCE_ORDER(X, max, MaxOf) \
    GPK_REDUCE_ORDER(X, min, MinOf) \
    GPK_REDUCE_TRUTH(X, any, AnyOf) \
    GPK_REDUCE_TRUTH(X, all, AllOf)

// The kernel for elements of `dtype`. Grid and block: as ReduceLayout says. Throws Error (type) for float8.
const Kernel& reduce_kernel(ReduceOp op, DType dtype, ReduceWalk walk);
// The type of that kernel's accumulator: what a pass writes unless `store` says otherwise.
DType reduce_accumulator(ReduceOp op, DType dtype);

}  // namespace gpk
