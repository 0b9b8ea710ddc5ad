// The host twins of the kernels that reduce.hpp lists.
#pragma once

#include <algorithm>

#include "kernels/host.hpp"
#include "kernels/reduce/reduce.hpp"
#include "kernels/widen.hpp"

namespace gpk::kernels {

// count <= kRun elements, `stride` apart: in several sums, so that they become vectors.
inline constexpr std::int64_t kReduceRun = 1024;

template <class F, class Value, class Load>
typename F::type reduce_run(const Value* from, std::int64_t stride, std::int64_t count, Load load) {
    constexpr int kSums = 16;
    using C = typename F::type;
    C sums[kSums];
    std::fill(sums, sums + kSums, F::identity());
    std::int64_t i = 0;
    if (stride == 1) {
        for (; i + kSums <= count; i += kSums) {
            for (int e = 0; e < kSums; ++e) sums[e] = F::step(sums[e], load(from[i + e]));
        }
    }
    for (; i < count; ++i) sums[i % kSums] = F::step(sums[i % kSums], load(from[i * stride]));
    for (int step = kSums / 2; step > 0; step /= 2) {
        for (int e = 0; e < step; ++e) sums[e] = F::step(sums[e], sums[e + step]);
    }
    return sums[0];
}

// Any count: in halves, so that the error of a float32 sum grows with the logarithm of the count
// (Higham, "The accuracy of floating point summation", 1993).
template <class F>
typename F::type reduce_halves(const typename F::Input* from, std::int64_t stride, std::int64_t count) {
    using T = typename F::Input;
    if (count <= kReduceRun) {
        if constexpr (is_small_float<T>) {
            if (stride == 1) {
                float wide[kReduceRun];
                widen(from, wide, count);
                using Wide = typename F::template Rebind<float>;
                return reduce_run<F>(wide, 1, count, [](float value) { return Wide::load(value); });
            }
        }
        return reduce_run<F>(from, stride, count, [](T value) { return F::load(value); });
    }
    const std::int64_t half = (count / 2 + kReduceRun - 1) / kReduceRun * kReduceRun;
    return F::step(reduce_halves<F>(from, stride, half),
                   reduce_halves<F>(from + half * stride, stride, count - half));
}

template <class C>
void reduce_store(const ReduceParams& p, std::int64_t place, C value) {
    if constexpr (std::numeric_limits<C>::has_infinity) {
        if (p.divisor != 1) value = value / static_cast<C>(p.divisor);
    }
    if constexpr (std::is_same_v<C, float>) {
        if (p.store == ReduceStore::float16) {
            static_cast<float16*>(p.output)[place] = float16(value);
            return;
        }
        if (p.store == ReduceStore::bfloat16) {
            static_cast<bfloat16*>(p.output)[place] = bfloat16(value);
            return;
        }
    }
    static_cast<C*>(p.output)[place] = value;
}

// One part of one output, along the innermost reduced dimension.
template <class F>
typename F::type reduce_rows(const ReduceLayout& layout, const typename F::Input* base, std::int64_t begin,
                             std::int64_t count) {
    if (layout.rank == layout.kept_rank) return count > 0 ? F::load(*base) : F::identity();
    const std::int64_t inner = layout.extents[layout.rank - 1], stride = layout.strides[layout.rank - 1];
    typename F::type sum = F::identity();
    for (std::int64_t at = begin; at < begin + count;) {
        const std::int64_t run = std::min(inner - at % inner, begin + count - at);
        sum = F::step(sum, reduce_halves<F>(base + reduce_offset(layout, layout.kept_rank, layout.rank, at),
                                            stride, run));
        at += run;
    }
    return sum;
}

// `width` neighbouring outputs at once, where those and not the reduced elements are neighbours in
// memory. Sums of kRun elements join the total one by one, which keeps the error of long columns small.
inline constexpr std::int64_t kReduceWidth = 64;

template <class F>
void reduce_columns(const ReduceLayout& layout, const typename F::Input* base, std::int64_t step,
                    std::int64_t width, std::int64_t begin, std::int64_t count, typename F::type* total) {
    constexpr std::int64_t kRun = 128;
    typename F::type part[kReduceWidth];
    std::fill(total, total + width, F::identity());
    for (std::int64_t first = begin; first < begin + count; first += kRun) {
        std::fill(part, part + width, F::identity());
        for (std::int64_t at = first; at < std::min(first + kRun, begin + count); ++at) {
            const auto* row = base + reduce_offset(layout, layout.kept_rank, layout.rank, at);
            if (step == 1) {
                for (std::int64_t j = 0; j < width; ++j) part[j] = F::step(part[j], F::load(row[j]));
            } else {
                for (std::int64_t j = 0; j < width; ++j) part[j] = F::step(part[j], F::load(row[j * step]));
            }
        }
        for (std::int64_t j = 0; j < width; ++j) total[j] = F::step(total[j], part[j]);
    }
}

template <class F>
void reduce_host(const ReduceParams& p) {
    using T = typename F::Input;
    const ReduceLayout& layout = p.layout;
    const T* input = static_cast<const T*>(p.input);
    const auto part_begin = [&](std::int64_t part) { return part * layout.part_count; };
    const auto part_size = [&](std::int64_t part) {
        return std::min(layout.part_count, layout.count - part_begin(part));
    };
    const std::int64_t grain =
        std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(layout.part_count, 1));
    if (layout.along_lanes || layout.kept_rank == 0) {
        parallel_for(layout.outputs * layout.parts, grain, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t id = begin; id < end; ++id) {
                const std::int64_t part = id % layout.parts, output = id / layout.parts;
                const T* base = input + reduce_offset(layout, 0, layout.kept_rank, output);
                reduce_store(p, part * layout.outputs + output,
                             reduce_rows<F>(layout, base, part_begin(part), part_size(part)));
            }
        });
        return;
    }
    const std::int64_t inner = layout.extents[layout.kept_rank - 1],
                       step = layout.strides[layout.kept_rank - 1];
    const std::int64_t across = (inner + kReduceWidth - 1) / kReduceWidth;
    const std::int64_t blocks = layout.outputs / inner * across;
    parallel_for(blocks * layout.parts, std::max<std::int64_t>(grain / kReduceWidth, 1),
                 [&](std::int64_t begin, std::int64_t end) {
                     typename F::type total[kReduceWidth];
                     for (std::int64_t id = begin; id < end; ++id) {
                         const std::int64_t part = id % layout.parts, block = id / layout.parts;
                         const std::int64_t first = block % across * kReduceWidth,
                                            width = std::min(kReduceWidth, inner - first);
                         const std::int64_t output = block / across * inner + first;
                         const T* base = input + reduce_offset(layout, 0, layout.kept_rank, output);
                         reduce_columns<F>(layout, base, step, width, part_begin(part), part_size(part),
                                           total);
                         for (std::int64_t j = 0; j < width; ++j)
                             reduce_store(p, part * layout.outputs + output + j, total[j]);
                     }
                 });
}

}  // namespace gpk::kernels
