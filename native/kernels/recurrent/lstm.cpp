#include "kernels/recurrent/lstm.hpp"

#include <cmath>

#include "kernels/floats.hpp"
#include "kernels/host.hpp"

namespace gpk {
extern const Image image_lstm;
extern const Image image_lstm_mma;
}  // namespace gpk

namespace gpk::kernels {

namespace {

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

template <class T>
float dot(const T* a, const T* b, std::int64_t n) {
    float sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += static_cast<float>(a[i]) * static_cast<float>(b[i]);
    return sum;
}

// Each thread has whole units, so that h is read while nothing writes it: y is another row.
template <class T>
void lstm_host(const LstmParams& p) {
    const std::int64_t work = 4 * p.batch * (p.h_gates != nullptr ? 1 : p.hidden);
    parallel_for(p.hidden, 1 + 16384 / (work + 1), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t unit = begin; unit < end; ++unit) {
            for (std::int64_t row = 0; row < p.batch; ++row) {
                float gates[4];
                for (std::int64_t g = 0; g < 4; ++g) {
                    const std::int64_t at = (row * 4 + g) * p.hidden + unit;
                    const float recurrent =
                        p.h_gates != nullptr
                            ? static_cast<float>(static_cast<const T*>(p.h_gates)[at])
                            : dot(static_cast<const T*>(p.weight) + (g * p.hidden + unit) * p.hidden,
                                  static_cast<const T*>(p.h) + row * p.h_stride, p.hidden);
                    gates[g] = static_cast<float>(static_cast<const T*>(p.x_gates)[at]) + recurrent;
                }
                float& c = p.c[row * p.hidden + unit];
                c = sigmoid(gates[1]) * c + sigmoid(gates[0]) * std::tanh(gates[2]);
                static_cast<T*>(p.y)[row * p.y_stride + unit] = T(sigmoid(gates[3]) * std::tanh(c));
            }
        }
    });
}

#define X(suffix, T)                                         \
    Kernel(KernelDef{.name = "lstm_" #suffix,                \
                     .image = &image_lstm,                   \
                     .twin = twin<LstmParams, lstm_host<T>>, \
                     .waits_for_predecessor = true}),
const Kernel kKernels[] = {GPK_FLOAT_TYPES(X)};
#undef X

#define X(suffix, T)                                         \
    Kernel(KernelDef{.name = "lstm_mma_" #suffix,            \
                     .image = &image_lstm_mma,               \
                     .twin = twin<LstmParams, lstm_host<T>>, \
                     .waits_for_predecessor = true}),
const Kernel kMma[] = {X(f16, float16) X(bf16, bfloat16)};
#undef X

}  // namespace

const Kernel& lstm_mma(DType dtype) { return kMma[float_index(dtype) - 1]; }
const Kernel& lstm(DType dtype) { return kKernels[float_index(dtype)]; }

}  // namespace gpk::kernels
