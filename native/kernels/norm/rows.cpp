#include "kernels/norm/rows.hpp"

#include <algorithm>
#include <bit>

namespace gpk::kernels {

namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

constexpr int kWarp = 32, kLeastThreads = 4, kGroupsThreads = 256;

// Measured on an H200. A row of few accesses goes to a part of a warp, four each. Few rows go as wide as a
// block does, and long ones to clusters: these help where most of the device would be idle, and only there.
constexpr int kShortRow = 128, kShortAccesses = 4, kLongRow = 4096, kFewRowsThreads = 512;

RowPlan in_registers(const RowVariant& variant, const RowShape& shape, std::int64_t accesses, int blocks) {
    const std::int64_t needed = ceil_div(accesses, std::int64_t{variant.accesses} * blocks);
    if (needed > kWarp || blocks > 1) {
        return {&variant.kernel,
                {.grid = {static_cast<std::uint32_t>(shape.rows * blocks)},
                 .block = {static_cast<std::uint32_t>(ceil_div(needed, kWarp) * kWarp)},
                 .cluster = static_cast<std::uint32_t>(blocks)}};
    }
    // A part of a warp for each row; few rows go to blocks of their own.
    const auto threads = static_cast<std::uint32_t>(
        std::max<std::uint64_t>(std::bit_ceil(static_cast<std::uint64_t>(needed)), kLeastThreads));
    const std::int64_t rows = std::clamp<std::int64_t>(shape.rows / (4 * shape.multiprocessors),
                                                       kWarp / threads, kGroupsThreads / threads);
    return {&variant.kernel,
            {.grid = {static_cast<std::uint32_t>(ceil_div(shape.rows, rows))},
             .block = {threads, static_cast<std::uint32_t>(rows)}}};
}

}  // namespace

RowPlan plan_rows(std::span<const RowVariant> variants, const RowShape& shape, const RowTaste& taste) {
    const int width = shape.aligned ? 16 / static_cast<int>(itemsize(shape.dtype)) : 1;
    const std::int64_t accesses = shape.n / width;
    const bool many = shape.rows >= std::int64_t{2} * shape.multiprocessors;
    const bool cluster = shape.clusters && width > 1 && accesses >= kLongRow &&
                         shape.rows * kMostClusterBlocks <= std::int64_t{2} * shape.multiprocessors;
    const int blocks = cluster ? kMostClusterBlocks : 1;
    const int usual = accesses <= kShortRow ? kShortAccesses : taste.accesses;
    // How many threads may be asked for a row, before more accesses are.
    const auto threads = [&](int per_thread) {
        if (per_thread > std::max(kClusterAccesses, usual)) return taste.most_threads;
        if (!many || cluster) return std::min(kFewRowsThreads, taste.most_threads);
        return per_thread < usual ? kLeastThreads : taste.threads;
    };
    const RowVariant *found = nullptr, *loop = nullptr;
    for (const RowVariant& each : variants) {
        if (each.dtype != shape.dtype || each.elements != width) continue;
        if (each.accesses == 0) {
            loop = &each;
            continue;
        }
        const bool holds = std::int64_t{each.accesses} * threads(each.accesses) * blocks >= accesses;
        if (!holds || (cluster && each.accesses < kClusterAccesses)) continue;
        if (found == nullptr || each.accesses < found->accesses) found = &each;
    }
    if (found != nullptr) return in_registers(*found, shape, accesses, blocks);
    return {&loop->kernel,
            {.grid = {static_cast<std::uint32_t>(shape.rows)},
             .block = {static_cast<std::uint32_t>(taste.most_threads)}}};
}

}  // namespace gpk::kernels
