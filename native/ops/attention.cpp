#include "kernels/attention/attention.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "ops/attention.hpp"
#include "ops/attention_checks.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"

namespace gpk::ops {

namespace {

constexpr const char* kCall = "attention";
// With more tokens than this a tile of queries shares the reading of the keys.
constexpr std::int64_t kDecodeTokens = 8;
constexpr std::int64_t kMaxSplits = 64;

// How the decode kernel covers the heads, and over how many blocks one query's keys may spread.
struct DecodePlan {
    int head_tile;
    std::int64_t tiles;  // of query heads, over all key/value heads
    std::int64_t splits;
    std::int64_t counters;  // 32-bit words before the partial results, padded to 16 bytes
    std::int64_t words;     // of the workspace; 0 where none is needed
};

DecodePlan plan_decode(Device& device, const AttentionSize& size) {
    DecodePlan plan{};
    const std::int64_t group = size.heads / size.kv_heads;
    plan.head_tile = group == 1 ? 1 : 4;
    plan.tiles = size.kv_heads * ((group + plan.head_tile - 1) / plan.head_tile);
    // Two blocks a multiprocessor when the cache is full.
    const std::int64_t wanted =
        2 * current_stream(device)->multiprocessors() / std::max<std::int64_t>(plan.tiles * size.tokens, 1);
    const std::int64_t useful = (size.capacity + kernels::kDecodeMinKeys - 1) / kernels::kDecodeMinKeys;
    plan.splits = std::clamp<std::int64_t>(wanted, 1, std::clamp<std::int64_t>(useful, 1, kMaxSplits));
    plan.counters = (size.tokens * plan.tiles + 3) / 4 * 4;
    plan.words = plan.splits == 1 ? 0 : plan.counters + size.tokens * size.heads * plan.splits * (size.d + 2);
    return plan;
}

// Bounds that keep the kernels' grids and 32-bit indices in range.
void require_at_most(const char* argument, const char* what, std::int64_t value, std::int64_t limit) {
    if (value <= limit) return;
    throw error(ErrorKind::value, {.call = kCall,
                                   .argument = argument,
                                   .expected = str("at most ", limit, " ", what),
                                   .got = str(value)});
}

AttentionSize check(const Array& q, const Array& keys, const Array& values, const Array& position) {
    require_heads(kCall, "q", q);
    const AttentionSize size{.tokens = q.shape()[0],
                             .heads = q.shape()[1],
                             .kv_heads = keys.rank() == 3 ? keys.shape()[0] : 0,
                             .d = q.shape()[2],
                             .capacity = keys.rank() == 3 ? keys.shape()[1] : 0};
    require_cache(kCall, keys, values, size.d, q.dtype());
    require_position(kCall, position);
    if (size.d > kernels::kMaxHeadDim) {
        throw error(ErrorKind::value,
                    {.call = kCall,
                     .argument = "q",
                     .expected = str("heads of at most ", kernels::kMaxHeadDim, " elements"),
                     .got = str(size.d)});
    }
    if (size.kv_heads < 1 || size.heads % size.kv_heads != 0 || size.capacity < 1) {
        throw error(
            ErrorKind::value,
            {.call = kCall,
             .argument = "keys",
             .expected = str("a cache (kv_heads, capacity, d) whose heads divide the ", size.heads, " of q"),
             .got = to_string(keys.shape())});
    }
    require_at_most("q", "tokens", size.tokens, 1 << 20);
    require_at_most("q", "heads", size.heads, 1 << 15);
    require_at_most("keys", "positions", size.capacity, 1 << 30);
    return size;
}

bool vectorizable(const Array& cache) {
    const std::int64_t size = static_cast<std::int64_t>(itemsize(cache.dtype()));
    return cache.shape()[2] % 8 == 0 && cache.strides()[0] * size % 16 == 0 &&
           cache.strides()[1] * size % 16 == 0 && aligned16(cache);
}

}  // namespace

void require_cache(const char* call, const Array& keys, const Array& values, std::int64_t d, DType dtype) {
    if (keys.rank() != 3 || keys.shape()[2] != d) {
        throw error(ErrorKind::value, {.call = call,
                                       .argument = "keys",
                                       .expected = str("shape (kv_heads, capacity, ", d, ")"),
                                       .got = to_string(keys.shape())});
    }
    require_array(call, "keys", keys, keys.shape(), dtype);
    require_array(call, "values", values, keys.shape(), dtype);
    for (const Array* cache : {&keys, &values}) {
        if (!last_axis_dense(*cache)) {
            throw error(ErrorKind::value, {.call = call,
                                           .argument = cache == &keys ? "keys" : "values",
                                           .expected = "a last axis without gaps",
                                           .got = "strides " + to_string(cache->strides())});
        }
    }
}

Array attention_workspace(Device& device, const AttentionSize& size) {
    const DecodePlan plan = plan_decode(device, size);
    if (plan.words == 0 || size.tokens > kDecodeTokens) return {};
    Array workspace = Array::empty(device, {plan.words}, DType::float32);
    // The counters must be zero; the kernel leaves them so.
    const auto& stream = current_stream(device);
    const UseScope scope;
    workspace.storage()->before_write(stream);
    device.launcher().fill(*stream, workspace.data(), 0, static_cast<std::size_t>(plan.counters) * 4);
    return workspace;
}

namespace {

// One launch, or one for each few tiles of tokens.
void launch_prefill(kernels::AttentionParams params, DType dtype, const Cost& cost,
                    std::initializer_list<const Array*> reads, const Array& y) {
    int variant = 0;
    while (kernels::kPrefillVariants[variant].max_d < params.d) ++variant;
    const kernels::PrefillVariant& v = kernels::kPrefillVariants[variant];
    const Kernel& kernel = kernels::attention_prefill(dtype, variant);
    const std::int64_t tokens = params.tokens, tile = v.query_tile(), tiles = (tokens + tile - 1) / tile;
    const auto config_of = [&](std::int64_t tiles_here) {
        return LaunchConfig{
            .grid = {static_cast<std::uint32_t>(params.heads), static_cast<std::uint32_t>(tiles_here)},
            .block = {static_cast<std::uint32_t>(kernels::PrefillVariant::kThreads)},
            .shared_bytes = static_cast<std::uint32_t>(v.shared_bytes())};
    };
    with_storages(reads, {&y}, [&](Stream& stream) {
        Launcher& launcher = stream.device().launcher();
        const std::int64_t slices = slices_for(stream, kernel, config_of(tiles), cost);
        if (slices == 1) return launcher.launch(stream, kernel, config_of(tiles), params, cost);
        const std::int64_t step = std::max<std::int64_t>(tiles / slices, 1);
        for (std::int64_t begin = 0; begin < tiles; begin += step) {
            const std::int64_t end = std::min(begin + step, tiles);
            params.first_token = static_cast<std::int32_t>(begin * tile);
            params.tokens = static_cast<std::int32_t>(std::min(end * tile, tokens));
            const double part =
                static_cast<double>(params.tokens - params.first_token) / static_cast<double>(tokens);
            launcher.launch(stream, kernel, config_of(end - begin), params,
                            {.flops = cost.flops * part, .bytes = cost.bytes});
        }
    });
}

}  // namespace

Array attention(const Array& query, const Array& keys, const Array& values, const Array& position,
                double scale, const Array* out, const Array* workspace) {
    const AttentionSize size = check(query, keys, values, position);
    Device& device = common_device(kCall, {&query, &keys, &values, &position});
    const Array q = last_axis_dense(query) ? query : contiguous(query);
    const Array y = prepare_output(kCall, device, q.shape(), q.dtype(), out);
    require_contiguous(kCall, "out", y);
    require_no_overlap(kCall, y, {&q, &keys, &values});
    if (y.size() == 0) return y;

    kernels::AttentionParams params{
        .q = q.as<>(),
        .keys = keys.as<>(),
        .values = values.as<>(),
        .out = y.as<>(),
        .position = position.as<const std::int32_t>(),
        .partial = nullptr,
        .counters = nullptr,
        .q_token_stride = q.strides()[0],
        .q_head_stride = q.strides()[1],
        .key_head_stride = keys.strides()[0],
        .key_stride = keys.strides()[1],
        .value_head_stride = values.strides()[0],
        .value_stride = values.strides()[1],
        .tokens = static_cast<std::int32_t>(size.tokens),
        .heads = static_cast<std::int32_t>(size.heads),
        .kv_heads = static_cast<std::int32_t>(size.kv_heads),
        .d = static_cast<std::int32_t>(size.d),
        .capacity = static_cast<std::int32_t>(size.capacity),
        .splits = 1,
        .vectorized = vectorizable(keys) && vectorizable(values),
        .scale = static_cast<float>(scale),
        .first_token = 0,
    };
    // The position is not known here: the cost is that of a full cache.
    const double products = static_cast<double>(size.tokens) * static_cast<double>(size.heads) *
                            static_cast<double>(size.capacity) * static_cast<double>(size.d);
    const Cost cost{.flops = 4 * products,
                    .bytes = static_cast<double>(keys.nbytes() + values.nbytes() + 2 * y.nbytes())};

    if (size.tokens > kDecodeTokens) {
        launch_prefill(params, q.dtype(), cost, {&q, &keys, &values, &position}, y);
        return y;
    }

    const DecodePlan plan = plan_decode(device, size);
    params.splits = static_cast<std::int32_t>(plan.splits);
    const LaunchConfig config{
        .grid = {static_cast<std::uint32_t>(plan.splits), static_cast<std::uint32_t>(plan.tiles),
                 static_cast<std::uint32_t>(size.tokens)},
        .block = {kernels::kDecodeThreads}};
    const Kernel& kernel = kernels::attention_decode(q.dtype(), plan.head_tile);
    if (plan.words == 0) {
        launch(kernel, config, params, cost, {&q, &keys, &values, &position}, {&y});
        return y;
    }
    const Array space =
        workspace != nullptr && workspace->defined() ? *workspace : attention_workspace(device, size);
    if (space.size() < plan.words) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "workspace",
                                       .expected = str("one for these sizes, of ", plan.words, " elements"),
                                       .got = str(space.size())});
    }
    params.counters = space.as<std::uint32_t>();
    params.partial = space.as<float>() + plan.counters;
    launch(kernel, config, params, cost, {&q, &keys, &values, &position}, {&y, &space});
    return y;
}

}  // namespace gpk::ops
