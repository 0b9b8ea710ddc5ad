#include "kernels/manipulation/transpose.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/elementwise/rows.hpp"

namespace gpk {

extern const Image image_transpose;

namespace kernels {
namespace {

// In tiles too, which stay in the cache.
template <int bytes>
void transpose_host(const TransposeParams& p) {
    constexpr std::int64_t kTile = 64, kSize = bytes;
    const std::int64_t row_tiles = (p.rows + kTile - 1) / kTile,
                       column_tiles = (p.columns + kTile - 1) / kTile;
    parallel_for(p.batches.count * row_tiles * column_tiles, 8, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t tile = begin; tile < end; ++tile) {
            std::int64_t at[2];
            p.batches.offsets(tile / (row_tiles * column_tiles), at);
            const std::int64_t r0 = tile / column_tiles % row_tiles * kTile, c0 = tile % column_tiles * kTile;
            for (std::int64_t c = c0; c < std::min(c0 + kTile, p.columns); ++c) {
                auto* to = static_cast<std::byte*>(p.to) + (at[0] + c * p.to_stride) * kSize;
                const auto* from = static_cast<const std::byte*>(p.from) + (at[1] + c) * kSize;
                for (std::int64_t r = r0; r < std::min(r0 + kTile, p.rows); ++r) {
                    std::memcpy(to + r * kSize, from + r * p.from_stride * kSize, bytes);
                }
            }
        }
    });
}

const TransposeVariant variants[] = {
#define X(bytes, piece, rows, columns)                                          \
    {Kernel(elementwise_kernel("transpose_" #bytes "_" #piece, image_transpose, \
                               twin<TransposeParams, transpose_host<bytes>>)),  \
     bytes,                                                                     \
     piece,                                                                     \
     rows,                                                                      \
     columns,                                                                   \
     transpose_threads(piece, rows, columns)},
    GPK_TRANSPOSE_VARIANTS(X)
#undef X
};

}  // namespace

std::span<const TransposeVariant> transpose_variants() { return variants; }

}  // namespace kernels
}  // namespace gpk
