#include "ops/matmul_wgmma.hpp"

#include <algorithm>
#include <cmath>
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
    bool to_tf32 = false;
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
    if (v.a == GemmLayout::along_k) return {p.a, v.dtype, p.k, p.m, p.a_row, p.a_batch, v.tf32};
    return {p.a, v.dtype, p.m, p.k, p.a_col, p.a_batch, v.tf32};
}
Matrices operand_b(const GemmVariant& v, const GemmProblem& p) {
    if (v.b == GemmLayout::along_k) return {p.b, v.dtype, p.k, p.n, p.b_col, p.b_batch, v.tf32};
    return {p.b, v.dtype, p.n, p.k, p.b_row, p.b_batch, v.tf32};
}
Matrices result(const GemmVariant& v, const GemmProblem& p, bool turned) {
    const DType dtype = v.result.value_or(v.dtype);
    if (turned) return {p.c, dtype, p.m, p.n, p.c_col, p.c_batch};
    return {p.c, dtype, p.n, p.m, p.c_row, p.c_batch};
}

TensorMap map_of(Device& device, const Matrices& x, const GemmProblem& p, int box_inner, int box_outer,
                 TensorSwizzle swizzle = TensorSwizzle::bytes_128) {
    TensorMapDef def;
    def.address = reinterpret_cast<DevicePtr>(x.start);
    def.dtype = x.dtype;
    def.to_tf32 = x.to_tf32;
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

int blocks_of(const WgmmaTile& tile) { return tile.below * tile.beside * tile.split; }

int tiles_at_once(const WgmmaTile& tile, int multiprocessors) {
    return clusters_at_once(blocks_of(tile), multiprocessors) * tile.per_sm;
}

// What a multiprocessor of an H200 needs for a tile's 128 bytes of k: its tensor cores for the products, or
// its shared memory for what comes and for what each instruction reads.
double least_part_us(const WgmmaTile& tile) {
    constexpr double kFlopsPerUs = 8.1e6;        // in 16-bit types: 4096 a cycle
    constexpr double kSharedBytesPerUs = 3.3e5;  // the most that products came to
    const bool cuts_columns = wgmma_cuts_columns(tile);
    const int instructions = cuts_columns ? kWgmmaConsumers : tile.rows / 64;
    const double flops = 2.0 * tile.rows * tile.columns * (kWgmmaDepthBytes / 2),
                 bytes = wgmma_stage_bytes(tile) +
                         1.0 * instructions * (64 + wgmma_part_columns(tile)) * kWgmmaDepthBytes;
    return tile.per_sm * std::max(flops / kFlopsPerUs, bytes / kSharedBytesPerUs);
}

// So that whatever adds up a tile's k has some of it.
int least_parts_of_k(const WgmmaTile& tile) {
    return tile.turns == WgmmaTurns::k ? kWgmmaConsumers : tile.split;
}

// Whether the next kernel's blocks may come early: where all blocks end together, or leave room for as many.
// Others that came one by one, to wherever there was room, were up to a fifth slower for it; clusters of 4,
// too.
bool successor_may_come(const GemmVariant& variant, const GemmProblem& p, int multiprocessors) {
    const WgmmaTile& tile = *variant.wgmma;
    const LaunchConfig config = wgmma_config(variant, p, multiprocessors);
    const std::int64_t clusters = config.grid.x / config.cluster, blocks = config.grid.x;
    const bool even = parts_of(p, wgmma_part(variant, {})) % clusters == 0;
    return blocks_of(tile) <= 2 && tile.per_sm == 1 &&
           (blocks * 2 <= multiprocessors || (even && blocks * 20 >= multiprocessors * 19));
}

}  // namespace

bool wgmma_can_run(const GemmVariant& variant, const GemmProblem& p, int sm) {
    return runs_sm90(variant.kernel(), sm) && p.batch_rank <= kMaxBatchDims &&
           parts_of_k(variant, p) >= least_parts_of_k(*variant.wgmma) &&
           (!changes(p.epilogue) ||
            (wgmma_finishes(*variant.wgmma) && wgmma_store(variant, p) != WgmmaStore::pairs)) &&
           std::max({p.m, p.n, p.k}) <= kMaxExtent - 1024 &&
           parts_of(p, {variant.wgmma->rows, variant.wgmma->columns}) <= kMaxExtent / 16 &&
           fits(operand_a(variant, p), p) && fits(operand_b(variant, p), p);
}

WgmmaStore wgmma_store(const GemmVariant& v, const GemmProblem& p) {
    // The copy engine writes whole units of a row, past its end too.
    const auto can = [&](bool turned) {
        const Matrices c = result(v, p, turned);
        return (turned ? p.c_row : p.c_col) == 1 && bytes(c, c.inner) % kUnit == 0 && fits(c, p) &&
               std::none_of(c.batch_strides, c.batch_strides + p.batch_rank, [](auto s) { return s == 0; });
    };
    const WgmmaTile& tile = *v.wgmma;
    const int size = static_cast<int>(itemsize(v.dtype)),
              result_size = static_cast<int>(itemsize(v.result.value_or(v.dtype)));
    if (wgmma_from_registers(v.a == GemmLayout::along_k, size)) return WgmmaStore::pairs;
    const GemmEpilogue& e = p.epilogue;
    const bool adds =  // a residual is read by pairs
        e.residual == nullptr ||
        (e.residual_col == 1 && e.residual_row % 2 == 0 &&
         reinterpret_cast<std::uintptr_t>(e.residual) % static_cast<unsigned>(2 * result_size) == 0);
    if (wgmma_maps_result(tile, result_size) && can(false) && adds && e.activation == GemmActivation::none) {
        return WgmmaStore::map;
    }
    const bool along_k = v.a == GemmLayout::along_k && v.b == GemmLayout::along_k;
    const bool turns = wgmma_turns_result(tile, along_k, size, result_size) && !changes(e) && can(true);
    return turns ? WgmmaStore::turned : WgmmaStore::rows;
}

double wgmma_us(const GemmVariant& variant, const GemmProblem& p, int multiprocessors, double most) {
    // Rates of an H200, of which the shares were fitted.
    constexpr double kMemoryBytesPerUs = 4.3e6, kTrafficBytesPerUs = 5.5e6, kUneven = 0.2;
    const WgmmaTile& tile = *variant.wgmma;
    const WgmmaTimes& times = *variant.wgmma_times;
    const BlockPart part = wgmma_part(variant, {});
    const auto parts = static_cast<double>(parts_of(p, part));
    const auto size = static_cast<double>(itemsize(variant.dtype));
    const auto m = static_cast<double>(p.m), n = static_cast<double>(p.n), k = static_cast<double>(p.k);
    const double memory_us =
        (m * k + k * n + m * n) * static_cast<double>(p.batches) * size / kMemoryBytesPerUs;
    const double traffic_us =
        parts * static_cast<double>(part.rows + part.columns) * k * size / kTrafficBytesPerUs;
    const double at_once = tiles_at_once(tile, multiprocessors), waves = std::ceil(parts / at_once);
    // Who has nothing left in the last wave leaves memory idle.
    const double uneven = waves > 1 ? 1 + kUneven * (waves * at_once / parts - 1) : 1;
    const auto depth = static_cast<double>(ceil_div(parts_of_k(variant, p), tile.split));
    // The fit does not know where it leaves what was measured: nothing is quicker than a multiprocessor.
    const double part_us = std::max<double>(times.part_us, least_part_us(tile));
    const double working_us = waves * (times.tile_us + depth * part_us);
    // None hides behind another wholly where both take about as long.
    const double all_us[] = {working_us, times.memory_share * memory_us * uneven,
                             times.traffic_share * traffic_us * uneven};
    if (const double least = times.start_us + std::ranges::max(all_us); least > most) return least;
    double sum = 0;
    for (const double us : all_us) sum += us * us * us;
    return times.start_us + std::cbrt(sum);
}

LaunchConfig wgmma_config(const GemmVariant& variant, const GemmProblem& p, int multiprocessors) {
    const WgmmaTile& tile = *variant.wgmma;
    const int blocks = blocks_of(tile);
    // Those that share a tile's k make one tile and end; others stay.
    std::int64_t clusters = parts_of(p, wgmma_part(variant, {}));
    if (tile.split == 1) clusters = std::min<std::int64_t>(clusters, tiles_at_once(tile, multiprocessors));
    return {.grid = {static_cast<std::uint32_t>(clusters * blocks)},
            .block = {kWgmmaThreads},
            .shared_bytes = static_cast<std::uint32_t>(wgmma_shared_bytes(tile)),
            .cluster = static_cast<std::uint32_t>(blocks)};
}

BlockPart wgmma_part(const GemmVariant& variant, const LaunchConfig&) {
    const WgmmaTile& tile = *variant.wgmma;
    return {std::int64_t{tile.rows} * tile.below, std::int64_t{tile.columns} * tile.beside};
}

GemmWgmmaParams wgmma_params(Stream& stream, const GemmVariant& variant, const GemmProblem& p) {
    Device& device = stream.device();
    const WgmmaTile& tile = *variant.wgmma;
    const Matrices a = operand_a(variant, p), b = operand_b(variant, p);
    const bool a_along_k = variant.a == GemmLayout::along_k, b_along_k = variant.b == GemmLayout::along_k;
    const int depth =
        kWgmmaDepthBytes / static_cast<int>(itemsize(variant.dtype));  // 64 where it is across k
    GemmWgmmaParams params;
    const int a_lines = a_along_k ? wgmma_lines(tile.rows, p.m) : tile.rows,
              b_lines = b_along_k ? wgmma_lines(tile.columns, p.n) : tile.columns;
    params.a_lines = wgmma_brought(a_lines, tile.beside);
    params.b_lines = wgmma_brought(b_lines, tile.below);
    params.stage_bytes = (a_lines + b_lines) * kWgmmaDepthBytes;
    params.a = map_of(device, a, p, depth, a_along_k ? params.a_lines.count : depth);
    params.b = map_of(device, b, p, depth, b_along_k ? params.b_lines.count : depth);
    params.store = wgmma_store(variant, p);
    if (params.store == WgmmaStore::map || params.store == WgmmaStore::turned) {
        const bool turned = params.store == WgmmaStore::turned;
        const Matrices c = result(variant, p, turned);
        const int whole = 128 / static_cast<int>(itemsize(c.dtype)), columns = wgmma_own_columns(tile),
                  rest = columns % whole;
        const auto map = [&](int of_columns) {
            return turned ? map_of(device, c, p, kWgmmaStoreRows, of_columns, TensorSwizzle::none)
                          : map_of(device, c, p, of_columns, kWgmmaStoreRows,
                                   of_columns == whole ? TensorSwizzle::bytes_128 : TensorSwizzle::none);
        };
        if (columns >= whole) params.c = map(whole);
        if (rest > 0) params.c_rest = map(rest);
    }
    params.problem = p;
    params.successor_may_come = successor_may_come(variant, p, stream.multiprocessors());
    params.group = kWgmmaGroupRows / (tile.rows * tile.below);
    return params;
}

}  // namespace gpk::ops
