#include "kernels/reduce/variance.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/floats.hpp"
#include "kernels/host.hpp"

namespace gpk {
extern const Image image_variance;
}

namespace gpk::kernels {

namespace {

// Of `count` elements, `stride` apart: their mean first, then what they differ from it.
template <class T, class C = compute_t<T>>
Moments<C> moments_of(const T* from, std::int64_t stride, std::int64_t count) {
    double sum = 0, squares = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += convert<double>(from[i * stride]);
    const double mean = sum / static_cast<double>(count);
    for (std::int64_t i = 0; i < count; ++i) {
        const double difference = convert<double>(from[i * stride]) - mean;
        squares += difference * difference;
    }
    return {static_cast<C>(count), static_cast<C>(mean), static_cast<C>(squares), C(0)};
}
template <class C>
Moments<C> moments_of(const Moments<C>* from, std::int64_t stride, std::int64_t count) {
    Moments<C> all = *from;
    for (std::int64_t i = 1; i < count; ++i) all = joined(all, from[i * stride]);
    return all;
}

// Input: elements, or Moments of them; T: a result.
template <class Input, class T>
void variance_host(const VarianceParams& p) {
    using C = compute_t<T>;
    const ReduceLayout& layout = p.layout;
    const bool none = layout.rank == layout.kept_rank;
    const std::int64_t inner = none ? 1 : layout.extents[layout.rank - 1];
    const std::int64_t stride = none ? 0 : layout.strides[layout.rank - 1];
    const std::int64_t grain = 1 + 16384 / (layout.part_count + 1);
    parallel_for(layout.outputs * layout.parts, grain, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t id = first; id < last; ++id) {
            const std::int64_t output = id / layout.parts, part = id % layout.parts;
            const std::int64_t begin = part * layout.part_count,
                               end = std::min(begin + layout.part_count, layout.count);
            const Input* base =
                static_cast<const Input*>(p.input) + reduce_offset(layout, 0, layout.kept_rank, output);
            Moments<C> all = {C(0), C(0), C(0), C(0)};
            for (std::int64_t at = begin; at < end;) {
                const std::int64_t run = std::min(inner - at % inner, end - at);
                all = joined(all, moments_of(base + reduce_offset(layout, layout.kept_rank, layout.rank, at),
                                             stride, run));
                at += run;
            }
            if (layout.parts > 1) {
                static_cast<Moments<C>*>(p.output)[part * layout.outputs + output] = all;
                continue;
            }
            const C variance = all.squares / static_cast<C>(p.divisor);
            static_cast<T*>(p.output)[output] = convert<T>(p.root ? std::sqrt(variance) : variance);
        }
    });
}

struct Entry {
    DType dtype;
    std::int64_t moments_bytes;
    Kernel join, walks[kReduceWalkCount];
};

#define GPK_VARIANCE(name_, Input, T)                                       \
    Kernel(KernelDef{.name = name_,                                         \
                     .image = &image_variance,                              \
                     .twin = twin<VarianceParams, variance_host<Input, T>>, \
                     .waits_for_predecessor = true})
#define GPK_ENTRY(suffix, dtype, T)                                                                        \
    {DType::dtype,                                                                                         \
     sizeof(Moments<compute_t<T>>),                                                                        \
     GPK_VARIANCE("variance_" #suffix "_join", Moments<compute_t<T>>, T),                                  \
     {GPK_VARIANCE("variance_" #suffix "_rows", T, T), GPK_VARIANCE("variance_" #suffix "_columns", T, T), \
      GPK_VARIANCE("variance_" #suffix "_elements", T, T)}},
const Entry kEntries[] = {GPK_ENTRY(f32, float32, float) GPK_ENTRY(f16, float16, float16)
                              GPK_ENTRY(bf16, bfloat16, bfloat16) GPK_ENTRY(f64, float64, double)};
#undef GPK_ENTRY
#undef GPK_VARIANCE

const Entry& entry(DType dtype) {
    return *std::find_if(std::begin(kEntries), std::end(kEntries),
                         [&](const Entry& each) { return each.dtype == dtype; });
}

}  // namespace

const Kernel& variance(DType dtype, ReduceWalk walk) { return entry(dtype).walks[static_cast<int>(walk)]; }
const Kernel& variance_join(DType dtype) { return entry(dtype).join; }
std::int64_t moments_bytes(DType dtype) { return entry(dtype).moments_bytes; }

}  // namespace gpk::kernels
