#include "ops/matmul_wgmma.hpp"

#include <algorithm>
#include <limits>

#include "ops/sm90.hpp"
#include "runtime/device.hpp"

namespace gpk::ops {

namespace {

constexpr std::int64_t kMaxExtent = std::numeric_limits<std::int32_t>::max();  // of coordinates
constexpr std::int64_t kMaxStride = (std::int64_t{1} << 40) - 1;               // in bytes, of a TensorMap
constexpr int kMaxBatchDims = 2;
constexpr std::int64_t kUnit = 16;  // bytes

// An operand or the result, as matrices whose `inner` elements follow one another.
struct Matrices {
    const void* start;
    DType dtype;
    std::int64_t inner, outer, outer_stride;
    const std::int64_t* batch_strides;
};

std::int64_t bytes(const Matrices& x, std::int64_t elements) {
    return elements * static_cast<std::int64_t>(itemsize(x.dtype));
}

// A stride that the copy engine can take. Where no index uses it, it says nothing.
bool fits(const Matrices& x, std::int64_t extent, std::int64_t stride) {
    return extent <= 1 || (stride > 0 && bytes(x, stride) % kUnit == 0 && bytes(x, stride) <= kMaxStride);
}

bool fits(const Matrices& x, const GemmProblem& p) {
    if (reinterpret_cast<std::uintptr_t>(x.start) % kUnit != 0 || !fits(x, x.outer, x.outer_stride))
        return false;
    for (int i = 0; i < p.batch_rank; ++i) {
        if (x.batch_strides[i] != 0 && !fits(x, p.batch_extents[i], x.batch_strides[i])) return false;
    }
    return true;
}

Matrices operand_a(const GemmVariant& v, const GemmProblem& p) {
    if (v.a == GemmLayout::along_k) return {p.a, v.dtype, p.k, p.m, p.a_row, p.a_batch};
    return {p.a, v.dtype, p.m, p.k, p.a_col, p.a_batch};
}
Matrices operand_b(const GemmVariant& v, const GemmProblem& p) {
    if (v.b == GemmLayout::along_k) return {p.b, v.dtype, p.k, p.n, p.b_col, p.b_batch};
    return {p.b, v.dtype, p.n, p.k, p.b_row, p.b_batch};
}
Matrices result(const GemmVariant& v, const GemmProblem& p) {
    return {p.c, v.result.value_or(v.dtype), p.n, p.m, p.c_row, p.c_batch};
}

TensorMap map_of(Device& device, const Matrices& x, const GemmProblem& p, int box_inner, int box_outer,
                 TensorSwizzle swizzle = TensorSwizzle::bytes_128) {
    TensorMapDef def;
    def.address = reinterpret_cast<DevicePtr>(x.start);
    def.dtype = x.dtype;
    def.rank = 2 + kMaxBatchDims;
    def.swizzle = swizzle;
    def.extents[0] = static_cast<std::uint64_t>(x.inner);
    def.extents[1] = static_cast<std::uint64_t>(x.outer);
    def.box[0] = static_cast<std::uint32_t>(box_inner);
    def.box[1] = static_cast<std::uint32_t>(box_outer);
    def.strides_bytes[0] = x.outer > 1 ? static_cast<std::uint64_t>(bytes(x, x.outer_stride)) : kUnit;
    for (int i = 0; i < kMaxBatchDims; ++i) {  // the innermost batch dimension first
        const int from = p.batch_rank - 1 - i;
        const bool has = from >= 0 && p.batch_extents[from] > 1 && x.batch_strides[from] != 0;
        def.extents[2 + i] = has ? static_cast<std::uint64_t>(p.batch_extents[from]) : 1;
        def.strides_bytes[1 + i] = has ? static_cast<std::uint64_t>(bytes(x, x.batch_strides[from])) : kUnit;
        def.box[2 + i] = 1;
    }
    return device.driver().tensor_map(def);
}

std::int64_t parts_of_k(const GemmVariant& v, const GemmProblem& p) {
    return ceil_div(p.k * static_cast<std::int64_t>(itemsize(v.dtype)), kWgmmaDepthBytes);
}

int blocks_of(const WgmmaTile& tile) { return tile.cluster * tile.split; }

}  // namespace

bool wgmma_can_run(const GemmVariant& variant, const GemmProblem& p, int sm) {
    return runs_sm90(variant.kernel(), sm) && p.batch_rank <= kMaxBatchDims &&
           parts_of_k(variant, p) >= variant.wgmma->split && std::max({p.m, p.n, p.k}) <= kMaxExtent - 1024 &&
           parts_of(p, {variant.wgmma->rows, variant.wgmma->columns}) <= kMaxExtent / 16 &&
           fits(operand_a(variant, p), p) && fits(operand_b(variant, p), p);
}

double wgmma_us(const GemmVariant& variant, const GemmProblem& p, int multiprocessors) {
    constexpr double kBytesPerUs = 4.3e6;  // of an H200's memory: the rate that memory_share was fitted with
    constexpr double kFlopsPerUs = 7.5e6;  // of a multiprocessor, in 16-bit types: 990 TFLOPS of 132
    // Tiles of 128 rows were fitted where m is large; at m = 32 and 64 they took 1.45 to 1.63 of the fit's
    // time.
    constexpr double kHalfIdle = 1.5;
    const WgmmaTile& tile = *variant.wgmma;
    const WgmmaTimes& times = *variant.wgmma_times;
    const int blocks = blocks_of(tile);
    // Clusters of more than two find a place less often: some GPCs have a number of multiprocessors that they
    // do not divide.
    const int usable = blocks > 2 ? multiprocessors - multiprocessors / 32 : multiprocessors;
    const std::int64_t waves =
        ceil_div(parts_of(p, wgmma_part(variant, {})), std::max(usable * tile.per_sm / blocks, 1));
    const std::int64_t depth = ceil_div(parts_of_k(variant, p), tile.split);
    const double elements = static_cast<double>(p.m) * static_cast<double>(p.k) +
                            static_cast<double>(p.k) * static_cast<double>(p.n) +
                            static_cast<double>(p.m) * static_cast<double>(p.n);
    const double memory_us = elements * static_cast<double>(p.batches) *
                             static_cast<double>(itemsize(variant.dtype)) / kBytesPerUs;
    // The fit does not know where it leaves what was measured: no part is quicker than the tensor cores.
    const double part_us = std::max<double>(
        times.part_us, tile.per_sm * 2.0 * tile.rows * tile.columns * (kWgmmaDepthBytes / 2) / kFlopsPerUs);
    const double us = times.start_us +
                      static_cast<double>(waves) * (times.tile_us + static_cast<double>(depth) * part_us) +
                      times.memory_share * memory_us;
    const bool half_idle = tile.rows == 128 && p.m <= 64;
    return std::max(us * (half_idle ? kHalfIdle : 1.0), memory_us);
}

LaunchConfig wgmma_config(const GemmVariant& variant, const GemmProblem& p, int multiprocessors) {
    const WgmmaTile& tile = *variant.wgmma;
    const int blocks = blocks_of(tile);
    // Those that share a tile's k make one tile and end; others stay.
    std::int64_t clusters = parts_of(p, wgmma_part(variant, {}));
    if (tile.split == 1)
        clusters = std::min<std::int64_t>(clusters, std::max(multiprocessors * tile.per_sm / blocks, 1));
    return {.grid = {static_cast<std::uint32_t>(clusters * blocks)},
            .block = {kWgmmaThreads},
            .shared_bytes = static_cast<std::uint32_t>(wgmma_shared_bytes(tile)),
            .cluster = static_cast<std::uint32_t>(blocks)};
}

BlockPart wgmma_part(const GemmVariant& variant, const LaunchConfig&) {
    return {std::int64_t{variant.wgmma->rows} * variant.wgmma->cluster, variant.wgmma->columns};
}

GemmWgmmaParams wgmma_params(Device& device, const GemmVariant& variant, const GemmProblem& p) {
    const WgmmaTile& tile = *variant.wgmma;
    const Matrices a = operand_a(variant, p), b = operand_b(variant, p), c = result(variant, p);
    const bool a_along_k = variant.a == GemmLayout::along_k, b_along_k = variant.b == GemmLayout::along_k;
    const int depth =
        kWgmmaDepthBytes / static_cast<int>(itemsize(variant.dtype));  // 64 where it is across k
    GemmWgmmaParams params;
    params.a = map_of(device, a, p, depth, a_along_k ? tile.rows : depth);
    params.b = map_of(device, b, p, depth, b_along_k ? tile.columns / tile.cluster : depth);
    params.store_by_map =
        itemsize(c.dtype) == 2 && tile.split == 1 && (p.n <= 1 || p.c_col == 1) && fits(c, p) &&
        std::none_of(c.batch_strides, c.batch_strides + p.batch_rank, [](auto s) { return s == 0; }) &&
        !changes(p.epilogue);
    if (params.store_by_map) {
        params.c = map_of(device, c, p, 64, 64);
        const int rest = wgmma_part_columns(tile) % 64;
        if (rest > 0) params.c_rest = map_of(device, c, p, rest, 64, TensorSwizzle::none);
    }
    params.problem = p;
    params.group = kWgmmaGroupRows / (tile.rows * tile.cluster);
    return params;
}

}  // namespace gpk::ops
