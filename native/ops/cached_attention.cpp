#include "kernels/attention/attention_decode.hpp"

#include <cmath>

#include "base/error.hpp"
#include "ops/attention.hpp"
#include "ops/attention_checks.hpp"
#include "ops/decode_attention.hpp"
#include "ops/elementwise.hpp"
#include "ops/flash_attention.hpp"
#include "ops/kv_append.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"

namespace gpk::ops {

namespace {

constexpr const char* kCall = "attention_cached";
// With more tokens than this a tile of queries shares the reading of the keys.
constexpr std::int64_t kDecodeTokens = 8;

// Bounds that keep the kernels' grids and 32-bit indices in range.
void require_at_most(const char* argument, const char* what, std::int64_t value, std::int64_t limit) {
    if (value <= limit) return;
    throw error(ErrorKind::value, {.call = kCall,
                                   .argument = argument,
                                   .expected = str("at most ", limit, " ", what),
                                   .got = str(value)});
}

void check_pages(const Array& pages, std::int64_t batch, const Array& keys) {
    if (pages.rank() != 2 || pages.shape()[0] != batch) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "pages",
                                       .expected = str("shape (", batch, ", pages of a sequence)"),
                                       .got = to_string(pages.shape())});
    }
    require_array(kCall, "pages", pages, pages.shape(), DType::int32);
    require_at_most("pages", "keys of a sequence", pages.shape()[1] * keys.shape()[2], 1 << 28);
}

// What is appended on the way.
struct Beside {
    const kernels::KvAppendParams& params;
    const Array &k, &v;
    const KvAppendOptions& options;
};

// No array where `beside` is given and no kernel does all of it.
std::optional<Array> attend(const Array& query, const Array& keys, const Array& values,
                            const Array& positions, const CacheOptions& cache,
                            const AttentionOptions& options, const Array* out, const Beside* beside) {
    const auto refuse = [](const char* argument, const std::string& expected, const std::string& got) {
        throw error(ErrorKind::value,
                    {.call = kCall, .argument = argument, .expected = expected, .got = got});
    };
    require_model_float(kCall, "q", query.dtype());
    if (query.rank() != 4) refuse("q", "shape (batch, tokens, heads, d)", to_string(query.shape()));
    const std::int64_t batch = query.shape()[0], tokens = query.shape()[1], heads = query.shape()[2],
                       d = query.shape()[3];
    if (d < 1 || d > kernels::kMaxHeadDim) {
        refuse("q", str("heads of 1 to ", kernels::kMaxHeadDim, " elements"), str(d));
    }
    if (keys.rank() != 4 || keys.shape()[3] != d || (cache.pages == nullptr && keys.shape()[0] != batch)) {
        refuse("keys",
               str("shape (", cache.pages == nullptr ? str(batch) : "pages", ", kv_heads, tokens, ", d, ")"),
               to_string(keys.shape()));
    }
    const std::int64_t kv_heads = keys.shape()[1];
    if (kv_heads < 1 || heads % kv_heads != 0 || keys.shape()[2] < 1 ||
        keys.shape()[0] < (batch > 0 ? 1 : 0)) {
        refuse("keys", str("room for keys of heads whose number divides the ", heads, " of q"),
               to_string(keys.shape()));
    }
    const bool narrow = keys.dtype() == DType::float8_e4m3;
    require_array(kCall, "keys", keys, keys.shape(), narrow ? keys.dtype() : query.dtype());
    require_array(kCall, "values", values, keys.shape(), keys.dtype());
    require_array(kCall, "positions", positions, {batch}, DType::int32);
    if (options.mask != nullptr) refuse("mask", "none", "one");
    if (!(options.soft_cap >= 0) || std::isinf(options.soft_cap)) {
        refuse("soft_cap", "a positive number, or 0 for none", str(options.soft_cap));
    }
    const auto is_scale = [](double x) {
        return std::isfinite(static_cast<float>(x)) && static_cast<float>(x) > 0;
    };
    if (!is_scale(cache.key_scale)) refuse("key_scale", "a finite number > 0", str(cache.key_scale));
    if (!is_scale(cache.value_scale)) refuse("value_scale", "a finite number > 0", str(cache.value_scale));
    if (options.scale && !std::isfinite(static_cast<float>(*options.scale)))
        refuse("scale", "a finite number", str(*options.scale));
    if (options.alibi_slopes != nullptr) {
        require_array(kCall, "alibi_slopes", *options.alibi_slopes, {heads}, DType::float32);
    }
    if (cache.pages != nullptr) check_pages(*cache.pages, batch, keys);
    // Read once for all queries and written for the kernel of many; a pool of pages may be far larger than
    // that.
    const bool widened = narrow && tokens > kDecodeTokens && cache.pages == nullptr;
    const bool many = tokens > kDecodeTokens && (!narrow || widened);
    require_at_most("q", "sequences", batch, 65535);
    require_at_most("q", "queries of all heads", many ? batch * heads * tokens : heads * tokens,
                    many ? 1 << 30 : 65535);
    require_at_most("keys", "positions", keys.shape()[2], 1 << 28);
    require_at_most("keys", "pages", keys.shape()[0], 1 << 30);
    Device& device =
        common_device(kCall, {&query, &keys, &values, &positions, cache.pages, options.alibi_slopes, out});
    const Array y = prepare_output(kCall, device, query.shape(), query.dtype(), out);
    require_contiguous(kCall, "out", y);
    require_no_overlap(kCall, y, {&query, &keys, &values});
    if (y.size() == 0) return y;

    const auto dense = [&](const Array& x) { return last_axis_dense(x) ? x : contiguous(x); };
    const Array q = many ? dense(query) : decode_query(query);
    const auto stored = [&](const Array& x) { return widened ? astype(x, query.dtype()) : dense(x); };
    const Array k = stored(keys), v = stored(values), at = contiguous(positions);
    const Array pages = cache.pages == nullptr ? at : contiguous(*cache.pages);
    const Array slopes = options.alibi_slopes == nullptr ? at : contiguous(*options.alibi_slopes);
    const std::int64_t of_sequence = cache.pages == nullptr ? 0 : pages.shape()[1];
    const std::int64_t capacity = cache.pages == nullptr ? k.shape()[2] : of_sequence * k.shape()[2];
    if (capacity == 0) {
        assign(y, 0);
        return y;
    }
    const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(d))) * cache.key_scale;
    const std::int32_t left = options.left < 0 || options.left > kernels::kDecodeUnbounded
                                  ? kernels::kDecodeUnbounded
                                  : static_cast<std::int32_t>(options.left);
    const std::int32_t* page_numbers = cache.pages == nullptr ? nullptr : pages.as<const std::int32_t>();
    const float* slope = options.alibi_slopes == nullptr ? nullptr : slopes.as<const float>();
    // Where the sequences are is not known here: the cost is that of full ones.
    const double pairs = static_cast<double>(batch * tokens * heads) * static_cast<double>(capacity);
    const Cost cost{.flops = 4 * pairs * static_cast<double>(d),
                    .bytes = 2 * static_cast<double>(itemsize(k.dtype())) *
                             static_cast<double>(batch * kv_heads * d) * static_cast<double>(capacity)};
    if (many) {
        launch_flash({.q = q.transpose({0, 2, 1, 3}),
                      .k = k,
                      .v = v,
                      .out = y.transpose({0, 2, 1, 3}),
                      .params = {.positions = at.as<const std::int32_t>(),
                                 .pages = page_numbers,
                                 .slopes = slope,
                                 .batch = static_cast<std::int32_t>(batch),
                                 .heads = static_cast<std::int32_t>(heads),
                                 .kv_heads = static_cast<std::int32_t>(kv_heads),
                                 .d = static_cast<std::int32_t>(d),
                                 .tokens = static_cast<std::int32_t>(tokens),
                                 .keys = static_cast<std::int32_t>(capacity),
                                 .page_tokens = static_cast<std::int32_t>(k.shape()[2]),
                                 .pages_of_sequence = static_cast<std::int32_t>(of_sequence),
                                 .page_count = static_cast<std::int32_t>(k.shape()[0]),
                                 .left = left,
                                 .right = 0,
                                 .scale = static_cast<float>(scale),
                                 .value_scale = static_cast<float>(cache.value_scale),
                                 .soft_cap = static_cast<float>(options.soft_cap)},
                      .cost = cost,
                      .reads = {&q, &k, &v, &at, &pages, &slopes}});
        return y;
    }
    const KvAppendOptions append = beside != nullptr ? beside->options : KvAppendOptions{};
    kernels::DecodeAppend appended;
    if (beside != nullptr) {
        const kernels::KvAppendParams& a = beside->params;
        appended = {.k = a.k,
                    .v = a.v,
                    .q_norm = a.q_norm,
                    .k_norm = a.k_norm,
                    .rope = a.rope,
                    .norm_eps = a.norm_eps,
                    .k_batch_stride = a.k_batch_stride,
                    .v_batch_stride = a.v_batch_stride};
    }
    const bool launched =
        launch_decode({.q = q,
                       .keys = k,
                       .values = v,
                       .out = y,
                       .params = {.positions = at.as<const std::int32_t>(),
                                  .pages = page_numbers,
                                  .slopes = slope,
                                  .scale = static_cast<float>(scale),
                                  .value_scale = static_cast<float>(cache.value_scale),
                                  .soft_cap = static_cast<float>(options.soft_cap),
                                  .batch = static_cast<std::int32_t>(batch),
                                  .tokens = static_cast<std::int32_t>(tokens),
                                  .heads = static_cast<std::int32_t>(heads),
                                  .kv_heads = static_cast<std::int32_t>(kv_heads),
                                  .d = static_cast<std::int32_t>(d),
                                  .capacity = static_cast<std::int32_t>(capacity),
                                  .left = left,
                                  .right = 0,
                                  .page_tokens = static_cast<std::int32_t>(k.shape()[2]),
                                  .pages_of_sequence = static_cast<std::int32_t>(of_sequence),
                                  .page_count = static_cast<std::int32_t>(k.shape()[0]),
                                  .append = appended},
                       .as_alone = cache.as_alone,
                       .cost = cost,
                       .reads = {&q, &k, &v, &at, &pages, &slopes},
                       .more_reads = {beside != nullptr ? &beside->k : nullptr,
                                      beside != nullptr ? &beside->v : nullptr, append.q_norm, append.k_norm,
                                      append.rope != nullptr ? &append.rope->inv_freq : nullptr}});
    return launched ? std::optional(y) : std::nullopt;
}

}  // namespace

Array attention_cached(const Array& q, const Array& keys, const Array& values, const Array& positions,
                       const CacheOptions& cache, const AttentionOptions& options, const Array* out) {
    return *attend(q, keys, values, positions, cache, options, out, nullptr);
}

Array append_and_attend(const Array& k, const Array& v, const Array& keys, const Array& values,
                        const Array& positions, const KvAppendOptions& append,
                        const AttentionOptions& options, bool as_alone, const Array* out) {
    const CacheOptions cache{.as_alone = as_alone};
    if (append.q == nullptr) {
        throw error(
            ErrorKind::value,
            {.call = "append_and_attend", .argument = "append.q", .expected = "queries", .got = "none"});
    }
    const kernels::KvAppendParams params = kv_append_params(k, v, keys, values, positions, append);
    if (out != nullptr) require_no_overlap("append_and_attend", *out, {&k, &v});
    if (params.tokens == 1 && append.q->size() > 0) {
        const Beside beside{params, k, v, append};
        if (const auto y = attend(*append.q, keys, values, positions, cache, options, out, &beside))
            return *y;
    }
    kv_append(k, v, keys, values, positions, append);
    return attention_cached(*append.q, keys, values, positions, cache, options, out);
}

}  // namespace gpk::ops
