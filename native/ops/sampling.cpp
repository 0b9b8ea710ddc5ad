#include "ops/sampling.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "kernels/sampling/sample.hpp"
#include "kernels/sampling/top_k.hpp"
#include "kernels/sampling/weights.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"

namespace gpk::ops {

static_assert(kLargestTopK == kernels::kMaxTopK);

namespace {

// Rows of the last axis, `pitch` elements apart.
struct Rows {
    Array array;
    std::int64_t count, pitch;
    std::int32_t n;
};

Rows rows_of(const char* call, const char* argument, const Array& x, std::int64_t most) {
    require_model_float(call, argument, x.dtype());
    if (x.rank() == 0 || x.shape().back() == 0 || x.shape().back() > most) {
        throw error(ErrorKind::value, {.call = call,
                                       .argument = argument,
                                       .expected = str("1 to ", most, " elements along the last axis"),
                                       .got = "shape " + to_string(x.shape())});
    }
    const std::int64_t n = x.shape().back(), count = x.size() / n;
    const bool pitched = x.rank() == 2 && last_axis_dense(x) && x.strides()[0] >= 0;
    const Array array = pitched ? x : contiguous(x);
    return {array, count, pitched ? x.strides()[0] : n, static_cast<std::int32_t>(n)};
}

Dims without_last(const Array& x) {
    return Dims(std::span(x.shape().begin(), static_cast<std::size_t>(x.rank() - 1)));
}

// A row is spread over as many blocks as it, or the device, keeps busy, where there are clusters (or all is
// simulated).
LaunchConfig rows_config(Device& device, const Rows& rows) {
    constexpr std::int64_t kEach = 4 * kernels::kSelectThreads, kMost = 8, kMaxBlocks = 1 << 20;
    const DeviceInfo& info = device.driver().info();
    const std::int64_t multiprocessors = current_stream(device)->multiprocessors();
    std::int64_t cluster = 1;
    while ((info.sm == 0 || info.sm >= 90) && cluster < kMost && rows.n > cluster * kEach &&
           2 * cluster * rows.count <= multiprocessors) {
        cluster *= 2;
    }
    const std::int64_t clusters = std::min(rows.count, kMaxBlocks / cluster);
    const std::int64_t kept_bytes =
        kernels::select_part(rows.n, cluster) * static_cast<std::int64_t>(itemsize(rows.array.dtype()));
    const bool fits =
        kept_bytes + kernels::kSelectStaticBytes <= static_cast<std::int64_t>(info.shared_bytes_per_block);
    return {.grid = {static_cast<std::uint32_t>(clusters * cluster)},
            .block = {kernels::kSelectThreads},
            .shared_bytes = fits ? static_cast<std::uint32_t>(kept_bytes) : 0,
            .cluster = static_cast<std::uint32_t>(cluster)};
}

void check(const SampleOptions& o) {
    const auto require = [](bool holds, const char* argument, const char* expected, const std::string& got) {
        if (holds) return;
        throw error(ErrorKind::value,
                    {.call = "sample", .argument = argument, .expected = expected, .got = got});
    };
    require(std::isfinite(o.temperature) && o.temperature >= 0, "temperature", "a number >= 0",
            str(o.temperature));
    require(o.top_k >= 0, "top_k", "a number >= 0", str(o.top_k));
    require(o.top_p > 0 && o.top_p <= 1, "top_p", "a number above 0, at most 1", str(o.top_p));
    require(o.min_p >= 0 && o.min_p <= 1, "min_p", "a number from 0 to 1", str(o.min_p));
}

}  // namespace

Array sample(const Array& logits, const SampleOptions& o) {
    constexpr const char* kCall = "sample";
    check(o);
    const Rows rows = rows_of(kCall, "logits", logits, kernels::kMaxWeights);
    if (o.position != nullptr) require_position(kCall, *o.position);
    Device& device = common_device(kCall, {&logits, o.position});
    const Array tokens = Array::empty(device, without_last(logits), DType::int32);
    if (rows.count == 0) return tokens;
    // Below the smallest temperature whose rate is finite in float32, only the likeliest are left anyway.
    constexpr double kLog2E = 1.4426950408889634, kMostRate = 0x1p126;
    const bool greedy = o.temperature == 0;
    const kernels::SampleParams params{
        .logits = rows.array.as<const void>(),
        .tokens = tokens.as<std::int32_t>(),
        .position = o.position != nullptr ? o.position->as<const std::int32_t>() : nullptr,
        .rows = rows.count,
        .pitch = rows.pitch,
        .n = rows.n,
        .top_k = o.top_k == 0 || o.top_k > rows.n ? rows.n : static_cast<std::int32_t>(o.top_k),
        .rate = greedy ? 1.0f : static_cast<float>(std::min(kLog2E / o.temperature, kMostRate)),
        .greedy = greedy,
        .top_p = o.top_p,
        .min_weight =
            static_cast<std::uint64_t>(std::ceil(o.min_p * static_cast<double>(kernels::kWeightOne))),
        .seed = o.seed,
        .step = o.step};
    const Cost cost{.bytes = static_cast<double>(rows.array.nbytes())};
    const Kernel& kernel = kernels::sample(logits.dtype());
    const LaunchConfig config = rows_config(device, rows);
    if (o.position != nullptr) {
        launch(kernel, config, params, cost, {&rows.array, o.position}, {&tokens});
    } else {
        launch(kernel, config, params, cost, {&rows.array}, {&tokens});
    }
    return tokens;
}

std::pair<Array, Array> top_k(const Array& x, std::int64_t k) {
    constexpr const char* kCall = "top_k";
    const Rows rows = rows_of(kCall, "x", x, INT32_MAX);
    if (k < 1 || k > rows.n || k > kLargestTopK) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "k",
                                       .expected = str("1 to ", std::min<std::int64_t>(rows.n, kLargestTopK)),
                                       .got = str(k)});
    }
    Dims shape = without_last(x);
    shape.push_back(k);
    const Array values = Array::empty(x.device(), shape, x.dtype());
    const Array indices = Array::empty(x.device(), shape, DType::int32);
    if (rows.count == 0) return {values, indices};
    const kernels::TopKParams params{.x = rows.array.as<const void>(),
                                     .values = values.as<void>(),
                                     .indices = indices.as<std::int32_t>(),
                                     .rows = rows.count,
                                     .pitch = rows.pitch,
                                     .n = rows.n,
                                     .k = static_cast<std::int32_t>(k)};
    launch(kernels::top_k(x.dtype()), rows_config(x.device(), rows), params,
           {.bytes = static_cast<double>(rows.array.nbytes() + values.nbytes() + indices.nbytes())},
           {&rows.array}, {&values, &indices});
    return {values, indices};
}

}  // namespace gpk::ops
