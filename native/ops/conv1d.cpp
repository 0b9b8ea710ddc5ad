#include "kernels/conv/conv1d.hpp"

#include <algorithm>
#include <optional>

#include "base/error.hpp"
#include "ops/conv1d.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/manipulation.hpp"
#include "ops/matmul.hpp"
#include "ops/model_checks.hpp"

namespace gpk::ops {

namespace {

constexpr const char* kCall = "conv1d";
// Far below what makes a sum of two products of sizes overflow.
constexpr std::int64_t kMostSize = std::int64_t{1} << 30;
// Of windows laid side by side at a time.
constexpr std::int64_t kUnfoldBytes = std::int64_t{256} << 20;
// A group with fewer products an output is computed as it stands: laying out its windows moves more memory
// than the products are worth.
constexpr std::int64_t kFewProducts = 32, kFewOutputs = 4;

void require_between(const char* argument, std::int64_t value, std::int64_t least) {
    if (value >= least && value <= kMostSize) return;
    throw error(ErrorKind::value, {.call = kCall,
                                   .argument = argument,
                                   .expected = str("a number from ", least, " to ", kMostSize),
                                   .got = str(value)});
}

void validate(const Array& x, const Array& weight, const Array* bias, const Conv1dSettings& s) {
    require_model_float(kCall, "x", x.dtype());
    require_between("stride", s.stride, 1);
    require_between("padding", s.padding, 0);
    require_between("dilation", s.dilation, 1);
    require_between("groups", s.groups, 1);
    if (x.rank() != 2 && x.rank() != 3) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "x",
                                       .expected = "shape (batch, channels, length) or (channels, length)",
                                       .got = to_string(x.shape())});
    }
    const std::int64_t channels = x.shape()[x.rank() - 2];
    if (channels % s.groups != 0) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "groups",
                                       .expected = str("a divisor of the ", channels, " channels"),
                                       .got = str(s.groups)});
    }
    if (weight.rank() != 3 || weight.shape()[1] != channels / s.groups || weight.shape()[0] % s.groups != 0 ||
        weight.shape()[2] < 1) {
        throw error(ErrorKind::value,
                    {.call = kCall,
                     .argument = "weight",
                     .expected = str("shape (outputs, ", channels / s.groups,
                                     ", taps) with outputs a multiple of ", s.groups, " and taps >= 1"),
                     .got = to_string(weight.shape())});
    }
    require_array(kCall, "weight", weight, weight.shape(), x.dtype());
    if (bias != nullptr) require_array(kCall, "bias", *bias, {weight.shape()[0]}, x.dtype());
    require_between("taps", weight.shape()[2], 1);
    require_between("length", x.shape().back(), 0);
}

std::int64_t positions_of(const Array& x, const Array& weight, const Conv1dSettings& s) {
    const std::int64_t reach = s.dilation * (weight.shape()[2] - 1) + 1, length = x.shape().back();
    if (reach > length + 2 * s.padding) {
        throw error(ErrorKind::value,
                    {.call = kCall,
                     .argument = "weight",
                     .expected = str("a reach of at most ", length + 2 * s.padding, ", the padded length"),
                     .got = str(reach, " = dilation * (taps - 1) + 1")});
    }
    return (length + 2 * s.padding - reach) / s.stride + 1;
}

kernels::Conv1dParams params_of(const Array& x, const Array& weight, const Conv1dSettings& s,
                                std::int64_t positions) {
    return {.x = x.as<>(),
            .weight = weight.as<>(),
            .bias = nullptr,
            .y = nullptr,
            .batch = x.shape()[0],
            .channels = x.shape()[1],
            .length = x.shape()[2],
            .outputs = weight.shape()[0],
            .taps = weight.shape()[2],
            .positions = positions,
            .pitch = positions,
            .groups = s.groups,
            .stride = s.stride,
            .padding = s.padding,
            .dilation = s.dilation,
            .x_batch_stride = x.strides()[0],
            .x_channel_stride = x.strides()[1],
            .x_stride = x.strides()[2]};
}

// Blocks of a row's positions, and rows.
LaunchConfig grid_of_rows(std::int64_t rows, std::int64_t positions) {
    constexpr std::int64_t kSpan = kernels::kConv1dSpan;
    const std::int64_t threads =
        std::min<std::int64_t>(256, (positions + 32 * kSpan - 1) / (32 * kSpan) * 32);
    LaunchConfig config;
    config.block.x = static_cast<std::uint32_t>(threads);
    config.grid.x = static_cast<std::uint32_t>((positions + threads * kSpan - 1) / (threads * kSpan));
    config.grid.y = static_cast<std::uint32_t>(std::clamp<std::int64_t>(rows, 1, 65535));
    return config;
}

// The windows of all positions, (batch, channels, taps, positions). Rows begin at multiples of 16 bytes, as
// the fast products want them.
Array unfolded(const Array& x, const Array& weight, const Conv1dSettings& s, std::int64_t positions) {
    kernels::Conv1dParams params = params_of(x, weight, s, positions);
    const std::int64_t unit = 16 / static_cast<std::int64_t>(itemsize(x.dtype()));
    params.pitch = (positions + unit - 1) / unit * unit;
    const Array windows =
        Array::empty(x.device(), {params.batch, params.channels * params.taps, params.pitch}, x.dtype());
    params.y = windows.as<>();
    launch(kernels::conv1d_unfold(x.dtype()), grid_of_rows(windows.size() / params.pitch, positions), params,
           {.bytes = static_cast<double>(windows.nbytes() + x.nbytes())}, {&x}, {&windows});
    return windows.slice(2, 0, 1, positions);
}

// y = weight @ windows, group by group; x with as much of the batch as the room for windows allows.
void multiply(const Array& x, const Array& weight, const Conv1dSettings& s, const Array& y) {
    const std::int64_t batch = x.shape()[0], channels = x.shape()[1], taps = weight.shape()[2];
    const std::int64_t positions = y.shape()[2], outputs = weight.shape()[0],
                       inner = channels / s.groups * taps;
    const Array factors = reshape(contiguous(weight), {s.groups, outputs / s.groups, inner});
    const bool as_it_lies = taps == 1 && s.stride == 1 && s.padding == 0;
    const std::int64_t one = channels * taps * positions * static_cast<std::int64_t>(itemsize(x.dtype()));
    const std::int64_t step = as_it_lies ? batch : std::clamp<std::int64_t>(kUnfoldBytes / one, 1, batch);
    for (std::int64_t begin = 0; begin < batch; begin += step) {
        const std::int64_t count = std::min(step, batch - begin);
        const Array part = x.slice(0, begin, 1, count);
        const Array windows = as_it_lies ? part : unfolded(part, weight, s, positions);
        const Array out =
            reshape(y.slice(0, begin, 1, count), {count, s.groups, outputs / s.groups, positions});
        matmul(factors, reshape(windows, {count, s.groups, inner, positions}), &out);
    }
}

}  // namespace

Array conv1d(const Array& input, const Array& weight, const Array* bias, const Conv1dSettings& s) {
    validate(input, weight, bias, s);
    Device& device = common_device(kCall, {&input, &weight, bias});
    const Array x = input.rank() == 2 ? input.expand_dims(0) : input;
    const std::int64_t positions = positions_of(x, weight, s), outputs = weight.shape()[0];
    const Array y = Array::empty(device, {x.shape()[0], outputs, positions}, x.dtype());
    const auto result = [&] { return input.rank() == 2 ? y.select(0, 0) : y; };
    if (y.size() == 0) return result();
    const std::int64_t inner = weight.shape()[1] * weight.shape()[2];
    if (inner > kFewProducts && outputs / s.groups >= kFewOutputs) {
        multiply(x, weight, s, y);
        if (bias != nullptr) binary(BinaryOp::add, y, bias->expand_dims(1), &y);
        return result();
    }
    const Array factors = contiguous(weight);
    const std::optional<Array> added = bias != nullptr ? std::optional(contiguous(*bias)) : std::nullopt;
    kernels::Conv1dParams params = params_of(x, factors, s, positions);
    params.bias = added ? added->as<>() : nullptr;
    params.y = y.as<>();
    const Array& also = added ? *added : factors;
    launch(kernels::conv1d(x.dtype()), grid_of_rows(y.size() / positions, positions), params,
           {.flops = 2.0 * static_cast<double>(y.size()) * static_cast<double>(inner),
            .bytes = static_cast<double>(x.nbytes() + weight.nbytes() + y.nbytes())},
           {&x, &factors, &also}, {&y});
    return result();
}

}  // namespace gpk::ops
