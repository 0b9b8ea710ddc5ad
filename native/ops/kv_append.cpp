#include "kernels/attention/kv_append.hpp"
#include "base/error.hpp"
#include "ops/attention.hpp"
#include "ops/attention_checks.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"

namespace gpk::ops {

namespace {

constexpr const char* kCall = "kv_append";

// Heads that follow one another without a gap: what the kernel can address.
void require_dense_heads(const char* argument, const Array& x) {
    const bool dense = last_axis_dense(x) && (x.shape()[1] <= 1 || x.strides()[1] == x.shape()[2]);
    if (dense) return;
    throw error(ErrorKind::value, {.call = kCall,
                                   .argument = argument,
                                   .expected = "heads without gaps between them",
                                   .got = "strides " + to_string(x.strides())});
}

void require_cache_rows(const char* argument, const Array& cache) {
    require_writable(kCall, argument, cache);
    if (cache.shape()[1] > 1 && cache.strides()[1] != cache.shape()[2]) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = argument,
                                       .expected = "positions without gaps between them",
                                       .got = "strides " + to_string(cache.strides())});
    }
}

}  // namespace

void kv_append(const Array& k, const Array& v, const Array& keys, const Array& values, const Array& position,
               const Rope* rope, const Array* q) {
    require_heads(kCall, "k", k);
    require_array(kCall, "v", v, k.shape(), k.dtype());
    const std::int64_t tokens = k.shape()[0], kv_heads = k.shape()[1], d = k.shape()[2];
    require_cache(kCall, keys, values, d, k.dtype());
    if (keys.shape()[0] != kv_heads) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "keys",
                                       .expected = str("a cache of ", kv_heads, " heads"),
                                       .got = to_string(keys.shape())});
    }
    require_cache_rows("keys", keys);
    require_cache_rows("values", values);
    require_position(kCall, position);
    require_dense_heads("k", k);
    require_dense_heads("v", v);
    common_device(kCall, {&k, &v, &keys, &values, &position});
    std::int64_t heads = 0;
    if (q != nullptr) {
        require_heads(kCall, "q", *q);
        heads = q->shape()[1];
        require_array(kCall, "q", *q, {tokens, heads, d}, k.dtype());
        require_dense_heads("q", *q);
        common_device(kCall, {&k, q});
        require_writable(kCall, "q", *q);
        if (rope == nullptr) {
            throw error(ErrorKind::value,
                        {.call = kCall, .argument = "rope", .expected = "frequencies to rotate q by"});
        }
    }
    if (k.size() == 0) return;

    const kernels::KvAppendParams params{
        .q = q != nullptr ? q->as<>() : nullptr,
        .k = k.as<>(),
        .v = v.as<>(),
        .keys = keys.as<>(),
        .values = values.as<>(),
        .position = position.as<const std::int32_t>(),
        .rope = rope != nullptr ? rope_table(kCall, *rope, d) : kernels::RopeTable{nullptr, 0, 1.0f},
        .tokens = tokens,
        .heads = heads,
        .kv_heads = kv_heads,
        .d = d,
        .capacity = keys.shape()[1],
        .q_stride = q != nullptr ? q->strides()[0] : 0,
        .k_stride = k.strides()[0],
        .v_stride = v.strides()[0],
        .key_head_stride = keys.strides()[0],
        .value_head_stride = values.strides()[0],
    };
    const std::int64_t elements = tokens * (heads + 2 * kv_heads) * d;
    const Cost cost{.flops = 3.0 * static_cast<double>(tokens * (heads + kv_heads) * d),
                    .bytes = 2.0 * static_cast<double>(elements) * static_cast<double>(itemsize(k.dtype()))};
    const Kernel& kernel = kernels::kv_append(k.dtype());
    const LaunchConfig config = grid_for(elements / 2, 64);
    if (q != nullptr) {
        launch(kernel, config, params, cost, {&k, &v, &position, &rope->inv_freq}, {&keys, &values, q});
    } else if (rope != nullptr) {
        launch(kernel, config, params, cost, {&k, &v, &position, &rope->inv_freq}, {&keys, &values});
    } else {
        launch(kernel, config, params, cost, {&k, &v, &position}, {&keys, &values});
    }
}

}  // namespace gpk::ops
