#include "ops/grouped_variants.hpp"

#include <algorithm>

#include "kernels/gemm/gemm.hpp"
#include "kernels/gemm/gemm_mma.hpp"
#include "ops/sm90.hpp"
#include "runtime/device.hpp"

namespace gpk::ops {

namespace {

constexpr std::int64_t kMaxStride = (std::int64_t{1} << 40) - 1;  // in bytes, of a TensorMap
constexpr std::int64_t kMaxBlocks = std::numeric_limits<std::int32_t>::max();

template <auto id>
const Kernel& kernel() {
    return gemm_kernel(id);
}

template <class T>
constexpr DType dtype_of() {
    if constexpr (std::is_same_v<T, float>) return DType::float32;
    if constexpr (std::is_same_v<T, float16>) return DType::float16;
    if constexpr (std::is_same_v<T, bfloat16>) return DType::bfloat16;
}

// By measurement on an H200: up to here a block that brings all its rows alone, with more stages, is quicker
// than two that share them.
constexpr int most_rows(const GroupedTile& tile) { return tile.rows == 128 ? 96 : 0; }

#define GPK_WGMMA(T, type, tile_name, gated_, suffix)                                       \
    {.kernel = kernel<GroupedWgmmaKernel::gemm_grouped_wgmma_##type##_##tile_name##suffix>, \
     .dtype = dtype_of<T>(),                                                                \
     .wgmma = &grouped_tile_##tile_name,                                                    \
     .gated = gated_,                                                                       \
     .alignment_bytes = 16,                                                                 \
     .most_rows = most_rows(grouped_tile_##tile_name)},
#define GPK_MMA(symbol, T, tile_)             \
    {.kernel = kernel<GroupedKernel::symbol>, \
     .dtype = dtype_of<T>(),                  \
     .tile = tile_,                           \
     .alignment_bytes = 16,                   \
     .most_rows = tile_ == 64 ? 64 : 0},
#define GPK_PLAIN(symbol, T, tile_) \
    {.kernel = kernel<GroupedKernel::symbol>, .dtype = dtype_of<T>(), .tile = tile_},

constexpr GroupedVariant kVariants[] = {GPK_GROUPED_BFLOAT16(GPK_WGMMA) GPK_GROUPED_FLOAT16(GPK_WGMMA)
                                            GPK_GROUPED_MMA(GPK_MMA) GPK_GROUPED_PLAIN(GPK_PLAIN)};

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t weight_rows(const GroupedProblem& p) { return p.gated != 0 ? 2 * p.n : p.n; }

// Columns of c that a tile has, or a cluster's tiles.
std::int64_t tile_columns(const GroupedVariant& v) {
    if (v.wgmma == nullptr) return v.tile;
    return std::int64_t{kGroupedWeightRows} * v.wgmma->cluster / (v.gated ? 2 : 1);
}

// At least as many tiles as there are, wherever the offsets lie.
std::int64_t most_tiles(const GroupedVariant& v, const GroupedProblem& p) {
    const std::int64_t rows = v.wgmma != nullptr ? v.wgmma->rows : v.tile;
    const std::int64_t uneven = std::min<std::int64_t>(p.experts, p.rows) - 1;
    return (ceil_div(p.rows, rows) + uneven) * ceil_div(p.n, tile_columns(v));
}

GemmGroupedParams wgmma_params(Device& device, const GroupedVariant& v, const GroupedProblem& p) {
    const auto k = static_cast<std::uint64_t>(p.k), n = static_cast<std::uint64_t>(p.n);
    const std::uint64_t row_bytes = 2 * k;
    const TensorMapDef a{.address = reinterpret_cast<DevicePtr>(p.a),
                         .dtype = v.dtype,
                         .rank = 2,
                         .extents = {k, static_cast<std::uint64_t>(p.rows)},
                         .strides_bytes = {p.rows > 1 ? 2 * static_cast<std::uint64_t>(p.a_row) : row_bytes},
                         .box = {kGroupedDepth, kGroupedBox},
                         .swizzle = TensorSwizzle::bytes_128};
    TensorMapDef weight{.address = reinterpret_cast<DevicePtr>(p.weight),
                        .dtype = v.dtype,
                        .rank = 3,
                        .extents = {k, n, static_cast<std::uint64_t>(p.experts)},
                        .strides_bytes = {row_bytes, n * row_bytes},
                        .box = {kGroupedDepth, kGroupedWeightRows, 1},
                        .swizzle = TensorSwizzle::bytes_128};
    if (v.gated) {
        constexpr std::uint32_t kTurn = 8;  // gates, then their ups
        weight.rank = 5;
        const std::uint64_t extents[] = {k, kTurn, 2, n / kTurn, static_cast<std::uint64_t>(p.experts)};
        const std::uint64_t strides[] = {row_bytes, n * row_bytes, kTurn * row_bytes, 2 * n * row_bytes};
        const std::uint32_t box[] = {kGroupedDepth, kTurn, 2, kGroupedWeightRows / (2 * kTurn), 1};
        std::ranges::copy(extents, weight.extents);
        std::ranges::copy(strides, weight.strides_bytes);
        std::ranges::copy(box, weight.box);
    }
    Driver& driver = device.driver();
    TensorMapDef rest = a;
    rest.box[1] = kGroupedRest;
    return {.a = driver.tensor_map(a),
            .a_rest = driver.tensor_map(rest),
            .weight = driver.tensor_map(weight),
            .problem = p};
}

}  // namespace

std::span<const GroupedVariant> grouped_variants() { return kVariants; }

bool can_run(const GroupedVariant& v, const GroupedProblem& p, DType dtype, int sm) {
    if (v.dtype != dtype || v.gated != (p.gated != 0) || most_tiles(v, p) > kMaxBlocks) return false;
    const auto aligned = [&](std::int64_t elements) {
        return elements * static_cast<std::int64_t>(itemsize(dtype)) % v.alignment_bytes == 0;
    };
    const auto begins = [&](const void* start) {
        return reinterpret_cast<std::uintptr_t>(start) % static_cast<std::uintptr_t>(v.alignment_bytes) == 0;
    };
    if (!aligned(p.k) || !(p.rows == 1 || aligned(p.a_row)) || !begins(p.a) || !begins(p.weight))
        return false;
    if (v.wgmma == nullptr) return true;
    return runs_sm90(v.kernel(), sm) && aligned(p.n) && begins(p.c) &&
           (p.rows == 1 || (p.a_row > 0 && 2 * p.a_row <= kMaxStride)) &&
           2 * p.k <= kMaxStride / std::max<std::int64_t>(weight_rows(p), 8);
}

const GroupedVariant* choose_grouped(const GroupedProblem& p, DType dtype, int sm) {
    const std::int64_t mean = p.rows / std::max(p.experts, 1);
    // What is slower for so many rows is still better than another kind of kernel.
    const GroupedVariant* slower = nullptr;
    for (const GroupedVariant& variant : kVariants) {
        if (!can_run(variant, p, dtype, sm)) continue;
        if (slower != nullptr && (variant.wgmma == nullptr) != (slower->wgmma == nullptr)) return slower;
        if (variant.most_rows == 0 || mean <= variant.most_rows) return &variant;
        slower = &variant;
    }
    return slower;
}

void launch_grouped(Stream& stream, const GroupedVariant& v, const GroupedProblem& p, const Cost& cost) {
    Device& device = stream.device();
    const std::int64_t tiles = most_tiles(v, p);
    if (v.wgmma != nullptr) {  // blocks that stay
        const std::int64_t clusters =
            std::min<std::int64_t>(tiles, std::max(stream.multiprocessors() / v.wgmma->cluster, 1));
        const LaunchConfig config{.grid = {static_cast<std::uint32_t>(clusters * v.wgmma->cluster)},
                                  .block = {kGroupedThreads},
                                  .shared_bytes = static_cast<std::uint32_t>(grouped_shared_bytes(*v.wgmma)),
                                  .cluster = static_cast<std::uint32_t>(v.wgmma->cluster)};
        device.launcher().launch(stream, v.kernel(), config, wgmma_params(device, v, p), cost);
        return;
    }
    const bool plain = v.alignment_bytes == 1;
    const LaunchConfig config{
        .grid = {static_cast<std::uint32_t>(tiles)},
        .block = {static_cast<std::uint32_t>(plain ? kGemmThreads : mma_threads(v.tile))},
        .shared_bytes = static_cast<std::uint32_t>(plain ? 0 : mma_shared_bytes(v.tile))};
    device.launcher().launch(stream, v.kernel(), config, p, cost);
}

}  // namespace gpk::ops
