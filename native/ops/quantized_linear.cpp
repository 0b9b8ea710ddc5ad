// Products with quantised weights.
#include <algorithm>

#include "base/error.hpp"
#include "kernels/gemm/gemv_bulk.hpp"
#include "kernels/gemm/gemv_quantized.hpp"
#include "ops/elementwise.hpp"
#include "ops/gemm_codes.hpp"
#include "ops/launch.hpp"
#include "ops/manipulation.hpp"
#include "ops/matmul.hpp"
#include "ops/model_checks.hpp"
#include "ops/quantize.hpp"
#include "ops/sm90.hpp"

namespace gpk::ops {

namespace {

constexpr const char* kCall = "linear";

// Stages of the ring, at most, measured on an H200. Where the work on the codes takes longer than their way
// (4 bits, few rows) the first stage comes late if many are asked for at once; but a long x takes long
// itself.
std::int64_t bulk_stages(const QuantLayout& w, std::int64_t m) {
    constexpr std::int64_t kLong = 8192;
    if (bulk_rounds(w.format, m) == 1) return 4;
    return w.format == QuantFormat::int4 && w.k >= kLong ? 3 : 2;
}

// How the copy engine's kernel runs, or nothing where it cannot: before SM 90, or where x leaves no room.
std::optional<LaunchConfig> bulk_config(const Stream& stream, const Kernel& kernel, const QuantLayout& w,
                                        std::int64_t m) {
    const DeviceInfo& info = stream.device().driver().info();
    if (!runs_sm90(kernel, info.sm)) return std::nullopt;
    const int step_units = quant_step(w.format) / 32;
    const std::int64_t x_bytes =
        bulk_beside_bytes(m, quant_steps(w.format, w.k) * step_units, step_units, w.group);
    const std::int64_t room =
        static_cast<std::int64_t>(info.shared_bytes_per_block) - kBulkStaticBytes - x_bytes;
    const std::int64_t stage = bulk_stage_bytes(w.format, w.group, m);
    const std::int64_t stages = std::min(room / stage, bulk_stages(w, m));
    if (room < 0 || stages < kLeastQuantizedStages) return std::nullopt;
    const std::int64_t blocks =
        std::min<std::int64_t>(quant_tiles(w.n), std::max(stream.multiprocessors(), 1));
    return LaunchConfig{.grid = {static_cast<std::uint32_t>(blocks)},
                        .block = {kBulkThreads},
                        .shared_bytes = static_cast<std::uint32_t>(stages * stage + x_bytes)};
}

LaunchConfig plain_config(const QuantLayout& w, std::int64_t experts) {
    return {.grid = {static_cast<std::uint32_t>(quant_tiles(w.n)), static_cast<std::uint32_t>(experts)},
            .block = {kGemvMmaThreads}};
}

// Few rows, all at once.
void multiply_codes(const Array& x, const QuantizedWeight& weight, const Array& out) {
    const Array rows = aligned_rows(x);
    const QuantLayout layout = weight.layout();
    const std::int64_t m = x.shape()[0];
    const GemvQuantizedParams params{.x = rows.as<const void>(),
                                     .c = out.as<void>(),
                                     .m = m,
                                     .x_row = m == 1 ? 0 : rows.strides()[0],
                                     .c_row = m == 1 ? 0 : out.strides()[0],
                                     .float32_out = out.dtype() == DType::float32,
                                     .w = layout,
                                     .offsets = nullptr,
                                     .experts = 1};
    const Cost cost{
        .flops = 2 * static_cast<double>(m) * static_cast<double>(weight.n) * static_cast<double>(weight.k),
        .bytes = static_cast<double>(weight.nbytes() + x.nbytes() + out.nbytes())};
    with_storages(
        {&rows, &weight.data, &weight.scales, &weight.offsets_or_scales(), &weight.global_or_scales()},
        {&out}, [&](Stream& stream) {
            const Kernel& plain = gemv_quantized(x.dtype(), layout, m);
            const Kernel& bulk =
                x.dtype() == DType::float32 ? plain : gemv_bulk_quantized(x.dtype(), layout, m);
            const auto config = &bulk == &plain ? std::nullopt : bulk_config(stream, bulk, layout, m);
            stream.device().launcher().launch(stream, config ? bulk : plain,
                                              config ? *config : plain_config(layout, 1), params, cost);
        });
}

// A few more, so many at a time: up to here quicker than dequantised weights, on an H200 and on the host.
std::int64_t most_rows_of_codes(const Array& x) {
    if (x.device().driver().info().sm == 0) return 24;
    return x.dtype() == DType::float32 ? kMaxGemvMmaRows : 48;
}
void multiply_pieces(const Array& x, const QuantizedWeight& weight, const Array& out) {
    const std::int64_t m = x.shape()[0];
    for (std::int64_t first = 0; first < m; first += kMaxGemvMmaRows) {
        const std::int64_t count = std::min<std::int64_t>(kMaxGemvMmaRows, m - first);
        multiply_codes(x.slice(0, first, 1, count), weight, out.slice(0, first, 1, count));
    }
}

// Many rows: the weight dequantised in parts, each a product.
void multiply_parts(const Array& x, const QuantizedWeight& weight, const Array& out) {
    constexpr std::int64_t kPartBytes = std::int64_t{64} << 20;
    const std::int64_t row_bytes = weight.k * static_cast<std::int64_t>(itemsize(x.dtype()));
    const std::int64_t rows = std::clamp<std::int64_t>(kPartBytes / row_bytes / kQuantRows * kQuantRows,
                                                       kQuantRows, quant_tiles(weight.n) * kQuantRows);
    for (std::int64_t first = 0; first < weight.n; first += rows) {
        const std::int64_t count = std::min(rows, weight.n - first);
        const Array part = dequantize(weight, x.dtype(), first, count).transpose({1, 0});
        const Array columns = out.slice(1, first, 1, count);
        matmul(x, part, &columns, MatmulBackend::own, out.dtype());
    }
}

}  // namespace

Array aligned_rows(const Array& x) {
    const std::int64_t m = x.shape()[0], k = x.shape()[1], pitch = (k + 7) / 8 * 8;
    const bool fits =
        last_axis_dense(x) && aligned16(x) && (m == 1 || (x.strides()[0] % 8 == 0 && x.strides()[0] >= 0));
    if (fits) return x;
    const Array padded = Array::empty(x.device(), {m, pitch}, x.dtype()).slice(1, 0, 1, k);
    assign(padded, x);
    return padded;
}

Array linear(const Array& x, const QuantizedWeight& weight, const Array* bias, std::optional<DType> dtype,
             const Array* to) {
    require_model_float(kCall, "x", x.dtype());
    Device& device = common_device(kCall, {&x, &weight.data, bias, to});
    if (x.rank() == 0 || x.shape().back() != weight.k) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "x",
                                       .expected = str("a last dimension of ", weight.k),
                                       .got = to_string(x.shape())});
    }
    if (dtype && *dtype != x.dtype() && *dtype != DType::float32) {
        throw error(ErrorKind::type, {.call = kCall,
                                      .argument = "dtype",
                                      .expected = str(gpk::name(x.dtype()), ", as x has, or float32"),
                                      .got = std::string(gpk::name(*dtype))});
    }
    if (bias != nullptr && bias->shape() != Dims{weight.n}) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "bias",
                                       .expected = str("shape (", weight.n, ",)"),
                                       .got = to_string(bias->shape())});
    }
    Dims shape(std::span(x.shape().begin(), static_cast<std::size_t>(x.rank() - 1)));
    const std::int64_t m = element_count(shape);
    shape.push_back(weight.n);
    const Array result = prepare_output(kCall, device, shape, dtype.value_or(x.dtype()), to);
    if (m == 0) return result;
    const auto flat = result.reshape_view({m, weight.n});
    const bool aside = !flat || !last_axis_dense(*flat) || overlaps(result, x) ||
                       (bias != nullptr && overlaps(result, *bias));
    const Array whole = aside ? Array::empty(device, shape, result.dtype()) : result;
    const Array out = *whole.reshape_view({m, weight.n});
    const Array plain = *contiguous(x).reshape_view({m, weight.k});
    const Array rows = weight.columns.defined() ? take(plain, weight.columns, 1) : plain;
    if (prefers_gemm_codes(rows, weight)) {
        gemm_codes(rows, weight, out);
    } else if (m <= most_rows_of_codes(rows)) {
        multiply_pieces(rows, weight, out);
    } else {
        multiply_parts(rows, weight, out);
    }
    if (bias != nullptr) binary(BinaryOp::add, whole, astype(*bias, result.dtype()), &whole);
    if (aside) assign(result, whole);
    return result;
}

}  // namespace gpk::ops
