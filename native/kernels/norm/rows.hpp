// How kernels of normalisations share rows among threads: the variants of each, and the choice of one.
//
// A row of n elements is held in registers, so it is read once and written once. Its threads are a warp or a
// part of one (several rows a block), a block, or, on SM 90 and newer, the blocks of a cluster. A row that is
// too long for that is read again for each step ("loop").
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "base/float_types.hpp"
#include "runtime/kernel.hpp"

// X(suffix of the symbol, dtype, C++ type, elements of an access, accesses of a thread: 0 for a loop)
#define GPK_ROW_VARIANTS(X)                     \
    X(f32_v1, float32, float, 4, 1)             \
    X(f32_v2, float32, float, 4, 2)             \
    X(f32_v4, float32, float, 4, 4)             \
    X(f32_v8, float32, float, 4, 8)             \
    X(f32_e8, float32, float, 1, 8)             \
    X(f32_v0, float32, float, 4, 0)             \
    X(f32_e0, float32, float, 1, 0)             \
    X(f16_v1, float16, ::gpk::float16, 8, 1)    \
    X(f16_v2, float16, ::gpk::float16, 8, 2)    \
    X(f16_v4, float16, ::gpk::float16, 8, 4)    \
    X(f16_e8, float16, ::gpk::float16, 1, 8)    \
    X(f16_v0, float16, ::gpk::float16, 8, 0)    \
    X(f16_e0, float16, ::gpk::float16, 1, 0)    \
    X(bf16_v1, bfloat16, ::gpk::bfloat16, 8, 1) \
    X(bf16_v2, bfloat16, ::gpk::bfloat16, 8, 2) \
    X(bf16_v4, bfloat16, ::gpk::bfloat16, 8, 4) \
    X(bf16_e8, bfloat16, ::gpk::bfloat16, 1, 8) \
    X(bf16_v0, bfloat16, ::gpk::bfloat16, 8, 0) \
    X(bf16_e0, bfloat16, ::gpk::bfloat16, 1, 0)

// What kernels have that keep no float32 of a row: twice the accesses.
#define GPK_LONG_ROW_VARIANTS(X)             \
    X(f16_v8, float16, ::gpk::float16, 8, 8) \
    X(bf16_v8, bfloat16, ::gpk::bfloat16, 8, 8)

namespace gpk::kernels {

struct RowVariant {
    Kernel kernel;
    DType dtype;
    int elements;  // of an access; more than one: rows, their lengths and addresses suit accesses of 16 bytes
    int accesses;  // of a thread; 0: any number, in a loop
};

// What a choice depends on.
struct RowShape {
    DType dtype;
    std::int64_t rows, n;
    bool aligned;  // all rows begin at 16 bytes, and n is a whole number of accesses of 16 bytes
    int multiprocessors;
    bool clusters;  // the device has them
};

struct RowPlan {
    const Kernel* kernel;
    LaunchConfig config;
};

// Of a block. Normalisations with a residual hold two rows for a while, so they have fewer.
inline constexpr int kMostRowThreads = 1024, kMostResidualThreads = 512;
// A cluster's, and the least accesses of the variants that have clusters.
inline constexpr int kMostClusterBlocks = 8, kClusterAccesses = 4;

// What rms_norm and layer_norm take. With a residual, x + residual, rounded to the elements' type, takes the
// place of x and is written to `sum`.
struct NormParams {
    const void* x;         // [rows, n]
    const void* residual;  // [rows, n], or null
    void* sum;             // [rows, n] where there is a residual; may be it
    const void* weight;    // [n], or null for ones
    const void* bias;      // [n], or null for zeros; of layer_norm
    void* y;               // [rows, n]; may be x
    std::int64_t rows;
    std::int64_t n;
    float share;  // 1 / n
    float eps;
};

// How a kernel wants rows that a block holds: accesses of a thread, in up to so many threads, where there are
// rows enough to fill the device. Longer rows take more of both.
struct RowTaste {
    int accesses, threads;
    int most_threads;  // of a block
};

// Of one kernel's variants, the one for that shape; rows and n are at least 1.
RowPlan plan_rows(std::span<const RowVariant> variants, const RowShape& shape, const RowTaste& taste);

}  // namespace gpk::kernels
