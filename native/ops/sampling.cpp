#include "ops/sampling.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "kernels/sampling/penalize.hpp"
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

void require(bool holds, const char* call, const char* argument, const char* expected, double got) {
    if (holds) return;
    throw error(ErrorKind::value,
                {.call = call, .argument = argument, .expected = expected, .got = str(got)});
}

// Checks that the array is there for the rows, and gives its memory. Its values are the kernel's to check.
template <class Value, class Stored>
kernels::PerRow<Value, Stored> per_row(const char* call, const char* argument, const Array& logits,
                                       Value value, const Array* of_rows, DType dtype) {
    if (of_rows == nullptr) return {nullptr, value};
    require_array(call, argument, *of_rows, without_last(logits), dtype);
    require_contiguous(call, argument, *of_rows);
    common_device(call, {&logits, of_rows});
    return {of_rows->as<const Stored>(), value};
}

const Array* like_logits(const char* call, const char* argument, const Array& logits, const Array* array,
                         DType dtype) {
    if (array == nullptr) return nullptr;
    require_array(call, argument, *array, logits.shape(), dtype);
    require_contiguous(call, argument, *array);
    common_device(call, {&logits, array});
    return array;
}

template <class T>
const T* memory_of(const Array* array) {
    return array != nullptr ? array->as<const T>() : nullptr;
}

}  // namespace

Array sample(const Array& logits, const SampleOptions& o) {
    constexpr const char* kCall = "sample";
    // What stands for all rows; arrays are the kernel's to check.
    const auto check = [&](const auto& option, const char* argument, const char* expected, auto&& holds) {
        const auto value = static_cast<double>(option.value);
        require(option.of_rows != nullptr || holds(value), kCall, argument, expected, value);
    };
    check(o.temperature, "temperature", "a number >= 0", [](double t) { return std::isfinite(t) && t >= 0; });
    check(o.top_k, "top_k", "a number >= 0", [](double k) { return k >= 0; });
    check(o.top_p, "top_p", "a number above 0, at most 1", [](double p) { return p > 0 && p <= 1; });
    check(o.min_p, "min_p", "a number from 0 to 1", [](double p) { return p >= 0 && p <= 1; });
    const Rows rows = rows_of(kCall, "logits", logits, kernels::kMaxWeights);
    const bool position_of_row = o.position != nullptr && o.position->shape() == without_last(logits);
    if (position_of_row) {
        per_row<std::int32_t, std::int32_t>(kCall, "position", logits, 0, o.position, DType::int32);
    } else if (o.position != nullptr) {
        require_position(kCall, *o.position);
    }
    like_logits(kCall, "counts", logits, o.counts, DType::int32);
    if (o.counts != nullptr) require_writable(kCall, "counts", *o.counts);
    Device& device = common_device(kCall, {&logits, o.position});
    const Array tokens = Array::empty(device, without_last(logits), DType::int32);
    const auto real = [&](const char* argument, const RowOption<double>& option) {
        return per_row<double, float>(kCall, argument, logits, option.value, option.of_rows, DType::float32);
    };
    const kernels::SampleParams params{
        .logits = rows.array.as<const void>(),
        .tokens = tokens.as<std::int32_t>(),
        .counts = o.counts != nullptr ? o.counts->as<std::int32_t>() : nullptr,
        .position = memory_of<std::int32_t>(o.position),
        .position_of_row = position_of_row,
        .rows = rows.count,
        .pitch = rows.pitch,
        .n = rows.n,
        .top_k = per_row<std::int32_t, std::int32_t>(
            kCall, "top_k", logits, static_cast<std::int32_t>(std::min<std::int64_t>(o.top_k.value, rows.n)),
            o.top_k.of_rows, DType::int32),
        .temperature = real("temperature", o.temperature),
        .top_p = real("top_p", o.top_p),
        .min_p = real("min_p", o.min_p),
        .seed = per_row<std::uint64_t, std::uint64_t>(kCall, "seed", logits, o.seed.value, o.seed.of_rows,
                                                      DType::uint64),
        .step = o.step};
    if (rows.count == 0) return tokens;
    const std::initializer_list<const Array*> reads = {
        &rows.array,     o.position,      o.temperature.of_rows, o.top_k.of_rows,
        o.top_p.of_rows, o.min_p.of_rows, o.seed.of_rows};
    const Cost cost{.bytes = static_cast<double>(rows.array.nbytes())};
    const Kernel& kernel = kernels::sample(logits.dtype());
    const LaunchConfig config = rows_config(device, rows);
    if (o.counts != nullptr) {
        launch(kernel, config, params, cost, reads, {&tokens, o.counts});
    } else {
        launch(kernel, config, params, cost, reads, {&tokens});
    }
    return tokens;
}

Array penalize(const Array& logits, const PenalizeOptions& o) {
    constexpr const char* kCall = "penalize";
    // As float32, which they become.
    const auto check = [&](const RowOption<double>& option, const char* argument, const char* expected,
                           auto&& holds) {
        require(option.of_rows != nullptr || holds(static_cast<float>(option.value)), kCall, argument,
                expected, option.value);
    };
    const auto finite = [](float value) { return std::isfinite(value); };
    check(o.repetition, "repetition", "a finite number above 0",
          [](float r) { return std::isfinite(r) && r > 0; });
    check(o.presence, "presence", "a finite number", finite);
    check(o.frequency, "frequency", "a finite number", finite);
    const Rows rows = rows_of(kCall, "logits", logits, INT32_MAX);
    like_logits(kCall, "counts", logits, o.counts, DType::int32);
    like_logits(kCall, "prompt", logits, o.prompt, DType::bool_);
    const bool one_bias = o.bias != nullptr && o.bias->rank() == 1;
    if (one_bias) {
        require_array(kCall, "bias", *o.bias, {rows.n}, DType::float32);
        require_contiguous(kCall, "bias", *o.bias);
    } else {
        like_logits(kCall, "bias", logits, o.bias, DType::float32);
    }
    Device& device = common_device(kCall, {&logits, o.bias});
    const Array out = Array::empty(device, logits.shape(), DType::float32);
    const auto real = [&](const char* argument, const RowOption<double>& option) {
        return per_row<float, float>(kCall, argument, logits, static_cast<float>(option.value),
                                     option.of_rows, DType::float32);
    };
    const kernels::PenalizeParams params{.logits = rows.array.as<const void>(),
                                         .out = out.as<float>(),
                                         .counts = memory_of<std::int32_t>(o.counts),
                                         .prompt = memory_of<bool>(o.prompt),
                                         .bias = memory_of<float>(o.bias),
                                         .rows = rows.count,
                                         .pitch = rows.pitch,
                                         .bias_pitch = one_bias ? 0 : rows.n,
                                         .n = rows.n,
                                         .repetition = real("repetition", o.repetition),
                                         .presence = real("presence", o.presence),
                                         .frequency = real("frequency", o.frequency)};
    if (rows.count == 0) return out;
    double bytes = static_cast<double>(rows.array.nbytes() + out.nbytes());
    for (const Array* each : {o.counts, o.prompt, o.bias}) {
        if (each != nullptr) bytes += static_cast<double>(each->nbytes());
    }
    constexpr std::int64_t kThreads = 256, kEach = 4, kMostRows = 65535;  // of a grid's second dimension
    const std::int64_t blocks = (rows.n + kThreads * kEach - 1) / (kThreads * kEach);
    const LaunchConfig config{.grid = {static_cast<std::uint32_t>(blocks),
                                       static_cast<std::uint32_t>(std::min(rows.count, kMostRows))},
                              .block = {kThreads}};
    launch(kernels::penalize(logits.dtype()), config, params, {.bytes = bytes},
           {&rows.array, o.counts, o.prompt, o.bias, o.repetition.of_rows, o.presence.of_rows,
            o.frequency.of_rows},
           {&out});
    return out;
}

std::pair<Array, Array> top_k(const Array& x, std::int64_t k) {
    constexpr const char* kCall = "top_k";
    constexpr std::int64_t kMost = INT32_MAX - (1 << 14);  // a cluster's threads look beyond a row's end
    const Rows rows = rows_of(kCall, "x", x, kMost);
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
