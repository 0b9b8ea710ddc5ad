#include "kernels/gemm/gemv.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "kernels/gemm/gemv_host.hpp"
#include "kernels/gemm/gemv_mma.hpp"
#include "kernels/host.hpp"
#include "kernels/widen.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_gemv;

namespace kernels {

namespace {

typedef float Floats __attribute__((vector_size(64)));
typedef std::uint32_t Words __attribute__((vector_size(64)));
typedef std::int32_t Signed __attribute__((vector_size(64)));
typedef std::uint16_t Halves __attribute__((vector_size(32)));
typedef std::int16_t SignedHalves __attribute__((vector_size(32)));
typedef float LooseFloats __attribute__((vector_size(64), aligned(4), may_alias));
typedef std::uint16_t LooseHalves __attribute__((vector_size(32), aligned(2), may_alias));
constexpr int kWide = 16;
constexpr int kMaxRows = std::max(kMaxGemvRows, kMaxGemvMmaRows);

// How 16 weights become float32, up to a power of two that the activations carry instead.
//
// float16: sign, exponent and fraction moved to their places in a float32 give the value times
// 2^(15 - 127), subnormals too. Infinity and NaN come out finite: a row that holds one is done again by
// the plain way.
template <class T>
struct Weights;
template <>
struct Weights<float> {
    static constexpr float kScale = 1;
};
template <>
struct Weights<bfloat16> {
    static constexpr float kScale = 1;
};
template <>
struct Weights<float16> {
    static constexpr float kScale = 0x1p112f;
};

#define GPK_LOAD_float(to, from) to = *reinterpret_cast<const LooseFloats*>(from)
#define GPK_LOAD_bfloat16(to, from) \
    to = reinterpret_cast<Floats>(  \
        __builtin_convertvector(*reinterpret_cast<const LooseHalves*>(from), Words) << 16)
#define GPK_LOAD_float16(to, from)                                                                \
    to = reinterpret_cast<Floats>(                                                                \
        (__builtin_convertvector(                                                                 \
             reinterpret_cast<SignedHalves>(*reinterpret_cast<const LooseHalves*>(from)), Signed) \
         << 13) &                                                                                 \
        static_cast<std::int32_t>(0x8fffe000))

// y[i] = dot(w, x_i) for the rows of x, `pitch` apart.
#define GPK_DOT(T)                                                                                  \
    GPK_SIMD void dot_##T(const T* w, const float* x, std::int64_t pitch, int rows, std::int64_t k, \
                          float* y) {                                                               \
        const std::int64_t whole = k / (4 * kWide) * (4 * kWide);                                   \
        for (int i = 0; i < rows; ++i, x += pitch) {                                                \
            Floats s0 = {}, s1 = {}, s2 = {}, s3 = {};                                              \
            for (std::int64_t l = 0; l < whole; l += 4 * kWide) {                                   \
                Floats w0, w1, w2, w3;                                                              \
                GPK_LOAD_##T(w0, w + l);                                                            \
                GPK_LOAD_##T(w1, w + l + kWide);                                                    \
                GPK_LOAD_##T(w2, w + l + 2 * kWide);                                                \
                GPK_LOAD_##T(w3, w + l + 3 * kWide);                                                \
                s0 += w0 * *reinterpret_cast<const LooseFloats*>(x + l);                            \
                s1 += w1 * *reinterpret_cast<const LooseFloats*>(x + l + kWide);                    \
                s2 += w2 * *reinterpret_cast<const LooseFloats*>(x + l + 2 * kWide);                \
                s3 += w3 * *reinterpret_cast<const LooseFloats*>(x + l + 3 * kWide);                \
            }                                                                                       \
            s0 = (s0 + s1) + (s2 + s3);                                                             \
            float sum = 0;                                                                          \
            for (int e = 0; e < kWide; ++e) sum += s0[e];                                           \
            for (std::int64_t l = whole; l < k; ++l) {                                              \
                sum += convert<float>(w[l]) * (x[l] * (1 / Weights<T>::kScale));                    \
            }                                                                                       \
            y[i] = sum;                                                                             \
        }                                                                                           \
    }
GPK_DOT(float)
GPK_DOT(bfloat16)
GPK_DOT(float16)

// Whether a row of float16 holds an infinity or a NaN.
GPK_SIMD bool has_special(const float16* w, std::int64_t k) {
    std::uint16_t largest = 0;
    for (std::int64_t l = 0; l < k; ++l) largest = std::max<std::uint16_t>(largest, w[l].bits & 0x7fff);
    return largest >= 0x7c00;
}

template <class T>
void dot(const T* w, const float* x, std::int64_t pitch, int rows, std::int64_t k, float* y) {
    if constexpr (std::is_same_v<T, float>) {
        dot_float(w, x, pitch, rows, k, y);
    } else if constexpr (std::is_same_v<T, bfloat16>) {
        dot_bfloat16(w, x, pitch, rows, k, y);
    } else {
        if (!has_special(w, k)) return dot_float16(w, x, pitch, rows, k, y);
        for (int i = 0; i < rows; ++i) {
            y[i] = 0;
            for (std::int64_t l = 0; l < k; ++l) {
                y[i] += convert<float>(w[l]) * (x[i * pitch + l] * (1 / Weights<T>::kScale));
            }
        }
    }
}

// One row of activations, in float32 and times Weights<T>::kScale.
template <class T>
void widen_row(const T* from, std::int64_t step, std::int64_t count, float* to) {
    if constexpr (is_small_float<T>) {
        if (step == 1) return widen(from, to, count, Weights<T>::kScale);
    }
    for (std::int64_t i = 0; i < count; ++i) to[i] = convert<float>(from[i * step]) * Weights<T>::kScale;
}

}  // namespace

template <class T, class Out>
void gemv_rows_host(const GemmProblem& p) {
    constexpr std::int64_t kColumns = 32;  // a task's
    const std::int64_t tasks = (p.n + kColumns - 1) / kColumns;
    const int rows = static_cast<int>(p.m);
    parallel_for(p.batches * tasks, 1, [&](std::int64_t begin, std::int64_t end) {
        thread_local std::vector<float> x;
        x.resize(static_cast<std::size_t>(p.m * p.k));
        float y[kMaxRows];
        std::int64_t batch = -1;  // that x holds
        BatchOffsets offsets;
        for (std::int64_t task = begin; task < end; ++task) {
            if (task / tasks != batch) {
                batch = task / tasks;
                offsets = batch_offsets(p, batch);
                const T* a = static_cast<const T*>(p.a) + offsets.a;
                for (int i = 0; i < rows; ++i) widen_row(a + i * p.a_row, 1, p.k, x.data() + i * p.k);
            }
            const std::int64_t first = task % tasks * kColumns;
            for (std::int64_t j = first; j < std::min(first + kColumns, p.n); ++j) {
                dot(static_cast<const T*>(p.b) + offsets.b + j * p.b_col, x.data(), p.k, rows, p.k, y);
                Out* c = static_cast<Out*>(p.c) + offsets.c + j * p.c_col;
                for (int i = 0; i < rows; ++i) c[i * p.c_row] = convert<Out>(y[i]);
            }
        }
    });
}

namespace {

GPK_SIMD void add_scaled(float* to, const float* from, float factor, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

}  // namespace

template <class T, class Out>
void gemv_columns_host(const GemmProblem& p) {
    constexpr std::int64_t kColumns = 256;  // a task's
    constexpr std::int64_t kRun = 256;      // of k, summed before it joins the rest
    const std::int64_t tasks = (p.n + kColumns - 1) / kColumns;
    parallel_for(p.batches * tasks * p.m, 1, [&](std::int64_t begin, std::int64_t end) {
        float sums[kColumns], part[kColumns], wide[kColumns];
        for (std::int64_t task = begin; task < end; ++task) {
            const std::int64_t row = task % p.m;
            const BatchOffsets offsets = batch_offsets(p, task / p.m / tasks);
            const std::int64_t first = task / p.m % tasks * kColumns, count = std::min(kColumns, p.n - first);
            const T* x = static_cast<const T*>(p.a) + offsets.a + row * p.a_row;
            const T* b = static_cast<const T*>(p.b) + offsets.b + first;
            std::fill(sums, sums + count, 0.0f);
            for (std::int64_t l0 = 0; l0 < p.k; l0 += kRun) {
                std::fill(part, part + count, 0.0f);
                for (std::int64_t l = l0; l < std::min(l0 + kRun, p.k); ++l) {
                    const float factor = convert<float>(x[l * p.a_col]);
                    if constexpr (is_small_float<T>) {
                        widen(b + l * p.b_row, wide, count);
                        add_scaled(part, wide, factor, count);
                    } else {
                        add_scaled(part, b + l * p.b_row, factor, count);
                    }
                }
                add_scaled(sums, part, 1, count);
            }
            Out* c = static_cast<Out*>(p.c) + offsets.c + row * p.c_row + first * p.c_col;
            for (std::int64_t j = 0; j < count; ++j) c[j * p.c_col] = convert<Out>(sums[j]);
        }
    });
}

template <class T>
GemmProblem normalized(const GemmProblem& p, std::vector<T>& rows) {
    if (p.norm.weight == nullptr) return p;
    const auto* weight = static_cast<const T*>(p.norm.weight);
    rows.resize(static_cast<std::size_t>(p.m * p.k));
    for (std::int64_t i = 0; i < p.m; ++i) {
        const T* x = static_cast<const T*>(p.a) + i * p.a_row;
        double squares = 0;
        for (std::int64_t l = 0; l < p.k; ++l) {
            squares += static_cast<double>(convert<float>(x[l])) * convert<float>(x[l]);
        }
        const float scale =
            1.0f / std::sqrt(static_cast<float>(squares / static_cast<double>(p.k)) + p.norm.eps);
        T* y = rows.data() + i * p.k;
        for (std::int64_t l = 0; l < p.k; ++l)
            y[l] = T(convert<float>(x[l]) * scale * convert<float>(weight[l]));
    }
    GemmProblem normal = p;
    normal.a = rows.data();
    normal.a_row = p.k, normal.a_col = 1;
    normal.norm = {};
    return normal;
}
template GemmProblem normalized<bfloat16>(const GemmProblem& p, std::vector<bfloat16>& rows);
template GemmProblem normalized<float16>(const GemmProblem& p, std::vector<float16>& rows);

#define GPK_TWINS(T, Out)                                       \
    template void gemv_rows_host<T, Out>(const GemmProblem& p); \
    template void gemv_columns_host<T, Out>(const GemmProblem& p)
GPK_TWINS(float, float);
GPK_TWINS(bfloat16, bfloat16);
GPK_TWINS(bfloat16, float);
GPK_TWINS(float16, float16);
GPK_TWINS(float16, float);
#undef GPK_TWINS

}  // namespace kernels

const Kernel& gemm_kernel(GemvKernel which) {
#define GPK_X(symbol, T, ...)                                            \
    Kernel({.name = #symbol,                                             \
            .image = &image_gemv,                                        \
            .twin = kernels::twin<GemmProblem, kernels::GPK_TWIN<T, T>>, \
            .waits_for_predecessor = true}),
    static const Kernel table[] = {
#define GPK_TWIN gemv_rows_host
        GPK_GEMV_ROWS_KERNELS(GPK_X)
#undef GPK_TWIN
#define GPK_TWIN gemv_columns_host
            GPK_GEMV_COLUMNS_KERNELS(GPK_X)
#undef GPK_TWIN
    };
#undef GPK_X
    return table[static_cast<int>(which)];
}

}  // namespace gpk
