#include "ops/transpose.hpp"

#include <algorithm>

#include "kernels/manipulation/transpose.hpp"
#include "ops/collapse.hpp"
#include "ops/launch.hpp"

namespace gpk::ops {

namespace {

constexpr std::int64_t kLeastExtent = 8;  // of both dimensions, for tiles to be worth it

// The axis along which operand k has no gaps, or -1.
int run_of(const kernels::Layout<2>& layout, int k) {
    for (int d = 0; d < layout.rank; ++d) {
        if (layout.axis[d].stride[k] == 1) return d;
    }
    return -1;
}

bool fits(const kernels::TransposeVariant& variant, const kernels::TransposeParams& p, int unit_bytes) {
    if (variant.element_bytes != unit_bytes) return false;
    const auto whole = [&](std::int64_t value) { return value % variant.piece == 0; };
    const auto access = static_cast<std::uintptr_t>(variant.piece * unit_bytes);
    bool all = whole(p.rows) && whole(p.columns) && whole(p.from_stride) && whole(p.to_stride) &&
               reinterpret_cast<std::uintptr_t>(p.from) % access == 0 &&
               reinterpret_cast<std::uintptr_t>(p.to) % access == 0;
    for (int d = 0; d < p.batches.rank; ++d) {
        const auto& axis = p.batches.axis[d];
        all &= axis.extent == 1 || (whole(axis.stride[0]) && whole(axis.stride[1]));
    }
    return all;
}

}  // namespace

bool copy_transposed(const kernels::Layout<2>& layout, int unit_bytes, const Array& to, const Array& from) {
    const int r = run_of(layout, 0), c = run_of(layout, 1);
    if (r < 0 || c < 0 || r == c) return false;
    const auto &row = layout.axis[r], &column = layout.axis[c];
    if (std::min(row.extent, column.extent) < kLeastExtent) return false;
    kernels::TransposeParams params{.from = from.as(),
                                    .to = to.as(),
                                    .rows = row.extent,
                                    .columns = column.extent,
                                    .from_stride = row.stride[1],
                                    .to_stride = column.stride[0],
                                    .batches = without_axes(layout, r, c),
                                    .row_tiles = 0,
                                    .column_tiles = 0};
    for (const kernels::TransposeVariant& each : kernels::transpose_variants()) {
        if (!fits(each, params, unit_bytes)) continue;
        const std::int64_t row_tiles = (row.extent + each.tile_rows - 1) / each.tile_rows,
                           column_tiles = (column.extent + each.tile_columns - 1) / each.tile_columns;
        if (row_tiles > INT32_MAX / column_tiles / params.batches.count) return false;
        params.row_tiles = static_cast<std::uint32_t>(row_tiles);
        params.column_tiles = static_cast<std::uint32_t>(column_tiles);
        const std::int64_t blocks = row_tiles * column_tiles * params.batches.count;
        launch(each.kernel,
               {.grid = {static_cast<std::uint32_t>(blocks)},
                .block = {static_cast<std::uint32_t>(each.threads)}},
               params, {.bytes = 2.0 * static_cast<double>(to.nbytes())}, {&from}, {&to});
        return true;
    }
    return false;
}

bool runs_across(const Array& x) {
    constexpr std::int64_t kLeastSize = 1 << 19;  // below, one launch takes less than two
    if (x.size() < kLeastSize) return false;
    int inner = x.rank() - 1;
    while (inner > 0 && x.shape()[inner] == 1) --inner;
    if (x.strides()[inner] == 0 || x.strides()[inner] == 1 || x.shape()[inner] < kLeastExtent) return false;
    for (int d = 0; d < inner; ++d) {
        if (x.strides()[d] == 1 && x.shape()[d] >= kLeastExtent) return true;
    }
    return false;
}

}  // namespace gpk::ops
