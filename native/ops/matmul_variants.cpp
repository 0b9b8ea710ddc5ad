#include "ops/matmul_variants.hpp"

#include <algorithm>
#include <utility>

#include "kernels/gemm/gemm.hpp"
#include "kernels/gemm/gemm_float32.hpp"
#include "kernels/gemm/gemm_float64.hpp"
#include "kernels/gemm/gemm_mma.hpp"
#include "kernels/gemm/gemv.hpp"
#include "kernels/gemm/gemv_mma.hpp"
#include "ops/matmul_gemv.hpp"
#include "ops/matmul_wgmma.hpp"
#include "ops/matmul_wgmma_times.hpp"
#include "runtime/device.hpp"

namespace gpk::ops {

namespace {

template <auto id>
const Kernel& kernel() {
    return gemm_kernel(id);
}

std::int64_t tiles(const GemmVariant& variant, const GemmProblem& p) {
    return ceil_div(p.m, variant.tile) * ceil_div(p.n, variant.tile);
}

LaunchConfig gemm_config(const GemmVariant& variant, const GemmProblem& p, int) {
    return {.grid = {static_cast<std::uint32_t>(tiles(variant, p)), batch_blocks(p)},
            .block = {kGemmThreads}};
}

LaunchConfig mma_config(const GemmVariant& variant, const GemmProblem& p, int) {
    return {.grid = {static_cast<std::uint32_t>(tiles(variant, p)), batch_blocks(p)},
            .block = {static_cast<std::uint32_t>(mma_threads(variant.tile))},
            .shared_bytes = static_cast<std::uint32_t>(mma_shared_bytes(variant.tile))};
}

LaunchConfig rows_config(const GemmVariant& variant, const GemmProblem& p, int multiprocessors) {
    constexpr std::uint32_t kWarps = kGemvThreads / 32;
    constexpr std::int64_t kWarpsPerMultiprocessor =
        16;  // enough loads in flight to fill the memory's latency
    const std::int64_t groups = ceil_div(p.n, kGemvColumns);
    const std::int64_t rounds =
        p.k * static_cast<std::int64_t>(itemsize(variant.dtype)) / (16 * 32);  // of one warp
    std::uint32_t share = 1;
    while (share < kWarps && groups * share < multiprocessors * kWarpsPerMultiprocessor &&
           rounds >= 2 * share) {
        share *= 2;
    }
    return {.grid = {static_cast<std::uint32_t>(ceil_div(groups, kWarps / share)), batch_blocks(p)},
            .block = {32, share, kWarps / share}};
}

std::int64_t chunk_columns(const GemmVariant& variant) {
    return kGemvChunks * 16 / static_cast<std::int64_t>(itemsize(variant.dtype));
}

LaunchConfig columns_config(const GemmVariant& variant, const GemmProblem& p, int) {
    return {.grid = {static_cast<std::uint32_t>(ceil_div(p.n, chunk_columns(variant))), batch_blocks(p)},
            .block = {kGemvChunks, kGemvThreads / kGemvChunks}};
}

LaunchConfig float32_config(const GemmVariant&, const GemmProblem& p, int) {
    const std::int64_t blocks = ceil_div(p.m, kGemmFloat32Rows) * ceil_div(p.n, kGemmFloat32Columns);
    return {.grid = {static_cast<std::uint32_t>(blocks), batch_blocks(p)},
            .block = {kGemmFloat32Threads},
            .shared_bytes = kGemmFloat32SharedBytes};
}

LaunchConfig float64_config(const GemmVariant& variant, const GemmProblem& p, int) {
    return {.grid = {static_cast<std::uint32_t>(tiles(variant, p)), batch_blocks(p)},
            .block = {kGemmFloat64Threads},
            .shared_bytes = kGemmFloat64SharedBytes};
}

BlockPart float32_part(const GemmVariant&, const LaunchConfig&) {
    return {kGemmFloat32Rows, kGemmFloat32Columns};
}

BlockPart tile_part(const GemmVariant& variant, const LaunchConfig&) { return {variant.tile, variant.tile}; }

// The warps that share a group of columns divide k: how many they are must stay as it is.
BlockPart rows_part(const GemmVariant& variant, const LaunchConfig& config) {
    return {variant.max_m, std::int64_t{kGemvColumns} * config.block.z};
}

BlockPart columns_part(const GemmVariant& variant, const LaunchConfig&) {
    return {variant.max_m, chunk_columns(variant)};
}

constexpr GemmLayout kAlongK = GemmLayout::along_k, kAcross = GemmLayout::across, kAny = GemmLayout::any;

#define GPK_GEMV_ROWS(name, rows)                            \
    {.kernel = kernel<GemvKernel::gemv_##name##_rows##rows>, \
     .dtype = DType::name,                                   \
     .a = kAlongK,                                           \
     .b = kAlongK,                                           \
     .config = rows_config,                                  \
     .part = rows_part,                                      \
     .max_m = rows,                                          \
     .alignment_bytes = 16}
#define GPK_GEMV(name)                                                                              \
    GPK_GEMV_ROWS(name, 1), GPK_GEMV_ROWS(name, 2), GPK_GEMV_ROWS(name, 4), GPK_GEMV_ROWS(name, 8), \
        {.kernel = kernel<GemvKernel::gemv_##name##_columns>,                                       \
         .dtype = DType::name,                                                                      \
         .a = kAny,                                                                                 \
         .b = kAcross,                                                                              \
         .config = columns_config,                                                                  \
         .part = columns_part,                                                                      \
         .max_m = 1,                                                                                \
         .alignment_bytes = 16}
// Of `most` or fewer rows of float16 or bfloat16. Of 9 to 16 rows tiles need 0.6 to 0.95 of the time where
// the weights are large, as measured on an H200.
#define GPK_FEW_HELD(name, result_, most, kernel_, form, a_, b_, held) \
    {.kernel = kernel_,                                                \
     .dtype = DType::name,                                             \
     .a = a_,                                                          \
     .b = b_,                                                          \
     .config = gemv_config,                                            \
     .part = gemv_part,                                                \
     .max_m = most,                                                    \
     .alignment_bytes = 16,                                            \
     .gemv = GemvForm::form,                                           \
     .held_units = held,                                               \
     .least_m = held > 4 ? 3 : 0,                                      \
     .result = result_,                                                \
     .most_n = most > 8 ? 10240 : 0,                                   \
     .most_k = most > 8 ? 7168 : 0}
#define GPK_FEW(name, result, most, kernel, form, a, b) \
    GPK_FEW_HELD(name, result, most, kernel, form, a, b, 0)
#define GPK_HELD(name, suffix, result, units)                                                             \
    GPK_FEW_HELD(name, result, 8,                                                                         \
                 kernel<GemvBulkKernel::gemv_bulk_##name##suffix##_rows_held##units##_tiles1>, bulk_rows, \
                 kAlongK, kAlongK, units)
#define GPK_HELD_ROWS_TO(name, suffix, result) \
    GPK_HELD(name, suffix, result, 4), GPK_HELD(name, suffix, result, 8), GPK_HELD(name, suffix, result, 12)
#define GPK_HELD_ROWS(name) \
    GPK_HELD_ROWS_TO(name, , std::nullopt), GPK_HELD_ROWS_TO(name, _float32, DType::float32)
#define GPK_BULK_ROWS_TO(name, suffix, result, most, tiles)                                                  \
    GPK_FEW(name, result, most, kernel<GemvBulkKernel::gemv_bulk_##name##suffix##_rows_tiles##tiles>,        \
            bulk_rows, kAlongK, kAlongK),                                                                    \
        GPK_FEW(name, result, most, kernel<GemvBulkKernel::gemv_bulk_##name##suffix##_columns_tiles##tiles>, \
                bulk_columns, kAlongK, kAcross)
#define GPK_MMA_ROWS_TO(name, suffix, result, most, tiles)                                                 \
    GPK_FEW(name, result, most, kernel<GemvMmaKernel::gemv_mma_##name##suffix##_rows_tiles##tiles>, rows,  \
            kAlongK, kAlongK),                                                                             \
        GPK_FEW(name, result, most, kernel<GemvMmaKernel::gemv_mma_##name##suffix##_columns_tiles##tiles>, \
                columns_split, kAny, kAcross),                                                             \
        GPK_FEW(name, result, most, kernel<GemvMmaKernel::gemv_mma_##name##suffix##_columns_tiles##tiles>, \
                columns, kAny, kAcross)
#define GPK_LONG_ROWS(name)                        \
    GPK_FEW(name, std::nullopt, kBulkStreamedRows, \
            kernel<GemvBulkKernel::gemv_bulk_##name##_streamed_tiles1>, bulk_streamed, kAlongK, kAlongK)
#define GPK_FEW_ROWS(name)                                                                                  \
    GPK_HELD_ROWS(name), GPK_BULK_ROWS_TO(name, , std::nullopt, 8, 1),                                      \
        GPK_BULK_ROWS_TO(name, _float32, DType::float32, 8, 1), GPK_LONG_ROWS(name),                        \
        GPK_MMA_ROWS_TO(name, , std::nullopt, 8, 1), GPK_MMA_ROWS_TO(name, _float32, DType::float32, 8, 1), \
        GPK_BULK_ROWS_TO(name, , std::nullopt, 16, 2), GPK_MMA_ROWS_TO(name, , std::nullopt, 16, 2),        \
        GPK_BULK_ROWS_TO(name, _float32, DType::float32, 16, 2),                                            \
        GPK_MMA_ROWS_TO(name, _float32, DType::float32, 16, 2)
#define GPK_MMA(symbol, dtype_, a_, b_, tile_, is_tf32) \
    {.kernel = kernel<GemmMmaKernel::symbol>,           \
     .dtype = dtype_,                                   \
     .a = a_,                                           \
     .b = b_,                                           \
     .config = mma_config,                              \
     .part = tile_part,                                 \
     .tile = tile_,                                     \
     .alignment_bytes = 16,                             \
     .tf32 = is_tf32,                                   \
     .least_fill = tile_ == 128 ? 1.0f : 0.0f}
#define GPK_MMAS(prefix, dtype, is_tf32)                                 \
    GPK_MMA(prefix##_128_kk, dtype, kAlongK, kAlongK, 128, is_tf32),     \
        GPK_MMA(prefix##_128_kn, dtype, kAlongK, kAcross, 128, is_tf32), \
        GPK_MMA(prefix##_128_mk, dtype, kAcross, kAlongK, 128, is_tf32), \
        GPK_MMA(prefix##_128_mn, dtype, kAcross, kAcross, 128, is_tf32), \
        GPK_MMA(prefix##_64_kk, dtype, kAlongK, kAlongK, 64, is_tf32),   \
        GPK_MMA(prefix##_64_kn, dtype, kAlongK, kAcross, 64, is_tf32)
#define GPK_FLOAT32(symbol, a_, b_)               \
    {.kernel = kernel<GemmFloat32Kernel::symbol>, \
     .dtype = DType::float32,                     \
     .a = a_,                                     \
     .b = b_,                                     \
     .config = float32_config,                    \
     .part = float32_part,                        \
     .alignment_bytes = 16,                       \
     .least_fill = 0.6f}
#define GPK_GEMM(symbol, dtype_, tile_)    \
    {.kernel = kernel<GemmKernel::symbol>, \
     .dtype = dtype_,                      \
     .a = kAny,                            \
     .b = kAny,                            \
     .config = gemm_config,                \
     .part = tile_part,                    \
     .tile = tile_}

template <class T>
constexpr DType dtype_of() {
    if constexpr (std::is_same_v<T, float>) return DType::float32;
    if constexpr (std::is_same_v<T, float16>) return DType::float16;
    if constexpr (std::is_same_v<T, bfloat16>) return DType::bfloat16;
    if constexpr (std::is_same_v<T, std::int8_t>) return DType::int8;
    if constexpr (std::is_same_v<T, std::int32_t>) return DType::int32;
    if constexpr (std::is_same_v<T, float8_e4m3>) return DType::float8_e4m3;
    if constexpr (std::is_same_v<T, float8_e5m2>) return DType::float8_e5m2;
}

#define GPK_WGMMA(T, type, tile_name, layout, a_along_k, b_along_k, Out, suffix, sums)      \
    {.kernel = kernel<GemmWgmmaKernel::gemm_wgmma_##type##_##tile_name##_##layout##suffix>, \
     .dtype = dtype_of<T>(),                                                                \
     .a = a_along_k ? kAlongK : kAcross,                                                    \
     .b = b_along_k ? kAlongK : kAcross,                                                    \
     .config = wgmma_config,                                                                \
     .part = wgmma_part,                                                                    \
     .alignment_bytes = 16,                                                                 \
     .tf32 = std::is_same_v<T, float>,                                                      \
     .result = std::is_same_v<T, Out> ? std::nullopt : std::optional(dtype_of<Out>()),      \
     .wgmma = &wgmma_tile_##tile_name,                                                      \
     .wgmma_times = &wgmma_times_##tile_name,                                               \
     .block_scales = WgmmaSums::sums == WgmmaSums::scaled},

constexpr GemmVariant kVariants[] = {
    GPK_FEW_ROWS(bfloat16),
    GPK_FEW_ROWS(float16),
    GPK_GEMV(float32),
    GPK_WGMMA_KERNELS(GPK_WGMMA) GPK_MMAS(gemm_mma_bfloat16, DType::bfloat16, false),
    GPK_MMAS(gemm_mma_float16, DType::float16, false),
    GPK_MMAS(gemm_mma_tf32, DType::float32, true),
    GPK_FLOAT32(gemm_float32_kk, kAlongK, kAlongK),
    GPK_FLOAT32(gemm_float32_kn, kAlongK, kAcross),
    GPK_FLOAT32(gemm_float32_mn, kAcross, kAcross),
    GPK_FLOAT32(gemm_float32_any, kAny, kAny),
    GPK_GEMM(gemm_float32_64, DType::float32, 64),
    {.kernel = gemm_float64,
     .dtype = DType::float64,
     .a = kAny,
     .b = kAny,
     .config = float64_config,
     .part = tile_part,
     .tile = kGemmFloat64Tile,
     .least_fill = 0.6f},
    GPK_GEMM(gemm_float64_64, DType::float64, 64),
    GPK_GEMM(gemm_float16_64, DType::float16, 64),
    GPK_GEMM(gemm_bfloat16_64, DType::bfloat16, 64),
    GPK_GEMM(gemm_uint8_64, DType::uint8, 64),
    GPK_GEMM(gemm_uint16_64, DType::uint16, 64),
    GPK_GEMM(gemm_uint32_64, DType::uint32, 64),
    GPK_GEMM(gemm_uint64_64, DType::uint64, 64),
    GPK_GEMM(gemm_bool_64, DType::bool_, 64),
};

// `lines` is m or n. A stride that no index uses says nothing.
bool layout_fits(GemmLayout layout, const GemmVariant& variant, const void* start, std::int64_t lines,
                 std::int64_t line_stride, std::int64_t k, std::int64_t k_stride,
                 const std::int64_t* batch_strides, int batch_rank) {
    if (layout == GemmLayout::any) return true;
    const auto aligned = [&](std::int64_t elements) {
        return elements * static_cast<std::int64_t>(itemsize(variant.dtype)) % variant.alignment_bytes == 0;
    };
    const bool along_k = layout == GemmLayout::along_k;
    const bool contiguous = along_k ? k <= 1 || k_stride == 1 : lines <= 1 || line_stride == 1;
    const bool pitch = along_k ? lines <= 1 || aligned(line_stride) : k <= 1 || aligned(k_stride);
    return contiguous && pitch && reinterpret_cast<std::uintptr_t>(start) % variant.alignment_bytes == 0 &&
           std::all_of(batch_strides, batch_strides + batch_rank, aligned);
}

}  // namespace

std::span<const GemmVariant> gemm_variants() { return kVariants; }

DType gemm_dtype(DType dtype) {
    switch (dtype) {
        case DType::int8: return DType::uint8;
        case DType::int16: return DType::uint16;
        case DType::int32: return DType::uint32;
        case DType::int64: return DType::uint64;
        default: return dtype;
    }
}

std::uint32_t batch_blocks(const GemmProblem& p) {
    constexpr std::int64_t kMaxGridY = 65535;
    return static_cast<std::uint32_t>(std::min(p.batches, kMaxGridY));
}

std::int64_t parts_of(const GemmProblem& p, const BlockPart& part) {
    return ceil_div(p.m, part.rows) * ceil_div(p.n, part.columns) * p.batches;
}

LaunchConfig grid_of(const GemmVariant& variant, const GemmProblem& p, const BlockPart& part,
                     const LaunchConfig& whole) {
    LaunchConfig config = whole;
    if (variant.wgmma != nullptr) {  // they stay
        config.grid.x = std::min(whole.grid.x, static_cast<std::uint32_t>(parts_of(p, part)) * whole.cluster);
        return config;
    }
    const auto parts = static_cast<std::uint32_t>(ceil_div(p.m, part.rows) * ceil_div(p.n, part.columns));
    config.grid = {parts * whole.cluster, batch_blocks(p)};
    if (is_bulk(variant.gemv)) config.grid.x = std::min(parts, whole.grid.x);  // so do they
    return config;
}

void launch_variant(Stream& stream, const GemmVariant& variant, const GemmProblem& p,
                    const LaunchConfig& config, const Cost& cost) {
    Device& device = stream.device();
    if (is_bulk(variant.gemv)) {
        device.launcher().launch(stream, variant.kernel(), config,
                                 gemv_bulk_params(stream, variant, p, config), cost);
    } else if (variant.wgmma != nullptr) {
        device.launcher().launch(stream, variant.kernel(), config, wgmma_params(stream, variant, p), cost);
    } else {
        device.launcher().launch(stream, variant.kernel(), config, p, cost);
    }
}

GemmProblem transposed(const GemmProblem& p) {
    GemmProblem t = p;
    std::swap(t.a, t.b);
    std::swap(t.m, t.n);
    t.a_row = p.b_col, t.a_col = p.b_row;
    t.b_row = p.a_col, t.b_col = p.a_row;
    t.c_row = p.c_col, t.c_col = p.c_row;
    std::copy_n(p.b_batch, p.batch_rank, t.a_batch);
    std::copy_n(p.a_batch, p.batch_rank, t.b_batch);
    t.b_settled = false;  // it is a that may be
    return t;
}

bool can_run(const GemmVariant& variant, const GemmProblem& p, const GemmTypes& types, int sm) {
    // A product that wraps is the same signed or not; one that widens is not.
    const bool of_types = variant.result
                              ? variant.dtype == types.operands && *variant.result == types.result
                              : types.operands == types.result && variant.dtype == gemm_dtype(types.operands);
    return of_types && (!variant.tf32 || types.precision == MatmulPrecision::tf32) &&
           (variant.max_m == 0 || p.m <= variant.max_m) && variant.block_scales == (p.scales.a != nullptr) &&
           layout_fits(variant.a, variant, p.a, p.m, p.a_row, p.k, p.a_col, p.a_batch, p.batch_rank) &&
           layout_fits(variant.b, variant, p.b, p.n, p.b_col, p.k, p.b_row, p.b_batch, p.batch_rank) &&
           (variant.wgmma != nullptr
                ? wgmma_can_run(variant, p, sm)
                : !changes(p.epilogue) || (is_bulk(variant.gemv) && adds_only(p.epilogue))) &&
           (p.norm.weight == nullptr || variant.held_units > 0) && gemv_can_run(variant, p, sm);
}

}  // namespace gpk::ops
