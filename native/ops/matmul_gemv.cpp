#include "ops/matmul_gemv.hpp"

#include <algorithm>

#include "kernels/gemm/gemv_mma.hpp"
#include "ops/counters.hpp"
#include "ops/sm90.hpp"
#include "runtime/device.hpp"

namespace gpk::ops {

namespace {

constexpr std::int64_t kUnit = 32, kBulkChunk = 64;     // of k
constexpr std::int64_t kHeldUnit = kUnit * kBulkWarps;  // so too
constexpr std::int64_t kSharedBytes = 227 * 1024;       // of a block, SM 90
constexpr std::int64_t kMostExtent = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t kMostStride = (std::int64_t{1} << 40) - 1;  // in bytes, of a TensorMap

int tiles_of(const GemmVariant& variant) { return variant.max_m / 8; }

std::int64_t bulk_beside(const GemmVariant& variant, const GemmProblem& p) {
    return variant.held_units > 0 ? 0 : bulk_beside_bytes(p.m, ceil_div(p.k, kUnit), 1, 0);
}

// Stages of the ring that there is room for beside x.
std::int64_t bulk_room(const GemmVariant& variant, const GemmProblem& p) {
    return (kSharedBytes - kBulkStaticBytes - bulk_beside(variant, p)) / kBulkPlainStageBytes;
}
constexpr std::int64_t kStreamedStages = 7;
static_assert(kStreamedStages <= (kSharedBytes - kBulkStaticBytes) / kBulkStreamedStageBytes);

// How many stages keep the memory busy, and of how many it is worth asking the L2 cache for early; from
// measurement on an H200. Where the blocks leave half of the multiprocessors idle, those that work must have
// more under way, and the next kernel's blocks wait on the idle ones.
struct BulkDepth {
    std::int64_t stages;
    std::uint32_t prefetched;
};
BulkDepth bulk_depth(const GemmVariant& variant, const GemmProblem& p, int multiprocessors) {
    const std::int64_t parts = ceil_div(p.n, gemv_part(variant, {}).columns);
    BulkDepth depth{5, 0};
    if (variant.gemv == GemvForm::bulk_streamed) return {kStreamedStages, 0};
    if (variant.held_units > 4) return {kBulkStages, 0};  // alone on its multiprocessor
    if (variant.gemv == GemvForm::bulk_columns) {
        if (2 * parts <= multiprocessors) depth = {8, 3};
    } else if (parts > 4 * std::int64_t{multiprocessors}) {
        depth = {4, 0};
    } else if (parts <= multiprocessors && p.k <= 3 * kBulkSteps * kUnit) {
        depth = {5, 3};
    }
    depth.stages = std::min(depth.stages, bulk_room(variant, p));
    return depth;
}

// Of c that a block makes at a time, of weights along k: as many as leave all blocks about as many in the
// rounds that there must be, where that is worth more than what a tile's end costs. Of settled weights the
// next kernel's come meanwhile.
std::int64_t bulk_columns(const GemmVariant& variant, const GemmProblem& p, std::int64_t multiprocessors) {
    constexpr std::int64_t kLeastDepth = 3072, kLeastSettledDepth = 8192;
    const std::int64_t most = gemv_part(variant, {}).columns, parts = ceil_div(p.n, most);
    const std::int64_t rounds = ceil_div(parts, multiprocessors);
    const bool pays = p.b_settled ? p.k >= kLeastSettledDepth || 3 * parts < 2 * rounds * multiprocessors
                                  : p.k >= kLeastDepth;
    if (variant.gemv == GemvForm::bulk_columns || !pays) return most;
    return std::clamp(ceil_div(p.n, rounds * multiprocessors), most / 2, most);
}

}  // namespace

bool gemv_can_run(const GemmVariant& variant, const GemmProblem& p, int sm) {
    switch (variant.gemv) {
        case GemvForm::none:
        case GemvForm::rows:
        case GemvForm::columns: return true;
        case GemvForm::columns_split: return sm == 0 || sm >= 90;
        case GemvForm::bulk_rows:
        case GemvForm::bulk_columns:
        case GemvForm::bulk_streamed: break;
    }
    if (!runs_sm90(variant.kernel(), sm)) return false;
    const bool rows = variant.gemv != GemvForm::bulk_columns,
               streams = variant.gemv == GemvForm::bulk_streamed;
    const std::int64_t pitch_bytes =
        (rows ? p.b_col : p.b_row) * static_cast<std::int64_t>(itemsize(variant.dtype));
    const std::int64_t lines = rows ? p.n : p.k;
    return p.batches == 1 && p.k > 0 && (!rows || p.k % kBulkChunk == 0) && p.k <= kMostExtent &&
           p.n <= kMostExtent && (lines == 1 || (pitch_bytes > 0 && pitch_bytes <= kMostStride)) &&
           (p.m == 1 || p.a_row >= (streams ? 1 : 0)) &&
           (streams || bulk_room(variant, p) >= kLeastBulkStages) &&
           (variant.held_units == 0 || p.k <= variant.held_units * kHeldUnit) &&
           (p.norm.weight == nullptr || reinterpret_cast<std::uintptr_t>(p.norm.weight) % 16 == 0);
}

LaunchConfig gemv_config(const GemmVariant& variant, const GemmProblem& p, int multiprocessors) {
    const std::int64_t columns = gemv_part(variant, {}).columns, parts = ceil_div(p.n, columns);
    multiprocessors = std::max(multiprocessors, 1);
    if (is_bulk(variant.gemv)) {
        const std::int64_t stages = bulk_depth(variant, p, multiprocessors).stages;
        const std::int64_t shared = variant.gemv == GemvForm::bulk_streamed
                                        ? stages * kBulkStreamedStageBytes
                                        : stages * kBulkPlainStageBytes + bulk_beside(variant, p);
        const std::int64_t tiles = ceil_div(p.n, bulk_columns(variant, p, multiprocessors));
        return {.grid = {static_cast<std::uint32_t>(std::min<std::int64_t>(tiles, multiprocessors))},
                .block = {kBulkThreads},
                .shared_bytes = static_cast<std::uint32_t>(shared)};
    }
    // As many blocks for each part as fill the device once or (of the smaller kernel) twice, if each still
    // has enough of k.
    constexpr std::int64_t kMostBlocks = 4, kLeastDepth = 512;
    std::int64_t cluster = 1;
    while (variant.gemv == GemvForm::columns_split && cluster < kMostBlocks &&
           2 * parts * cluster * p.batches <= (tiles_of(variant) == 1 ? 2 : 1) * multiprocessors &&
           p.k >= 2 * cluster * kLeastDepth) {
        cluster *= 2;
    }
    return {.grid = {static_cast<std::uint32_t>(parts * cluster), batch_blocks(p)},
            .block = {kGemvMmaThreads},
            .cluster = static_cast<std::uint32_t>(cluster)};
}

BlockPart gemv_part(const GemmVariant& variant, const LaunchConfig&) {
    switch (variant.gemv) {
        case GemvForm::bulk_rows: return {variant.max_m, kBulkColumns};
        case GemvForm::bulk_streamed: return {variant.max_m, kBulkStreamedColumns};
        case GemvForm::rows: return {variant.max_m, gemv_mma_rows_columns(tiles_of(variant))};
        default: return {variant.max_m, kGemvMmaColumns};
    }
}

std::uint32_t* bulk_turns(Stream& stream, std::int64_t tiles, std::int64_t blocks) {
    constexpr std::int64_t kLeast = 2, kMost = 32;  // for each block; more even out
    if (stream.capture() == nullptr || tiles < kLeast * blocks || tiles > kMost * blocks) return nullptr;
    const Array words = zero_counters(stream.device(), 1);
    const UseScope scope;
    words.storage()->before_write(current_stream(stream.device()));
    return words.as<std::uint32_t>();
}

GemvBulkParams gemv_bulk_params(Stream& stream, const GemmVariant& variant, const GemmProblem& p,
                                const LaunchConfig& config) {
    Device& device = stream.device();
    const int multiprocessors = std::max(stream.multiprocessors(), 1);
    const std::int64_t tile_columns = bulk_columns(variant, p, multiprocessors);
    const auto item_bytes = static_cast<std::uint64_t>(itemsize(variant.dtype));
    const auto n = static_cast<std::uint64_t>(p.n), k = static_cast<std::uint64_t>(p.k);
    const bool streams = variant.gemv == GemvForm::bulk_streamed;
    const auto rows = [&] {
        const std::uint64_t pitch_bytes = (p.n > 1 ? static_cast<std::uint64_t>(p.b_col) : k) * item_bytes;
        const std::int64_t depth = streams ? kBulkStreamedDepth : kBulkSteps * kUnit;
        return TensorMapDef{.extents = {kBulkChunk, k / kBulkChunk, n},
                            .strides_bytes = {kBulkChunk * item_bytes, pitch_bytes},
                            .box = {kBulkChunk, static_cast<std::uint32_t>(depth / kBulkChunk),
                                    static_cast<std::uint32_t>(tile_columns)}};
    };
    const auto columns = [&] {
        constexpr std::uint32_t kDepth = kBulkPlainStageBytes / 2 / kGemvMmaColumns;
        const std::uint64_t pitch_bytes =
            (p.k > 1 ? static_cast<std::uint64_t>(p.b_row) : (n + 7) / 8 * 8) * item_bytes;
        return TensorMapDef{.extents = {n, k, 1},
                            .strides_bytes = {pitch_bytes, pitch_bytes},
                            .box = {kGemvMmaColumns, kDepth, 1},
                            .swizzle = TensorSwizzle::bytes_128};
    };
    const auto map_of = [&](TensorMapDef def, const void* address) {
        def.address = reinterpret_cast<DevicePtr>(address);
        def.dtype = variant.dtype;
        def.rank = 3;
        return device.driver().tensor_map(def);
    };
    const auto x = [&] {
        const std::uint64_t pitch_bytes = (p.m > 1 ? static_cast<std::uint64_t>(p.a_row) : k) * item_bytes;
        return TensorMapDef{.extents = {kUnit, static_cast<std::uint64_t>(p.m), k / kUnit},
                            .strides_bytes = {pitch_bytes, kUnit * item_bytes},
                            .box = {kUnit, kBulkStreamedRows, kBulkStreamedDepth / kUnit}};
    };
    GemvBulkParams params{
        .weights = map_of(variant.gemv == GemvForm::bulk_columns ? columns() : rows(), p.b),
        .x = streams ? map_of(x(), p.a) : TensorMap{},
        .problem = p,
        .columns = static_cast<std::uint32_t>(tile_columns),
        .prefetched = bulk_depth(variant, p, multiprocessors).prefetched,
        .turns = p.b_settled ? bulk_turns(stream, ceil_div(p.n, tile_columns), config.grid.x) : nullptr};
    if (p.m == 1) params.problem.a_row = 0;
    return params;
}

}  // namespace gpk::ops
