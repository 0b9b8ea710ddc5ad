#include "kernels/reduce/arg_reduce.hpp"

#include <algorithm>
#include <array>

#include "base/error.hpp"
#include "kernels/host.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_argmax;
extern const Image image_argmin;

namespace kernels {

namespace {

template <class T, bool kMax>
void arg_reduce_host(const ArgReduceParams& p) {
    const ReduceLayout& layout = p.layout;
    const bool none = layout.rank == layout.kept_rank;  // one element
    const std::int64_t inner = none ? 1 : layout.extents[layout.rank - 1];
    const std::int64_t stride = none ? 0 : layout.strides[layout.rank - 1];
    const std::int64_t grain =
        std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(layout.part_count, 1));
    parallel_for(layout.outputs * layout.parts, grain, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t id = first; id < last; ++id) {
            const std::int64_t output = id / layout.parts, begin = id % layout.parts * layout.part_count;
            const std::int64_t end = std::min(begin + layout.part_count, layout.count);
            const T* base =
                static_cast<const T*>(p.input) + reduce_offset(layout, 0, layout.kept_rank, output);
            using C = compute_t<T>;
            Candidate<C> best = {C(0), -1};
            // What is worse than the best, which most are, takes one comparison.
            const auto take = [&](C value, std::int64_t index) {
                if (best.index >= 0 && (kMax ? value < best.value : value > best.value)) return;
                const Candidate<C> candidate = {value, index};
                if (arg_prefers<kMax>(candidate, best)) best = candidate;
            };
            for (std::int64_t at = begin; at < end;) {
                const std::int64_t run = std::min(inner - at % inner, end - at);
                const T* from = base + reduce_offset(layout, layout.kept_rank, layout.rank, at);
                for (std::int64_t i = 0; i < run; ++i) {
                    const std::int64_t index =
                        p.candidates ? p.candidates[(at + i) * layout.outputs + output] : at + i;
                    take(convert<C>(from[i * stride]), index);
                }
                at += run;
            }
            const std::int64_t place = id % layout.parts * layout.outputs + output;
            p.output[place] = best.index;
            if (p.values != nullptr) static_cast<compute_t<T>*>(p.values)[place] = best.value;
        }
    });
}

}  // namespace
}  // namespace kernels

namespace {

struct Entry {
    ArgReduceOp op;
    DType dtype;
    Kernel kernels[kReduceWalkCount];  // by ReduceWalk
};

#define GPK_WALK(walk, symbol, op, T, is_max)                                            \
    Kernel({.name = #symbol "_" #walk,                                                   \
            .image = &image_##op,                                                        \
            .twin = kernels::twin<ArgReduceParams, kernels::arg_reduce_host<T, is_max>>, \
            .waits_for_predecessor = true})
#define GPK_X(symbol, op, dtype_, T, is_max)                                           \
    {ArgReduceOp::op,                                                                  \
     DType::dtype_,                                                                    \
     {GPK_WALK(rows, symbol, op, T, is_max), GPK_WALK(columns, symbol, op, T, is_max), \
      GPK_WALK(elements, symbol, op, T, is_max)}},
const Entry kEntries[] = {GPK_ARG_REDUCE_KERNELS(GPK_X)};
#undef GPK_X
#undef GPK_WALK

}  // namespace

const Kernel& arg_reduce_kernel(ArgReduceOp op, DType dtype, ReduceWalk walk) {
    const DType wanted = dtype == DType::bool_ ? DType::uint8 : dtype;
    const auto* found = std::find_if(std::begin(kEntries), std::end(kEntries), [&](const Entry& entry) {
        return entry.op == op && entry.dtype == wanted;
    });
    if (found == std::end(kEntries)) {
        throw error(ErrorKind::type, {.call = op == ArgReduceOp::argmax ? "argmax" : "argmin",
                                      .argument = "x",
                                      .expected = "a dtype with an order",
                                      .got = std::string(name(dtype)),
                                      .fix = "convert with astype first"});
    }
    return found->kernels[static_cast<int>(walk)];
}

}  // namespace gpk
