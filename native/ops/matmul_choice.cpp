// Which kernel makes a product: the quickest of what can, as the table and its times say; and what was found
// the last times, since looking takes longer than a launch.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>

#include "ops/matmul_variants.hpp"
#include "ops/matmul_wgmma.hpp"

namespace gpk::ops {

namespace {

// How much of the multiprocessors the problem's blocks fill, one each.
double fills(const GemmVariant& variant, const GemmProblem& p, int multiprocessors) {
    if (variant.least_fill == 0) return 1;
    const BlockPart part = variant.part(variant, variant.config(variant, p, multiprocessors));
    return static_cast<double>(ceil_div(p.m, part.rows) * ceil_div(p.n, part.columns) * p.batches) /
           multiprocessors;
}

struct Choice {
    const GemmVariant* variant = nullptr;
    bool swapped = false;
};

// Of the problem, or of `swapped`, the same transposed.
Choice choose(const GemmProblem& p, const GemmTypes& types, const GemmTarget& target) {
    // An epilogue's bias is along n of the problem as it is.
    const GemmProblem swapped = transposed(p);
    const bool may_swap = !changes(p.epilogue) && p.scales.a == nullptr && p.norm.weight == nullptr;
    Choice quickest, without_tiles;
    double least_us = std::numeric_limits<double>::infinity();
    const DType dtype = gemm_dtype(types.operands);
    for (const GemmVariant& variant : gemm_variants()) {
        if (gemm_dtype(variant.dtype) != dtype)
            continue;  // can_run() asks it too; here it spares the times of the others
        if (variant.wgmma != nullptr) {
            const auto consider = [&](bool turned) {
                const GemmProblem& problem = turned ? swapped : p;
                const double us = wgmma_us(variant, problem, target.multiprocessors, least_us);
                if (us < least_us && can_run(variant, problem, types, target.sm)) {
                    quickest = {&variant, turned};
                    least_us = us;
                }
            };
            const bool by_rows = wgmma_store(variant, p) == WgmmaStore::rows;
            const bool swap = may_swap && wgmma_store(variant, swapped) != WgmmaStore::rows;
            if (!by_rows || !swap) consider(false);
            if (swap) consider(true);
            continue;
        }
        if (quickest.variant != nullptr) return quickest;
        if (without_tiles.variant != nullptr && variant.gemv == GemvForm::none) return without_tiles;
        if (variant.most_n > 0 && (p.n > variant.most_n || p.k > variant.most_k)) {
            if (without_tiles.variant == nullptr && can_run(variant, p, types, target.sm))
                without_tiles = {&variant};
            continue;
        }
        if (fills(variant, p, target.multiprocessors) < variant.least_fill ||
            (p.m < variant.least_m && p.norm.weight == nullptr && !p.b_settled)) {
            continue;
        }
        if (can_run(variant, p, types, target.sm)) return {&variant};
        if (may_swap && can_run(variant, swapped, types, target.sm)) return {&variant, true};
    }
    return quickest;
}

// All that the choice looks at, and nothing else: of addresses how they are aligned, of an epilogue which
// parts there are.
constexpr int kFoundBatches = 2;  // products of more batch dimensions are looked for each time
struct Question {
    std::array<std::int64_t, 14 + 4 * kFoundBatches> numbers = {};
    bool operator==(const Question&) const = default;
};

Question question_of(const GemmProblem& p, const GemmTypes& types, const GemmTarget& target) {
    std::uint64_t bits = 0;
    const auto put = [&](std::uint64_t value, int width) { bits = bits << width | value; };
    for (const void* start : {p.a, p.b, static_cast<const void*>(p.c), p.norm.weight})
        put(reinterpret_cast<std::uintptr_t>(start) % 16, 4);
    const GemmEpilogue& e = p.epilogue;
    for (const bool is :
         {p.b_settled, p.norm.weight != nullptr, p.scales.a != nullptr, e.bias != nullptr,
          e.residual != nullptr, e.row_scale != nullptr, e.column_scale != nullptr, e.scale != 1})
        put(is ? 1 : 0, 1);
    put(static_cast<std::uint64_t>(e.activation), 4);
    put(static_cast<std::uint64_t>(types.operands), 8);
    put(static_cast<std::uint64_t>(types.result), 8);
    put(static_cast<std::uint64_t>(types.precision), 4);
    Question q;
    auto* to = q.numbers.begin();
    for (const std::int64_t number :
         {std::bit_cast<std::int64_t>(bits), p.m, p.n, p.k, p.a_row, p.a_col, p.b_row, p.b_col, p.c_row,
          p.c_col, p.batches, std::int64_t{p.batch_rank}, std::int64_t{target.multiprocessors},
          std::int64_t{target.sm}})
        *to++ = number;
    for (const std::int64_t* values : {p.batch_extents, p.a_batch, p.b_batch, p.c_batch})
        to = std::copy_n(values, p.batch_rank, to);
    return q;
}

std::size_t hash_of(const Question& q) {
    std::uint64_t hash = 0;
    for (const std::int64_t number : q.numbers) {
        hash = (hash ^ static_cast<std::uint64_t>(number)) * 0x9e3779b97f4a7c15;
        hash ^= hash >> 32;
    }
    return static_cast<std::size_t>(hash);
}

struct Found {
    Question question;
    Choice choice;  // of no variant: nothing yet
};

}  // namespace

GemmChoice choose_gemm(const GemmProblem& p, const GemmTypes& types, const GemmTarget& target) {
    const auto answer = [&](const Choice& choice) {
        return GemmChoice{choice.variant, choice.swapped ? transposed(p) : p};
    };
    if (p.batch_rank > kFoundBatches) return answer(choose(p, types, target));
    // Of each thread, so that none waits; a place for each remainder of the hash.
    thread_local std::array<Found, 64> found;
    const Question question = question_of(p, types, target);
    Found& place = found[hash_of(question) % found.size()];
    if (place.choice.variant == nullptr || !(place.question == question))
        place = {question, choose(p, types, target)};
    return answer(place.choice);
}

}  // namespace gpk::ops
