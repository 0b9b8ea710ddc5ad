#include "ops/attention.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "ops/decode_attention.hpp"
#include "ops/elementwise.hpp"
#include "ops/flash_attention.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"

namespace gpk::ops {

namespace {

using kernels::FlashAttentionParams;
using kernels::kUnbounded;

// With more tokens than this a tile of queries shares the reading of the keys.
constexpr std::int64_t kDecodeTokens = 8;

[[noreturn]] void refuse(const char* call, const char* argument, const std::string& expected,
                         const std::string& got) {
    throw error(ErrorKind::value, {.call = call, .argument = argument, .expected = expected, .got = got});
}

void require_at_most(const char* call, const char* argument, const char* what, std::int64_t value,
                     std::int64_t limit) {
    if (value > limit) refuse(call, argument, str("at most ", limit, " ", what), str(value));
}

// The axes of a call's arrays.
struct Axes {
    int heads, tokens;  // d is the last
};

struct Sizes {
    std::int64_t heads, kv_heads, tokens, keys, d;
};

Sizes check(const char* call, const Array& q, const Array& k, const Array& v, int rank, Axes axes) {
    if (rank == 3 || q.dtype() != DType::float8_e4m3) require_model_float(call, "q", q.dtype());
    if (q.rank() != rank) refuse(call, "q", str(rank, " axes"), to_string(q.shape()));
    if (k.rank() != rank) refuse(call, "k", str(rank, " axes"), to_string(k.shape()));
    Dims expected = k.shape();
    expected[rank - 1] = q.shape()[rank - 1];
    if (rank == 4) expected[0] = q.shape()[0];
    require_array(call, "k", k, expected, q.dtype());
    require_array(call, "v", v, k.shape(), q.dtype());
    const Sizes sizes{.heads = q.shape()[axes.heads],
                      .kv_heads = k.shape()[axes.heads],
                      .tokens = q.shape()[axes.tokens],
                      .keys = k.shape()[axes.tokens],
                      .d = q.shape()[rank - 1]};
    if (sizes.d < 1 || sizes.d > kernels::kMaxHeadDim) {
        refuse(call, "q", str("heads of 1 to ", kernels::kMaxHeadDim, " elements"), str(sizes.d));
    }
    if (sizes.heads > 0 && (sizes.kv_heads < 1 || sizes.heads % sizes.kv_heads != 0)) {
        refuse(call, "k", str("a number of heads that divides the ", sizes.heads, " of q"),
               str(sizes.kv_heads));
    }
    require_at_most(call, "q", "tokens", sizes.tokens, kUnbounded / 4);
    require_at_most(call, "k", "keys", sizes.keys, kUnbounded / 4);
    return sizes;
}

std::int32_t reach(std::int64_t keys) {
    return keys < 0 || keys > kUnbounded ? kUnbounded : static_cast<std::int32_t>(keys);
}

// Everything but what the shapes say.
FlashAttentionParams params_of(const char* call, const Sizes& sizes, const AttentionOptions& options) {
    if (!(options.soft_cap >= 0) || std::isinf(options.soft_cap)) {
        refuse(call, "soft_cap", "a positive number, or 0 for none", str(options.soft_cap));
    }
    if (options.alibi_slopes != nullptr) {
        require_array(call, "alibi_slopes", *options.alibi_slopes, {sizes.heads}, DType::float32);
    }
    const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(sizes.d))) *
                         options.q_scale.value * options.k_scale.value;
    if (!std::isfinite(static_cast<float>(scale)))
        refuse(call, "scale", "a finite number, with those of q and k", str(scale));
    return {.slopes = nullptr,
            .mask_kind = kernels::MaskKind::none,
            .heads = static_cast<std::int32_t>(sizes.heads),
            .kv_heads = static_cast<std::int32_t>(sizes.kv_heads),
            .d = static_cast<std::int32_t>(sizes.d),
            .keys = static_cast<std::int32_t>(sizes.keys),
            .left = reach(options.left),
            .right = options.causal ? 0 : reach(options.right),
            .scale = static_cast<float>(scale),
            .value_scale = static_cast<float>(options.v_scale.value),
            .soft_cap = static_cast<float>(options.soft_cap)};
}

// What only float8 has.
DType result_of(const char* call, const Array& q, const AttentionOptions& options) {
    const bool narrow = q.dtype() == DType::float8_e4m3;
    const DType result = options.dtype.value_or(narrow ? DType::bfloat16 : q.dtype());
    if (narrow ? result != DType::float16 && result != DType::bfloat16 : result != q.dtype()) {
        throw error(ErrorKind::type, {.call = call,
                                      .argument = "dtype",
                                      .expected = narrow ? "float16 or bfloat16" : "that of q",
                                      .got = std::string(name(result))});
    }
    const std::pair<const char*, const AttentionScale&> scales[] = {
        {"q_scale", options.q_scale}, {"k_scale", options.k_scale}, {"v_scale", options.v_scale}};
    for (const auto& [argument, scale] : scales) {
        if (!narrow && (scale.value != 1 || scale.each != nullptr)) {
            refuse(call, argument, "none, since q is not float8_e4m3", "one");
        }
        const auto value = static_cast<float>(scale.value);
        if (!std::isfinite(value) || !(value > 0))
            refuse(call, argument, "a finite number > 0", str(scale.value));
    }
    return result;
}

// As [batch, heads]; `fallback`, which nobody reads, where there is none.
Array expand_scales(const char* call, const char* argument, const AttentionScale& scale, const Dims& shape,
                    const Array& fallback) {
    if (scale.each == nullptr) return fallback;
    const Array& each = *scale.each;
    require_array(call, argument, each, each.shape(), DType::float32);
    bool fits = each.rank() <= 2;
    for (int i = 0; fits && i < each.rank(); ++i) {
        fits = each.shape()[i] == 1 || each.shape()[i] == shape[2 - each.rank() + i];
    }
    if (!fits)
        refuse(call, argument, "a shape that broadcasts to " + to_string(shape), to_string(each.shape()));
    return each.broadcast_to(shape);
}
kernels::AttentionScales scales_of(const AttentionScale& scale, const Array& each) {
    if (scale.each == nullptr) return {};
    return {.each = each.as<const float>(), .batch = each.strides()[0], .head = each.strides()[1]};
}

// What can be read: the last axis dense, and what a tensor map cannot name in one piece where it then can.
Array readable(const Array& x) {
    const auto item = static_cast<std::int64_t>(itemsize(x.dtype()));
    const bool maps = item <= 2 && x.shape()[3] * item % 16 == 0;
    return last_axis_dense(x) && (!maps || suits_tensor_map(x)) ? x : contiguous(x);
}

// The same for the kernels of few tokens.
kernels::AttentionDecodeParams few_of(const FlashAttentionParams& p) {
    return {.slopes = p.slopes,
            .scale = p.scale,
            .soft_cap = p.soft_cap,
            .batch = p.batch,
            .tokens = p.tokens,
            .heads = p.heads,
            .kv_heads = p.kv_heads,
            .d = p.d,
            .capacity = p.keys,
            .position = p.keys - p.tokens,
            .left = std::min(p.left, kernels::kDecodeUnbounded),
            .right = std::min(p.right, kernels::kDecodeUnbounded)};
}

// As [batch, heads, tokens, keys], the keys one after another.
Array expand_mask(const char* call, const Array& mask, const Dims& shape, DType dtype) {
    if (mask.dtype() != DType::bool_ && mask.dtype() != DType::float32 && mask.dtype() != dtype) {
        throw error(ErrorKind::type, {.call = call,
                                      .argument = "mask",
                                      .expected = str("bool, float32 or ", name(dtype)),
                                      .got = std::string(name(mask.dtype()))});
    }
    Dims own = mask.shape();  // with all keys, and no more than that
    if (!own.empty()) own[own.size() - 1] = shape[3];
    bool fits = own.size() <= 4;
    for (int i = 0; fits && i < mask.rank(); ++i) {
        const std::int64_t extent = mask.shape()[i];
        fits = extent == 1 || extent == shape[4 - mask.rank() + i];
    }
    if (!fits)
        refuse(call, "mask", "a shape that broadcasts to " + to_string(shape), to_string(mask.shape()));
    const Array whole = own.empty() ? mask.broadcast_to({shape[3]}) : mask.broadcast_to(own);
    return (last_axis_dense(whole) ? whole : contiguous(whole)).broadcast_to(shape);
}

kernels::MaskKind kind_of(const Array& mask, DType dtype) {
    if (mask.dtype() == DType::bool_) return kernels::MaskKind::boolean;
    return mask.dtype() == dtype ? kernels::MaskKind::element : kernels::MaskKind::float32;
}

// Of `pairs` of queries and keys that see each other, all heads together.
Cost cost_of(const Array& q, const Array& k, double pairs) {
    return {.flops = 4 * pairs * static_cast<double>(q.shape()[q.rank() - 1]),
            .bytes = static_cast<double>(2 * q.nbytes() + 2 * k.nbytes())};
}

double seen_pairs(const Sizes& s, const FlashAttentionParams& p) {
    const auto tokens = static_cast<double>(s.tokens), keys = static_cast<double>(s.keys);
    const double all = tokens * keys;
    const double later = p.right == 0 ? tokens * std::min(tokens, keys) / 2 : 0;
    const double windowed = tokens * (static_cast<double>(p.left) + p.right + 1);
    return static_cast<double>(s.heads) * std::min(all - later, windowed);
}

}  // namespace

Array attention(const Array& query, const Array& key, const Array& value, const AttentionOptions& options,
                const Array* out) {
    constexpr const char* kCall = "attention";
    Device& device = common_device(kCall, {&query, &key, &value, options.mask, options.alibi_slopes, out,
                                           options.q_scale.each, options.k_scale.each, options.v_scale.each});
    const Sizes sizes = check(kCall, query, key, value, 4, {.heads = 1, .tokens = 2});
    const DType result = result_of(kCall, query, options);
    const bool narrow = query.dtype() != result;
    FlashAttentionParams params = params_of(kCall, sizes, options);
    const std::int64_t batch = query.shape()[0];
    require_at_most(kCall, "q", "queries of all heads", batch * sizes.heads * sizes.tokens, kUnbounded);
    const Array y = prepare_output(kCall, device, query.shape(), result, out);
    require_no_overlap(kCall, y, {&query, &key, &value});
    Array mask;
    if (options.mask != nullptr) {
        mask = expand_mask(kCall, *options.mask, {batch, sizes.heads, sizes.tokens, sizes.keys},
                           narrow ? DType::float32 : query.dtype());
    }
    const Dims of_query{batch, sizes.heads}, of_keys{batch, sizes.kv_heads};
    const Array q_scales = expand_scales(kCall, "q_scale", options.q_scale, of_query, query),
                k_scales = expand_scales(kCall, "k_scale", options.k_scale, of_keys, query),
                v_scales = expand_scales(kCall, "v_scale", options.v_scale, of_keys, query);
    if (y.size() == 0) return y;
    if (sizes.keys == 0) {
        assign(y, 0);
        return y;
    }

    const bool direct = last_axis_dense(y);
    const Array target = direct ? y : Array::empty(device, y.shape(), y.dtype());
    params.batch = static_cast<std::int32_t>(batch);
    params.tokens = static_cast<std::int32_t>(sizes.tokens);
    const Array slopes = options.alibi_slopes == nullptr ? query : contiguous(*options.alibi_slopes);
    if (options.alibi_slopes != nullptr) params.slopes = slopes.as<const float>();
    const Cost cost = cost_of(query, key, static_cast<double>(batch) * seen_pairs(sizes, params));
    constexpr std::int64_t kMostHeads = (1 << 15) - 1, kMostBatches = (1 << 16) - 1;  // of a grid
    if (sizes.tokens <= kDecodeTokens && !mask.defined() && !narrow && sizes.heads <= kMostHeads &&
        batch <= kMostBatches) {
        const Array q = decode_query(query.transpose({0, 2, 1, 3}));
        const Array k = last_axis_dense(key) ? key : contiguous(key),
                    v = last_axis_dense(value) ? value : contiguous(value);
        launch_decode({.q = q,
                       .keys = k,
                       .values = v,
                       .out = target.transpose({0, 2, 1, 3}),
                       .params = few_of(params),
                       .as_alone = false,
                       .cost = cost,
                       .reads = {&q, &k, &v, &slopes}});
    } else {
        Array q = readable(query), k = readable(key), v = readable(value);
        params.q_scales = scales_of(options.q_scale, q_scales);
        params.k_scales = scales_of(options.k_scale, k_scales);
        params.v_scales = scales_of(options.v_scale, v_scales);
        if (narrow &&
            !takes_flash(
                {.q = q, .k = k, .v = v, .out = target, .params = params, .cost = {}, .reads = {}})) {
            q = astype(q, result);  // 16 bits hold every number of 8
            k = astype(k, result);
            v = astype(v, result);
        }
        if (mask.defined()) {
            params.mask = mask.as<>();
            params.mask_kind = kind_of(mask, q.dtype());
            params.mask_batch = mask.strides()[0];
            params.mask_head = mask.strides()[1];
            params.mask_query = mask.strides()[2];
        }
        const Array& also = mask.defined() ? mask : q;
        launch_flash({.q = q,
                      .k = k,
                      .v = v,
                      .out = target,
                      .params = params,
                      .cost = cost,
                      .reads = {&q, &k, &v, &also, &slopes, &q_scales, &k_scales, &v_scales}});
    }
    if (!direct) assign(y, target);
    return y;
}

Array attention_packed(const Array& query, const Array& key, const Array& value, const Array& q_starts,
                       const Array& k_starts, std::int64_t max_tokens, const AttentionOptions& options,
                       const Array* out) {
    constexpr const char* kCall = "attention_packed";
    Device& device =
        common_device(kCall, {&query, &key, &value, &q_starts, &k_starts, options.alibi_slopes, out});
    const Sizes sizes = check(kCall, query, key, value, 3, {.heads = 1, .tokens = 0});
    result_of(kCall, query, options);
    FlashAttentionParams params = params_of(kCall, sizes, options);
    if (options.mask != nullptr) refuse(kCall, "mask", "none", "one");
    if (q_starts.rank() != 1 || q_starts.shape()[0] < 1) {
        refuse(kCall, "q_starts", "shape (sequences + 1,)", to_string(q_starts.shape()));
    }
    require_array(kCall, "q_starts", q_starts, q_starts.shape(), DType::int32);
    require_array(kCall, "k_starts", k_starts, q_starts.shape(), DType::int32);
    if (max_tokens < 0) refuse(kCall, "max_tokens", "the most queries of a sequence", str(max_tokens));
    max_tokens = std::min(max_tokens, sizes.tokens);
    const std::int64_t sequences = q_starts.shape()[0] - 1;
    require_at_most(kCall, "q_starts", "sequences", sequences, 1 << 20);
    require_at_most(kCall, "max_tokens", "queries of all heads and sequences",
                    sequences * sizes.heads * ((max_tokens + 63) / 64), kUnbounded / 64);
    const Array y = prepare_output(kCall, device, query.shape(), query.dtype(), out);
    require_no_overlap(kCall, y, {&query, &key, &value});
    if (y.size() == 0 || sequences == 0 || max_tokens == 0) return y;
    if (sizes.keys == 0) {
        assign(y, 0);
        return y;
    }

    const auto heads_first = [](const Array& x) { return x.transpose({1, 0, 2}).expand_dims(0); };
    const Array q = readable(heads_first(query)), k = readable(heads_first(key)),
                v = readable(heads_first(value));
    const Array starts = contiguous(q_starts), ends = contiguous(k_starts);
    const bool direct = last_axis_dense(y);
    const Array target = direct ? y : Array::empty(device, y.shape(), y.dtype());
    const Array slopes = options.alibi_slopes == nullptr ? q : contiguous(*options.alibi_slopes);
    if (options.alibi_slopes != nullptr) params.slopes = slopes.as<const float>();
    params.q_starts = starts.as<const std::int32_t>();
    params.k_starts = ends.as<const std::int32_t>();
    params.q_total = static_cast<std::int32_t>(sizes.tokens);
    params.k_total = static_cast<std::int32_t>(sizes.keys);
    params.batch = static_cast<std::int32_t>(sequences);
    params.tokens = static_cast<std::int32_t>(max_tokens);
    // What the sequences' lengths are is not known here: as if they were alike.
    const double pairs = seen_pairs({.heads = sizes.heads,
                                     .kv_heads = sizes.kv_heads,
                                     .tokens = max_tokens,
                                     .keys = sizes.keys / sequences,
                                     .d = sizes.d},
                                    params);
    launch_flash({.q = q,
                  .k = k,
                  .v = v,
                  .out = heads_first(target),
                  .params = params,
                  .cost = cost_of(q, k, static_cast<double>(sequences) * pairs),
                  .reads = {&q, &k, &v, &starts, &ends, &slopes}});
    if (!direct) assign(y, target);
    return y;
}

}  // namespace gpk::ops
