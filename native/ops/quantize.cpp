#include "ops/quantize.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "kernels/gemm/quantize.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/manipulation.hpp"
#include "ops/model_checks.hpp"
#include "ops/reduce.hpp"

namespace gpk::ops {

namespace {

constexpr std::string_view kNames[kQuantFormats] = {"int8", "int4", "fp8", "nvfp4"};

// The largest magnitude of the weight, [1] float32; NaN where that is infinite.
Array largest_of(const Array& weight) {
    const Array high = reduce(ReduceOp::max, weight, {}, false),
                low = reduce(ReduceOp::min, weight, {}, false);
    const Array either = binary(BinaryOp::maximum, high, unary(UnaryOp::negative, low));
    const Array largest = contiguous(astype(either, DType::float32).expand_dims(0));
    return binary(BinaryOp::add, largest, binary(BinaryOp::subtract, largest, largest));
}

void check(const Array& weight, QuantFormat format, const QuantizeOptions& options) {
    constexpr const char* kCall = "quantize";
    constexpr std::int64_t kMost = std::int64_t{1} << 31;
    require_model_float(kCall, "weight", weight.dtype());
    if (weight.rank() != 2 || weight.size() == 0 || weight.shape()[0] >= kMost ||
        weight.shape()[1] >= kMost) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "weight",
                                       .expected = "2 dimensions (n, k), each of 1 to 2**31 - 1",
                                       .got = to_string(weight.shape())});
    }
    if (const auto group = options.group;
        group && (format != QuantFormat::int4 || (*group != 32 && *group != 64 && *group != 128))) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "group",
                                       .expected = "32, 64 or 128 for int4, none for another format",
                                       .got = str(*group, " for ", name(format))});
    }
    if (format != QuantFormat::int4 && options.zero_points) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "zero_points",
                                       .expected = "false for a format other than int4",
                                       .got = "true"});
    }
    if (format != QuantFormat::fp8 && options.per_tensor) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "per_tensor",
                                       .expected = "false for a format other than fp8",
                                       .got = "true"});
    }
}

}  // namespace

std::string_view name(QuantFormat format) { return kNames[static_cast<int>(format)]; }

QuantFormat quant_format_from_name(std::string_view wanted) {
    for (int i = 0; i < kQuantFormats; ++i) {
        if (kNames[i] == wanted) return static_cast<QuantFormat>(i);
    }
    throw error(ErrorKind::value, {.call = "quantize",
                                   .argument = "format",
                                   .expected = "'int8', 'int4', 'fp8' or 'nvfp4'",
                                   .got = str("'", wanted, "'")});
}

std::size_t QuantizedWeight::nbytes() const noexcept {
    std::size_t bytes = 0;
    for (const Array* part : {&data, &scales, &offsets, &global, &columns, &places}) {
        if (part->defined()) bytes += part->nbytes();
    }
    return bytes;
}

QuantLayout QuantizedWeight::layout() const {
    return {.format = format,
            .n = n,
            .k = k,
            .group = group,
            .data = data.as<const void>(),
            .scales = scales.as<const void>(),
            .offsets = offsets.defined() ? offsets.as<const float>() : nullptr,
            .global = global.defined() ? global.as<const float>() : nullptr};
}

namespace {

// Memory for a weight, or for so many that follow each other.
QuantizedWeight empty_weight(Device& device, QuantFormat format, std::int64_t n, std::int64_t k,
                             const QuantizeOptions& options, DType dtype,
                             std::optional<std::int64_t> experts) {
    QuantizedWeight w;
    w.format = format;
    w.n = n, w.k = k;
    w.dtype = dtype;
    const std::int64_t tiles = quant_tiles(n), steps = quant_steps(format, k);
    const auto empty = [&](const Dims& shape, DType type) {
        Dims whole;
        if (experts) whole.push_back(*experts);
        for (const std::int64_t extent : shape) whole.push_back(extent);
        return Array::empty(device, whole, type);
    };
    w.data = empty({tiles, steps, kQuantTileBytes}, DType::uint8);
    switch (format) {
        case QuantFormat::int8:
        case QuantFormat::fp8: w.scales = empty({tiles * kQuantRows}, DType::float32); break;
        case QuantFormat::int4: {
            w.group = options.group.value_or(128);
            const Dims shape = {tiles, quant_groups(format, k, w.group), kQuantRows};
            w.scales = empty(shape, DType::float32);
            if (options.zero_points) w.offsets = empty(shape, DType::float32);
            break;
        }
        case QuantFormat::nvfp4:
            w.scales = empty({tiles, steps, kQuantRows, 8}, DType::float8_e4m3);
            w.global = empty({1}, DType::float32);
            break;
    }
    return w;
}

void quantize_into(const QuantizedWeight& w, const Array& weight, const QuantizeOptions& options) {
    Device& device = weight.device();
    const Array source = contiguous(weight);
    if (w.global.defined()) binary(BinaryOp::divide, largest_of(source), Scalar(6.0 * 448.0), &w.global);
    const Array largest = options.per_tensor ? largest_of(source) : Array();
    const kernels::QuantizeParams params{.weight = source.as<const void>(),
                                         .largest = largest.defined() ? largest.as<const float>() : nullptr,
                                         .w = w.layout()};
    const Array& scales_of = largest.defined() ? largest : w.global.defined() ? w.global : source;
    const Array& offsets = w.offsets.defined() ? w.offsets : w.scales;
    const double elements = static_cast<double>(source.size()), bytes = static_cast<double>(source.nbytes());
    const std::int64_t rows = quant_tiles(w.n) * kQuantRows;
    const DType dtype = source.dtype();
    launch(kernels::quantize_scales(dtype),
           streaming_grid(device, rows * kernels::quant_scales(params.w) * 32), params,
           {.flops = 2 * elements, .bytes = bytes}, {&source, &scales_of}, {&w.scales, &offsets});
    launch(kernels::quantize_codes(dtype), streaming_grid(device, rows * quant_steps(w.format, w.k) * 4),
           params, {.flops = 4 * elements, .bytes = bytes + static_cast<double>(w.data.nbytes())},
           {&source, &w.scales, &offsets, &scales_of}, {&w.data});
}

}  // namespace

QuantizedWeight quantize(const Array& weight, QuantFormat format, const QuantizeOptions& options) {
    check(weight, format, options);
    const QuantizedWeight w = empty_weight(weight.device(), format, weight.shape()[0], weight.shape()[1],
                                           options, weight.dtype(), std::nullopt);
    quantize_into(w, weight, options);
    return w;
}

QuantizedExperts::QuantizedExperts(Device& device, QuantFormat format, std::int64_t experts, std::int64_t n,
                                   std::int64_t k, DType dtype)
    : experts_(experts), all_(empty_weight(device, format, n, k, {}, dtype, experts)) {}

QuantizedWeight QuantizedExperts::expert(std::int64_t index) const {
    QuantizedWeight part = all_;
    for (Array* array : {&part.data, &part.scales, &part.offsets, &part.global}) {
        if (array->defined()) *array = array->select(0, index);
    }
    return part;
}

void QuantizedExperts::set(std::int64_t index, const Array& weight) const {
    check(weight, all_.format, {});
    if (weight.shape() != Dims{all_.n, all_.k}) {
        throw error(ErrorKind::value, {.call = "quantize",
                                       .argument = "weight",
                                       .expected = "shape " + to_string({all_.n, all_.k}),
                                       .got = to_string(weight.shape())});
    }
    quantize_into(expert(index), weight, {});
}

Array dequantize(const QuantizedWeight& weight, DType dtype) {
    const Array out = dequantize(weight, dtype, 0, weight.n);
    return weight.places.defined() ? take(out, weight.places, 1) : out;
}

namespace {

void launch_dequantize(const QuantizedWeight& weight, const Array* ids, std::int64_t first, std::int64_t rows,
                       const Array& out) {
    const kernels::DequantizeParams params{.w = weight.layout(),
                                           .out = out.as<void>(),
                                           .ids = ids != nullptr ? ids->as<const std::int32_t>() : nullptr,
                                           .first_row = first,
                                           .rows = rows};
    launch(kernels::dequantize(out.dtype()),
           kernels::dequantize_config(params, current_stream(weight.data.device())->multiprocessors()),
           params, {.flops = 2 * static_cast<double>(out.size()), .bytes = static_cast<double>(out.nbytes())},
           {&weight.data, &weight.scales, &weight.offsets_or_scales(), &weight.global_or_scales(),
            ids != nullptr ? ids : &weight.scales},
           {&out});
}

}  // namespace

void dequantize_into(const QuantizedWeight& weight, const Array& out) {
    launch_dequantize(weight, nullptr, 0, weight.n, out);
}

Array dequantize(const QuantizedWeight& weight, DType dtype, std::int64_t first, std::int64_t rows) {
    require_model_float("dequantize", "dtype", dtype);
    const Array out = Array::empty(weight.data.device(), {rows, weight.k}, dtype);
    launch_dequantize(weight, nullptr, first, rows, out);
    return out;
}

Array embedding(const QuantizedWeight& table, const Array& ids, DType dtype, const Array* out) {
    constexpr const char* kCall = "embedding";
    require_model_float(kCall, "dtype", dtype);
    if (ids.dtype() != DType::int32) {
        throw error(ErrorKind::type, {.call = kCall,
                                      .argument = "ids",
                                      .expected = "int32",
                                      .got = std::string(gpk::name(ids.dtype()))});
    }
    Device& device = common_device(kCall, {&table.data, &ids});
    Dims shape = ids.shape();
    shape.push_back(table.k);
    const Array y = prepare_output(kCall, device, shape, dtype, out);
    require_contiguous(kCall, "out", y);
    const Array tokens = contiguous(ids);
    if (y.size() == 0) return y;
    const bool aside = !aligned16(y);
    const Array whole = aside ? Array::empty(device, shape, dtype) : y;
    launch_dequantize(table, &tokens, 0, ids.size(), whole);
    if (aside) assign(y, whole);
    return y;
}

}  // namespace gpk::ops
