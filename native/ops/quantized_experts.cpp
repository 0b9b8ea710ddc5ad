// Products of a mixture of experts whose weights are quantised.
#include <algorithm>

#include "base/error.hpp"
#include "kernels/gemm/gemv_quantized.hpp"
#include "ops/elementwise.hpp"
#include "ops/glu.hpp"
#include "ops/grouped_linear.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"
#include "ops/quantize.hpp"

namespace gpk::ops {

namespace {

constexpr const char* kCall = "grouped_linear";
// Up to so many rows an expert, in the mean, its codes are read once for each 8 or 16 rows.
constexpr std::int64_t kFewRows = 8;

Array multiply_codes(const Array& x, const QuantizedExperts& weight, const Array& offsets) {
    const QuantizedWeight& all = weight.all();
    const std::int64_t rows = x.shape()[0];
    const Array y = Array::empty(x.device(), {rows, all.n}, x.dtype());
    const GemvQuantizedParams params{.x = x.as<const void>(),
                                     .c = y.as<void>(),
                                     .m = rows,
                                     .x_row = x.strides()[0],
                                     .c_row = all.n,
                                     .float32_out = x.dtype() == DType::float32,
                                     .w = all.layout(),
                                     .offsets = offsets.as<const std::int32_t>(),
                                     .experts = static_cast<std::int32_t>(weight.experts())};
    const LaunchConfig config{.grid = {static_cast<std::uint32_t>(quant_tiles(all.n)),
                                       static_cast<std::uint32_t>(weight.experts())},
                              .block = {kGemvMmaThreads}};
    // No more experts than rows are read.
    const double read = static_cast<double>(all.nbytes()) *
                        static_cast<double>(std::min(rows, weight.experts())) /
                        static_cast<double>(weight.experts());
    const Cost cost{.flops = 2 * static_cast<double>(y.size()) * static_cast<double>(all.k),
                    .bytes = read + static_cast<double>(x.nbytes() + y.nbytes())};
    launch(gemv_quantized(x.dtype(), params.w, std::min<std::int64_t>(rows, 8)), config, params, cost,
           {&x, &offsets, &all.data, &all.scales, &all.offsets_or_scales(), &all.global_or_scales()}, {&y});
    return y;
}

Array multiply_parts(const Array& x, const QuantizedExperts& weight, const Array& offsets,
                     std::optional<GluOp> gate) {
    constexpr std::int64_t kPartBytes = std::int64_t{256} << 20;
    const QuantizedWeight& all = weight.all();
    const std::int64_t expert_bytes = all.n * all.k * static_cast<std::int64_t>(itemsize(x.dtype()));
    const std::int64_t most = std::clamp<std::int64_t>(kPartBytes / expert_bytes, 1, weight.experts());
    const Array y = Array::empty(x.device(), {x.shape()[0], gate ? all.n / 2 : all.n}, x.dtype());
    for (std::int64_t first = 0; first < weight.experts(); first += most) {
        const std::int64_t count = std::min(most, weight.experts() - first);
        const Array part = Array::empty(x.device(), {count, all.n, all.k}, x.dtype());
        for (std::int64_t i = 0; i < count; ++i) dequantize_into(weight.expert(first + i), part.select(0, i));
        // Rows of other experts are not written.
        grouped_linear(x, part, offsets.slice(0, first, 1, count + 1), gate, &y);
    }
    return y;
}

}  // namespace

Array grouped_linear(const Array& x, const QuantizedExperts& weight, const Array& offsets,
                     std::optional<GluOp> gate) {
    require_model_float(kCall, "x", x.dtype());
    common_device(kCall, {&x, &weight.all().data, &offsets});
    require_array(kCall, "offsets", offsets, {weight.experts() + 1}, DType::int32);
    if (x.rank() != 2 || x.shape()[1] != weight.all().k) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "x",
                                       .expected = str("shape (rows, ", weight.all().k, ")"),
                                       .got = to_string(x.shape())});
    }
    if (gate && weight.all().n % 2 != 0) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "weight",
                                       .expected = "an even number of rows, gates and ups",
                                       .got = str(weight.all().n)});
    }
    const std::int64_t rows = x.shape()[0];
    const Array at = contiguous(offsets);
    if (rows > kFewRows * weight.experts()) return multiply_parts(x, weight, at, gate);
    if (rows == 0)
        return Array::empty(x.device(), {0, gate ? weight.all().n / 2 : weight.all().n}, x.dtype());
    const Array y = multiply_codes(aligned_rows(x), weight, at);
    return gate ? glu(*gate, y) : y;
}

}  // namespace gpk::ops
