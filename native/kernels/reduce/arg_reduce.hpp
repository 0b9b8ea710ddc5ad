// arg_reduce: where the first largest (smallest) element is. A NaN is the largest and the smallest.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "kernels/reduce/layout.hpp"

namespace gpk {

class Kernel;

enum class ArgReduceOp : std::uint8_t { argmax, argmin };
inline constexpr int kArgReduceOpCount = 2;

struct ArgReduceParams {
    const void* input;
    std::int64_t* output;  // parts * outputs: indices among the reduced elements
    // Null, or where the elements at those indices go, in the type that they are compared in (compute_t):
    // what a second pass chooses from.
    void* values;
    // Null, or layout.count * outputs indices that stand for the elements' own: of a second pass.
    const std::int64_t* candidates;
    ReduceLayout layout;
};

template <class C, class Index = std::int64_t>
struct Candidate {
    C value;
    Index index;  // -1: none
};

template <bool kMax, class C, class Index>
GPK_HD bool arg_prefers(const Candidate<C, Index>& a, const Candidate<C, Index>& b) {
    if (a.index < 0 || b.index < 0) return b.index < 0;
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan || b_nan) return a_nan && (!b_nan || a.index < b.index);
    if (a.value == b.value) return a.index < b.index;
    return kMax ? a.value > b.value : a.value < b.value;
}

// X(symbol but for the walk, ArgReduceOp, DType, element type, is it the largest). bool runs as uint8.
#define GPK_ARG_REDUCE(X, op, is_max)                     \
    X(op##_int8, op, int8, std::int8_t, is_max)           \
    X(op##_int16, op, int16, std::int16_t, is_max)        \
    X(op##_int32, op, int32, std::int32_t, is_max)        \
    X(op##_int64, op, int64, std::int64_t, is_max)        \
    X(op##_uint8, op, uint8, std::uint8_t, is_max)        \
    X(op##_uint16, op, uint16, std::uint16_t, is_max)     \
    X(op##_uint32, op, uint32, std::uint32_t, is_max)     \
    X(op##_uint64, op, uint64, std::uint64_t, is_max)     \
    X(op##_float16, op, float16, gpk::float16, is_max)    \
    X(op##_bfloat16, op, bfloat16, gpk::bfloat16, is_max) \
    X(op##_float32, op, float32, float, is_max)           \
    X(op##_float64, op, float64, double, is_max)
#define GPK_ARG_REDUCE_KERNELS(X) GPK_ARG_REDUCE(X, argmax, true) GPK_ARG_REDUCE(X, argmin, false)

// Grid and block: as ReduceLayout says. Throws Error (type) for float8.
const Kernel& arg_reduce_kernel(ArgReduceOp op, DType dtype, ReduceWalk walk);

}  // namespace gpk
