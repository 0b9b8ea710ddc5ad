#include "kernels/conv/conv1d.hpp"

#include <algorithm>
#include <vector>

#include "kernels/floats.hpp"
#include "kernels/host.hpp"

namespace gpk {
extern const Image image_conv1d;
}

namespace gpk::kernels {

namespace {

// A row of one output: all its positions, summed up in float32.
template <class T>
void conv1d_host(const Conv1dParams& p) {
    const std::int64_t group_channels = p.channels / p.groups, group_outputs = p.outputs / p.groups;
    const std::int64_t work = group_channels * p.taps * p.positions;
    parallel_for(p.batch * p.outputs, 1 + 16384 / (work + 1), [&](std::int64_t begin, std::int64_t end) {
        std::vector<float> sums(static_cast<std::size_t>(p.positions));
        for (std::int64_t row = begin; row < end; ++row) {
            const std::int64_t batch = row / p.outputs, o = row % p.outputs;
            const T* x = static_cast<const T*>(p.x) + batch * p.x_batch_stride +
                         o / group_outputs * group_channels * p.x_channel_stride;
            const T* weight = static_cast<const T*>(p.weight) + o * group_channels * p.taps;
            const float bias = p.bias != nullptr ? static_cast<float>(static_cast<const T*>(p.bias)[o]) : 0;
            std::fill(sums.begin(), sums.end(), bias);
            for (std::int64_t c = 0; c < group_channels; ++c) {
                for (std::int64_t t = 0; t < p.taps; ++t) {
                    const float factor = static_cast<float>(weight[c * p.taps + t]);
                    for (std::int64_t l = 0; l < p.positions; ++l) {
                        const std::int64_t at = conv1d_source(p, l, t);
                        if (at < 0 || at >= p.length) continue;
                        const T value = x[c * p.x_channel_stride + at * p.x_stride];
                        sums[static_cast<std::size_t>(l)] += factor * static_cast<float>(value);
                    }
                }
            }
            T* y = static_cast<T*>(p.y) + row * p.positions;
            for (std::int64_t l = 0; l < p.positions; ++l) y[l] = T(sums[static_cast<std::size_t>(l)]);
        }
    });
}

template <class T>
void conv1d_unfold_host(const Conv1dParams& p) {
    const std::int64_t rows = p.batch * p.channels * p.taps;
    parallel_for(rows, 1 + 16384 / (p.positions + 1), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            const std::int64_t t = row % p.taps, c = row / p.taps % p.channels;
            const T* x = static_cast<const T*>(p.x) + row / p.taps / p.channels * p.x_batch_stride +
                         c * p.x_channel_stride;
            T* y = static_cast<T*>(p.y) + row * p.pitch;
            for (std::int64_t l = 0; l < p.positions; ++l) {
                const std::int64_t at = conv1d_source(p, l, t);
                y[l] = at >= 0 && at < p.length ? x[at * p.x_stride] : T(0.0f);
            }
        }
    });
}

#define X(suffix, T)                                             \
    Kernel(KernelDef{.name = "conv1d_" #suffix,                  \
                     .image = &image_conv1d,                     \
                     .twin = twin<Conv1dParams, conv1d_host<T>>, \
                     .waits_for_predecessor = true}),
const Kernel kDirect[] = {GPK_FLOAT_TYPES(X)};
#undef X
#define X(suffix, T)                                                    \
    Kernel(KernelDef{.name = "conv1d_unfold_" #suffix,                  \
                     .image = &image_conv1d,                            \
                     .twin = twin<Conv1dParams, conv1d_unfold_host<T>>, \
                     .waits_for_predecessor = true}),
const Kernel kUnfold[] = {GPK_FLOAT_TYPES(X)};
#undef X

}  // namespace

const Kernel& conv1d(DType dtype) { return kDirect[float_index(dtype)]; }
const Kernel& conv1d_unfold(DType dtype) { return kUnfold[float_index(dtype)]; }

}  // namespace gpk::kernels
