#include "ops/reduce_layout.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "base/error.hpp"

namespace gpk::ops {

namespace {

struct Dimension {
    std::int64_t extent, stride;
};

// Adds a dimension inside those there are: joined with the last one where memory goes on.
void add_dimension(ReduceLayout& layout, int first, Dimension dimension) {
    if (dimension.extent == 1) return;
    if (layout.rank > first && layout.strides[layout.rank - 1] == dimension.stride * dimension.extent) {
        layout.extents[layout.rank - 1] *= dimension.extent;
        layout.strides[layout.rank - 1] = dimension.stride;
        return;
    }
    layout.extents[layout.rank] = dimension.extent;
    layout.strides[layout.rank] = dimension.stride;
    ++layout.rank;
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Whether all strides of the dimensions first..last-1 but the innermost are whole vectors, and that is 1.
bool begins_vectors(const ReduceLayout& layout, int first, int last, std::int64_t elements) {
    if (first == last || layout.strides[last - 1] != 1) return false;
    return std::all_of(layout.strides, layout.strides + layout.rank, [&](const std::int64_t& stride) {
        return &stride == &layout.strides[last - 1] || stride % elements == 0;
    });
}

}  // namespace

ReducedAxes reduced_axes(const char* call, const Dims& axes, int rank) {
    ReducedAxes reduced = {};
    if (axes.empty()) std::fill_n(reduced.begin(), rank, true);
    for (std::int64_t axis : axes) {
        bool& flag = reduced[normalize_axis(call, axis, rank)];
        if (flag) {
            throw error(
                ErrorKind::value,
                {.call = call, .argument = "axis", .expected = "each axis once", .got = to_string(axes)});
        }
        flag = true;
    }
    return reduced;
}

Dims result_shape(const Array& x, const ReducedAxes& reduced, bool keepdims) {
    Dims shape;
    for (int i = 0; i < x.rank(); ++i) {
        if (!reduced[i]) shape.push_back(x.shape()[i]);
        if (reduced[i] && keepdims) shape.push_back(1);
    }
    return shape;
}

ReduceLayout dimensions_of(const Array& x, const ReducedAxes& reduced, bool free_order) {
    ReduceLayout layout = {};
    layout.outputs = layout.count = 1;
    std::array<Dimension, kMaxRank> inner;
    int inner_count = 0;
    for (int i = 0; i < x.rank(); ++i) {
        const Dimension dimension = {x.shape()[i], x.strides()[i]};
        if (reduced[i]) {
            layout.count *= dimension.extent;
            inner[inner_count++] = dimension;
        } else {
            layout.outputs *= dimension.extent;
            add_dimension(layout, 0, dimension);
        }
    }
    layout.kept_rank = layout.rank;
    if (free_order) {
        std::stable_sort(
            inner.begin(), inner.begin() + inner_count,
            [](const Dimension& a, const Dimension& b) { return std::abs(a.stride) > std::abs(b.stride); });
    }
    for (int i = 0; i < inner_count; ++i) add_dimension(layout, layout.kept_rank, inner[i]);
    return layout;
}

int power_of_two(std::int64_t at_least, int limit) {
    return at_least >= limit ? limit
                             : static_cast<int>(std::bit_ceil(
                                   static_cast<std::uint64_t>(std::max<std::int64_t>(at_least, 1))));
}

ReduceWalk walk_of(const ReduceLayout& layout, DevicePtr input, std::int64_t vector) {
    const int kept = layout.kept_rank, rank = layout.rank;
    if (input % 16 != 0) return ReduceWalk::elements;
    if (begins_vectors(layout, kept, rank, vector) && layout.count >= 4 * vector &&
        (rank == kept + 1 || layout.extents[rank - 1] % vector == 0)) {
        return ReduceWalk::rows;
    }
    const bool columns = begins_vectors(layout, 0, kept, vector) && layout.extents[kept - 1] % vector == 0;
    return columns ? ReduceWalk::columns : ReduceWalk::elements;
}

// The figures are from measurements on an H200 (sums of float32, 8192 x 8192 and narrower).
void share(ReduceLayout& layout, ReduceWalk walk, std::int64_t vector, const Stream& stream, bool may_split) {
    const int multiprocessors = stream.multiprocessors();
    const bool has_kept = layout.kept_rank > 0, has_reduced = layout.rank > layout.kept_rank;
    const std::int64_t kept_step = has_kept ? std::abs(layout.strides[layout.kept_rank - 1]) : 0;
    const std::int64_t reduced_step = has_reduced ? std::abs(layout.strides[layout.rank - 1]) : 0;
    layout.walk = walk;
    layout.along_lanes =
        walk == ReduceWalk::rows ||
        (walk == ReduceWalk::elements && (!has_kept || (has_reduced && reduced_step <= kept_step)));
    const std::int64_t per_item = walk == ReduceWalk::rows ? vector : 1;
    const std::int64_t items = ceil_div(layout.count, per_item);  // of an output
    const std::int64_t groups = walk == ReduceWalk::columns ? layout.outputs / vector : layout.outputs;
    if (layout.along_lanes) {
        // A lane has several items, unless the lanes of all outputs do not fill the device.
        constexpr std::int64_t kItems = 8, kLeastLanes = 4;
        layout.lanes =
            power_of_two(std::max(ceil_div(items, kItems), std::min(items, kLeastLanes)), kReduceThreads);
        while (layout.lanes < std::min<std::int64_t>(items, kReduceThreads) &&
               groups * layout.lanes < std::int64_t{1024} * multiprocessors) {
            layout.lanes *= 2;
        }
    } else {
        const std::int64_t inner = layout.extents[layout.kept_rank - 1];
        const int neighbours = power_of_two(walk == ReduceWalk::columns ? inner / vector : inner, 32);
        layout.lanes = power_of_two(layout.count, kReduceThreads / neighbours);
    }

    layout.parts = 1;
    layout.part_count = layout.count;
    if (!may_split) return;
    constexpr std::int64_t kLeastBlocks = 16, kLeastItems = 16, kMostParts = 1024;
    const std::int64_t blocks_a_multiprocessor = walk == ReduceWalk::columns ? 16 : 4;
    const std::int64_t blocks = ceil_div(groups, kReduceThreads / layout.lanes);
    const std::int64_t wanted =
        std::max<std::int64_t>(multiprocessors * blocks_a_multiprocessor, kLeastBlocks);
    const std::int64_t parts =
        std::max(std::min({wanted / blocks, items / (layout.lanes * kLeastItems), kMostParts}),
                 ceil_div(layout.count, kReducePartMost));
    if (parts < 2) return;
    // Whole vectors of every type. Of long parts whole turns, the four vectors that a lane of rows has in
    // flight: one more alone is waited for as long as four.
    const std::int64_t part = ceil_div(layout.count, parts), turn = 4 * layout.lanes * vector;
    const std::int64_t unit = walk == ReduceWalk::rows && part >= 8 * turn ? turn : 16;
    layout.part_count = ceil_div(part, unit) * unit;
    layout.parts = ceil_div(layout.count, layout.part_count);
}

ReduceLayout over_parts(const ReduceLayout& first) {
    ReduceLayout layout = {};
    layout.outputs = first.outputs, layout.count = first.parts;
    add_dimension(layout, 0, {first.outputs, 1});
    layout.kept_rank = layout.rank;
    add_dimension(layout, layout.kept_rank, {first.parts, first.outputs});
    return layout;
}

std::int64_t vector_elements(DType dtype) { return 16 / static_cast<std::int64_t>(itemsize(dtype)); }

LaunchConfig config_of(const ReduceLayout& layout, std::int64_t vector) {
    const std::int64_t outputs =
        layout.walk == ReduceWalk::columns ? layout.outputs / vector : layout.outputs;
    return {.grid = {static_cast<std::uint32_t>(ceil_div(outputs, kReduceThreads / layout.lanes)),
                     static_cast<std::uint32_t>(layout.parts)},
            .block = {kReduceThreads}};
}

}  // namespace gpk::ops
