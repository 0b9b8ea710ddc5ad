#include "ops/matmul_gemv.hpp"

#include <algorithm>

#include "kernels/gemm/gemv_mma.hpp"
#include "ops/sm90.hpp"
#include "runtime/device.hpp"

namespace gpk::ops {

namespace {

constexpr std::int64_t kUnit = 32, kBulkChunk = 64;  // of k
constexpr std::int64_t kSharedBytes = 227 * 1024;    // of a block, SM 90
constexpr std::int64_t kMostExtent = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t kMostStride = (std::int64_t{1} << 40) - 1;  // in bytes, of a TensorMap

int tiles_of(const GemmVariant& variant) { return variant.max_m / 8; }

// Stages of the ring that there is room for beside x.
std::int64_t bulk_stages(const GemmProblem& p) {
    const std::int64_t room = kSharedBytes - kBulkStaticBytes - bulk_x_bytes(p.m, p.k / kUnit, 1);
    return std::min<std::int64_t>(room / kBulkPlainStageBytes, kBulkStages);
}

}  // namespace

bool gemv_can_run(const GemmVariant& variant, const GemmProblem& p, int sm) {
    switch (variant.gemv) {
        case GemvForm::none:
        case GemvForm::rows:
        case GemvForm::columns: return true;
        case GemvForm::columns_split: return sm == 0 || sm >= 90;
        case GemvForm::bulk: break;
    }
    if (!runs_sm90(variant.kernel(), sm)) return false;
    const std::int64_t pitch_bytes = p.b_col * static_cast<std::int64_t>(itemsize(variant.dtype));
    return p.batches == 1 && p.k > 0 && p.k % kBulkChunk == 0 && p.k <= kMostExtent && p.n <= kMostExtent &&
           (p.n == 1 || (pitch_bytes > 0 && pitch_bytes <= kMostStride)) && (p.m == 1 || p.a_row >= 0) &&
           bulk_stages(p) >= kLeastBulkStages;
}

LaunchConfig gemv_config(const GemmVariant& variant, const GemmProblem& p, int multiprocessors) {
    const std::int64_t columns = gemv_part(variant, {}).columns, parts = ceil_div(p.n, columns);
    multiprocessors = std::max(multiprocessors, 1);
    if (variant.gemv == GemvForm::bulk) {
        return {.grid = {static_cast<std::uint32_t>(std::min<std::int64_t>(parts, multiprocessors))},
                .block = {kBulkThreads},
                .shared_bytes = static_cast<std::uint32_t>(bulk_stages(p) * kBulkPlainStageBytes +
                                                           bulk_x_bytes(p.m, p.k / kUnit, 1))};
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
        case GemvForm::bulk: return {variant.max_m, kBulkColumns};
        case GemvForm::rows: return {variant.max_m, gemv_mma_rows_columns(tiles_of(variant))};
        default: return {variant.max_m, kGemvMmaColumns};
    }
}

GemvBulkParams gemv_bulk_params(Device& device, const GemmVariant& variant, const GemmProblem& p) {
    const auto item_bytes = static_cast<std::uint64_t>(itemsize(variant.dtype));
    const TensorMapDef def{
        .address = reinterpret_cast<DevicePtr>(p.b),
        .dtype = variant.dtype,
        .rank = 3,
        .extents = {kBulkChunk, static_cast<std::uint64_t>(p.k / kBulkChunk),
                    static_cast<std::uint64_t>(p.n)},
        .strides_bytes = {kBulkChunk * item_bytes, p.n > 1 ? static_cast<std::uint64_t>(p.b_col) * item_bytes
                                                           : static_cast<std::uint64_t>(p.k) * item_bytes},
        .box = {kBulkChunk, kBulkSteps * kUnit / kBulkChunk, kBulkColumns}};
    GemvBulkParams params{.weights = device.driver().tensor_map(def), .problem = p};
    if (p.m == 1) params.problem.a_row = 0;
    return params;
}

}  // namespace gpk::ops
