#include "ops/gemm_codes.hpp"

#include <algorithm>

#include "kernels/gemm/gemm_codes.hpp"
#include "kernels/gemm/gemv_mma.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/matmul_variants.hpp"
#include "ops/model_checks.hpp"
#include "ops/sm90.hpp"

namespace gpk::ops {

namespace {

constexpr int kMostShares = 6;  // clusters of more seldom find a place

// What leaves multiprocessors the fewest stages one after another. Blocks take as long to begin and end as
// for some stages.
int shares_of_k(std::int64_t tiles, std::int64_t stages, int multiprocessors) {
    constexpr std::int64_t kBlockStages = 8;
    const auto cost = [&](int shares) {
        return ceil_div(tiles, clusters_at_once(shares, multiprocessors)) *
               (ceil_div(stages, shares) + kBlockStages);
    };
    int best = 1;
    for (int shares = 2; shares <= std::min<std::int64_t>(kMostShares, stages); ++shares) {
        if (cost(shares) < cost(best)) best = shares;
    }
    return best;
}

}  // namespace

bool prefers_gemm_codes(const Array& x, const QuantizedWeight& weight) {
    // Measured on an H200. Fewer rows go 16 at a time, more with the dequantised weight.
    constexpr std::int64_t kMostRows = 256, kFewRows = 32, kVeryFewRows = 24, kLeastWeights = 8 << 20;
    const std::int64_t m = x.shape()[0];
    const int sm = x.device().driver().info().sm;
    if (sm == 0 || itemsize(x.dtype()) != 2 || !runs_sm90(gpk::gemm_codes(x.dtype(), weight.layout()), sm))
        return false;
    if (m <= kFewRows && weight.n * weight.k < kLeastWeights) return false;
    return m <= kMostRows && m > (quant_bits(weight.format) == 4 ? kVeryFewRows : kMaxGemvMmaRows);
}

namespace {

// Words [of a row][rows], in boxes of so many.
TensorMap map_of(Device& device, const void* from, std::initializer_list<std::int64_t> extents,
                 std::initializer_list<std::int64_t> box) {
    TensorMapDef def;
    def.address = reinterpret_cast<DevicePtr>(from);
    def.dtype = DType::uint32;
    def.rank = static_cast<int>(extents.size());
    std::uint64_t stride = 4;
    for (int i = 0; i < def.rank; ++i) {
        def.extents[i] = static_cast<std::uint64_t>(extents.begin()[i]);
        def.box[i] = static_cast<std::uint32_t>(box.begin()[i]);
        if (i > 0) def.strides_bytes[i - 1] = stride;
        stride *= def.extents[i];
    }
    return device.driver().tensor_map(def);
}

void map_weight(GemmCodesParams& p, Device& device) {
    constexpr std::int64_t kTileWords = kQuantTileBytes / 4;
    const QuantLayout& w = p.w;
    const std::int64_t tiles = quant_tiles(w.n), steps = quant_steps(w.format, w.k);
    const std::int64_t of_stage = kCodesDepth / quant_step(w.format);
    p.codes = map_of(device, w.data, {kTileWords, steps, tiles}, {kTileWords, of_stage, kCodesTiles});
    if (p.stage_scales == 0) return;
    const std::int64_t scales = steps * p.stage_scales / of_stage;
    p.scales = map_of(device, w.scales, {scales, tiles}, {p.stage_scales, kCodesTiles});
    if (w.offsets != nullptr)
        p.offsets = map_of(device, w.offsets, {scales, tiles}, {p.stage_scales, kCodesTiles});
}

}  // namespace

void gemm_codes(const Array& x, const QuantizedWeight& weight, const Array& out, int shares) {
    const QuantLayout w = weight.layout();
    const std::int64_t m = x.shape()[0], stages = codes_stages(w.k);
    const Array arranged =
        Array::empty(x.device(), {ceil_div(m, kCodesRows) * kCodesRows, stages * kCodesDepth}, x.dtype());
    const std::int64_t x_row = m == 1 ? w.k : x.strides()[0];
    const ArrangeRowsParams arrange{.x = x.as<const void>(),
                                    .out = arranged.as<void>(),
                                    .m = m,
                                    .k = w.k,
                                    .x_row = x_row,
                                    .wide = aligned16(x) && x_row % 8 == 0};
    constexpr std::int64_t kArrangeThreads = 256, kOfThread = 32;
    launch(arrange_rows(x.dtype()),
           {.grid = {static_cast<std::uint32_t>(ceil_div(arranged.size() / kOfThread, kArrangeThreads))},
            .block = {kArrangeThreads}},
           arrange, {.bytes = static_cast<double>(x.nbytes() + arranged.nbytes())}, {&x}, {&arranged});

    const std::int64_t c_row = m == 1 ? w.n : out.strides()[0], four_bytes = 4 * itemsize(out.dtype());
    const int bytes = codes_stage_bytes(w);
    GemmCodesParams params{
        .codes = {},
        .scales = {},
        .offsets = {},
        .x = arranged.as<const void>(),
        .c = out.as<void>(),
        .m = m,
        .c_row = c_row,
        .float32_out = out.dtype() == DType::float32,
        .wide = reinterpret_cast<std::uintptr_t>(out.as<void>()) % four_bytes == 0 && c_row % 4 == 0,
        .w = w,
        .stages = 0,
        .stage_pitch = (bytes + 1023) / 1024 * 1024,  // for the swizzle of x
        .stage_bytes = bytes,
        .stage_scales = codes_stage_scales(w)};
    const double flops = 2 * static_cast<double>(m) * static_cast<double>(w.n) * static_cast<double>(w.k);
    const Cost cost{.flops = flops,
                    .bytes = static_cast<double>(weight.nbytes() + arranged.nbytes() + out.nbytes())};
    with_storages(
        {&arranged, &weight.data, &weight.scales, &weight.offsets_or_scales(), &weight.global_or_scales()},
        {&out}, [&](Stream& stream) {
            map_weight(params, stream.device());
            const std::int64_t tiles = ceil_div(m, kCodesRows) * ceil_div(w.n, kCodesColumns);
            if (shares == 0) shares = shares_of_k(tiles, stages, std::max(stream.multiprocessors(), 1));
            shares = static_cast<int>(std::min<std::int64_t>(shares, stages));
            constexpr std::int64_t kBarrierBytes = 2 * 8 * kCodesStages;
            const std::int64_t room = stream.device().driver().info().shared_bytes_per_block - kBarrierBytes;
            params.stages = static_cast<std::int32_t>(
                std::clamp<std::int64_t>(room / params.stage_pitch, kLeastCodesStages, kCodesStages));
            const LaunchConfig config{.grid = {static_cast<std::uint32_t>(tiles * shares)},
                                      .block = {kCodesThreads},
                                      .shared_bytes = static_cast<std::uint32_t>(
                                          params.stages * params.stage_pitch + kBarrierBytes),
                                      .cluster = static_cast<std::uint32_t>(shares)};
            stream.device().launcher().launch(stream, gpk::gemm_codes(x.dtype(), w), config, params, cost);
        });
}

}  // namespace gpk::ops
