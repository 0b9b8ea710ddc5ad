// What a matrix product is to every kernel of this family: c[i, j] = sum over l of a[i, l] * b[l, j],
// for each batch. Strides are in elements and may be anything; c overlaps neither a nor b.
#pragma once

#include <cstdint>

#include "base/float_types.hpp"
#include "kernels/gemm/epilogue.hpp"

namespace gpk {

inline constexpr int kMaxBatchRank = 14;  // kMaxRank less the two dimensions of a matrix

// RMSNorm of a's rows before the product, rounded to a's type: see rms_norm.hpp.
struct GemmRowNorm {
    const void* weight = nullptr;  // [k], on 16 bytes; null: none
    float eps = 0;
};

struct GemmProblem {
    const void* a;
    const void* b;
    void* c;
    std::int64_t m, n, k;
    std::int64_t a_row, a_col;  // a: m x k
    std::int64_t b_row, b_col;  // b: k x n
    std::int64_t c_row, c_col;  // c: m x n
    std::int64_t batches;       // the product of batch_extents
    int batch_rank;
    std::int64_t batch_extents[kMaxBatchRank];
    std::int64_t a_batch[kMaxBatchRank];  // 0 where a is broadcast
    std::int64_t b_batch[kMaxBatchRank];
    std::int64_t c_batch[kMaxBatchRank];
    GemmEpilogue epilogue;  // of kernels that say so
    GemmBlockScales scales;
    GemmRowNorm norm;  // of kernels that say so
    // b was there before the work that comes before this on the stream: it may be read while that still runs.
    bool b_settled;
};

struct BatchOffsets {
    std::int64_t a = 0, b = 0, c = 0;
};

// In elements, for batch 0..batches-1 in row-major order of the batch dimensions.
GPK_HD BatchOffsets batch_offsets(const GemmProblem& p, std::int64_t batch) {
    BatchOffsets offsets;
    for (int i = p.batch_rank - 1; i >= 0; --i) {
        const std::int64_t rest = batch / p.batch_extents[i];
        const std::int64_t index = batch - rest * p.batch_extents[i];
        offsets.a += index * p.a_batch[i];
        offsets.b += index * p.b_batch[i];
        offsets.c += index * p.c_batch[i];
        batch = rest;
    }
    return offsets;
}

// The arithmetic of a product of elements T: what it runs in, one step, and the way back. Signed
// integers use their unsigned kernel: products that wrap have the same bits.
template <class T>
struct MultiplyAdd {
    using type = compute_t<T>;
    GPK_HD static type load(T value) { return convert<type>(value); }
    GPK_HD static void step(type& sum, type x, type y) { sum += x * y; }
    GPK_HD static T store(type value) { return convert<T>(value); }
};

template <class T>
struct NarrowMultiplyAdd {
    using type = std::uint32_t;
    GPK_HD static type load(T value) { return value; }
    GPK_HD static void step(type& sum, type x, type y) { sum += x * y; }
    GPK_HD static T store(type value) { return static_cast<T>(value); }
};
template <>
struct MultiplyAdd<std::int8_t> : NarrowMultiplyAdd<std::int8_t> {};  // to int32, in whose bits it wraps
template <>
struct MultiplyAdd<std::uint8_t> : NarrowMultiplyAdd<std::uint8_t> {};
template <>
struct MultiplyAdd<std::uint16_t> : NarrowMultiplyAdd<std::uint16_t> {};

// Any of (x and y).
template <>
struct MultiplyAdd<bool> {
    using type = std::uint32_t;
    GPK_HD static type load(bool value) { return value ? 1 : 0; }
    GPK_HD static void step(type& sum, type x, type y) { sum |= x & y; }
    GPK_HD static bool store(type value) { return value != 0; }
};

}  // namespace gpk
