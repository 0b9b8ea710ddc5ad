#include "kernels/attention/kv_append.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "ops/attention.hpp"
#include "ops/attention_checks.hpp"
#include "ops/kv_append.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"

namespace gpk::ops {

namespace {

constexpr const char* kCall = "kv_append";

[[noreturn]] void refuse(const char* argument, const std::string& expected, const std::string& got) {
    throw error(ErrorKind::value, {.call = kCall, .argument = argument, .expected = expected, .got = got});
}

// [batch, tokens, heads, d], whose heads follow one another without a gap: what the kernel can address.
void require_tokens(const char* argument, const Array& x) {
    if (x.rank() != 4) refuse(argument, "shape (batch, tokens, heads, d)", to_string(x.shape()));
    if (!last_axis_dense(x) || (x.shape()[2] > 1 && x.strides()[2] != x.shape()[3]))
        refuse(argument, "heads without gaps between them", "strides " + to_string(x.strides()));
}

void require_cache(const char* argument, const Array& cache, const Dims& k, DType dtype) {
    if (cache.rank() != 4 || cache.shape()[0] != k[0] || cache.shape()[1] != k[2] || cache.shape()[3] != k[3])
        refuse(argument, str("shape (", k[0], ", ", k[2], ", capacity, ", k[3], ")"),
               to_string(cache.shape()));
    require_array(kCall, argument, cache, cache.shape(), dtype);
    require_writable(kCall, argument, cache);
    if (!last_axis_dense(cache) || (cache.shape()[2] > 1 && cache.strides()[2] != cache.shape()[3]))
        refuse(argument, "positions without gaps between them", "strides " + to_string(cache.strides()));
}

// Enough blocks for a device's worth of warps; with many tokens a warp goes on to further heads of its
// token, whose angles it has.
std::uint32_t blocks_of_token(std::int64_t tokens, std::int64_t rows, int multiprocessors) {
    constexpr std::int64_t kBlocksPerMultiprocessor = 16;
    const std::int64_t most = (rows + kernels::kAppendWarps - 1) / kernels::kAppendWarps;
    const std::int64_t wanted =
        multiprocessors * kBlocksPerMultiprocessor / std::max<std::int64_t>(tokens, 1);
    return static_cast<std::uint32_t>(std::clamp<std::int64_t>(wanted, 1, most));
}

}  // namespace

kernels::KvAppendParams kv_append_params(const Array& k, const Array& v, const Array& keys,
                                         const Array& values, const Array& positions,
                                         const KvAppendOptions& o) {
    require_model_float(kCall, "k", k.dtype());
    require_tokens("k", k);
    require_array(kCall, "v", v, k.shape(), k.dtype());
    require_tokens("v", v);
    const std::int64_t batch = k.shape()[0], tokens = k.shape()[1], kv_heads = k.shape()[2], d = k.shape()[3];
    if (d % 2 != 0 || d > kernels::kMaxAppendDim)
        refuse("k", str("heads of an even number of elements, at most ", kernels::kMaxAppendDim), str(d));
    const DType stored = keys.dtype() == DType::float8_e4m3 ? keys.dtype() : k.dtype();
    require_cache("keys", keys, k.shape(), stored);
    require_cache("values", values, k.shape(), stored);
    if (values.shape() != keys.shape()) refuse("values", to_string(keys.shape()), to_string(values.shape()));
    require_array(kCall, "positions", positions, {batch}, DType::int32);
    require_contiguous(kCall, "positions", positions);
    std::int64_t heads = 0;
    if (o.q != nullptr) {
        require_tokens("q", *o.q);
        heads = o.q->shape()[2];
        require_array(kCall, "q", *o.q, {batch, tokens, heads, d}, k.dtype());
        require_writable(kCall, "q", *o.q);
        if (o.rope == nullptr && o.q_norm == nullptr)
            refuse("q", "a rope or a norm to apply to it", "neither");
    } else if (o.q_norm != nullptr) {
        refuse("q_norm", "none without q", "one");
    }
    for (const auto& [name, weights] : {std::pair{"q_norm", o.q_norm}, {"k_norm", o.k_norm}}) {
        if (weights == nullptr) continue;
        require_array(kCall, name, *weights, {d}, k.dtype());
        require_contiguous(kCall, name, *weights);
    }
    if (!(o.norm_eps >= 0)) refuse("norm_eps", "a number >= 0", str(o.norm_eps));
    constexpr std::int64_t kMostHeads = 1 << 16, kMostTokens = INT32_MAX;
    if (heads + 2 * kv_heads > kMostHeads) refuse("q", str("at most ", kMostHeads, " heads"), str(heads));
    if (batch > 65535) refuse("k", "at most 65535 sequences", str(batch));
    if (tokens > kMostTokens) refuse("k", str("at most ", kMostTokens, " tokens"), str(tokens));
    common_device(kCall, {&k, &v, &keys, &values, &positions, o.q, o.q_norm, o.k_norm,
                          o.rope != nullptr ? &o.rope->inv_freq : nullptr});
    const auto pointer = [](const Array* array) { return array != nullptr ? array->as<>() : nullptr; };
    const auto stride = [](const Array* array, int axis) {
        return array != nullptr ? array->strides()[axis] : 0;
    };
    return {
        .q = pointer(o.q),
        .k = k.as<>(),
        .v = v.as<>(),
        .keys = keys.as<>(),
        .values = values.as<>(),
        .positions = positions.as<const std::int32_t>(),
        .q_norm = pointer(o.q_norm),
        .k_norm = pointer(o.k_norm),
        .rope = o.rope != nullptr ? rope_table(kCall, *o.rope, d) : kernels::RopeTable{nullptr, 0, 1.0f},
        .batch = batch,
        .tokens = tokens,
        .capacity = keys.shape()[2],
        .heads = static_cast<std::int32_t>(heads),
        .kv_heads = static_cast<std::int32_t>(kv_heads),
        .d = static_cast<std::int32_t>(d),
        .norm_eps = static_cast<float>(o.norm_eps),
        .q_token_stride = stride(o.q, 1),
        .k_token_stride = k.strides()[1],
        .v_token_stride = v.strides()[1],
        .q_batch_stride = stride(o.q, 0),
        .k_batch_stride = k.strides()[0],
        .v_batch_stride = v.strides()[0],
        .key_head_stride = keys.strides()[1],
        .value_head_stride = values.strides()[1],
        .key_batch_stride = keys.strides()[0],
        .value_batch_stride = values.strides()[0],
    };
}

void kv_append(const Array& k, const Array& v, const Array& keys, const Array& values, const Array& positions,
               const KvAppendOptions& o) {
    const kernels::KvAppendParams params = kv_append_params(k, v, keys, values, positions, o);
    if (k.size() == 0) return;
    const std::int64_t batch = params.batch, tokens = params.tokens,
                       rows = params.heads + 2 * params.kv_heads;
    const double elements = static_cast<double>(batch * tokens * rows) * static_cast<double>(params.d);
    const Cost cost{.flops = 5 * elements, .bytes = 2 * elements * static_cast<double>(itemsize(k.dtype()))};
    const LaunchConfig config{
        .grid = {static_cast<std::uint32_t>(tokens),
                 blocks_of_token(batch * tokens, rows, current_stream(k.device())->multiprocessors()),
                 static_cast<std::uint32_t>(batch)},
        .block = {kernels::kAppendWarps * 32}};
    const Kernel& kernel = kernels::kv_append(k.dtype(), keys.dtype());
    const Array* table = o.rope != nullptr ? &o.rope->inv_freq : nullptr;
    if (o.q != nullptr) {
        launch(kernel, config, params, cost, {&k, &v, &positions, o.q_norm, o.k_norm, table},
               {&keys, &values, o.q});
    } else {
        launch(kernel, config, params, cost, {&k, &v, &positions, o.k_norm, table}, {&keys, &values});
    }
}

}  // namespace gpk::ops
