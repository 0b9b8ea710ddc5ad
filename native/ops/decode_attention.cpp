#include "ops/decode_attention.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "ops/counters.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"

namespace gpk::ops {

namespace {

using kernels::AttentionDecodeParams;
using kernels::DecodeVariant;

std::int64_t tiles_of(const AttentionDecodeParams& p, int rows) {
    return (std::int64_t{p.tokens} * (p.heads / p.kv_heads) + rows - 1) / rows * p.kv_heads;
}

// So many that the blocks fill the device when the keys do what there is room for.
std::int64_t splits_of(Device& device, const AttentionDecodeParams& p, const DecodeVariant& variant,
                       bool as_alone) {
    const std::int64_t blocks =
        std::int64_t{variant.blocks_per_multiprocessor} * current_stream(device)->multiprocessors();
    const std::int64_t tiles = tiles_of(p, variant.rows) * (as_alone ? 1 : p.batch);
    const std::int64_t useful =
        p.capacity <= kernels::decode_alone(p.d) ? 1 : (p.capacity + p.least_keys - 1) / p.least_keys;
    return std::clamp<std::int64_t>(blocks / std::max<std::int64_t>(tiles, 1), 1,
                                    std::clamp<std::int64_t>(useful, 1, kernels::kDecodeMaxSplits));
}

// Words that a call's partial results take: see parts_of() in decode_split.cuh.
std::int64_t words_of(const AttentionDecodeParams& p) {
    return std::int64_t{p.batch} * p.tokens * p.heads * p.splits * (p.d + 2) + 3;
}

bool in_pieces(const Array& x) {
    const auto size = static_cast<std::int64_t>(itemsize(x.dtype()));
    if (!aligned16(x) || x.shape()[3] * size % 16 != 0) return false;
    for (int axis = 0; axis < 3; ++axis) {
        if (x.shape()[axis] > 1 && x.strides()[axis] * size % 16 != 0) return false;
    }
    return true;
}

// Small blocks, two of a multiprocessor, are for more than there are multiprocessors.
const DecodeVariant& choose(const AttentionDecodeParams& p, DType dtype, DType stored, bool as_alone,
                            int multiprocessors) {
    const auto rows = kernels::attention_decode(dtype, stored);
    for (const DecodeVariant& row : rows) {
        if (p.d > row.max_d || (row.needs_16_bytes && !p.vectorized)) continue;
        const bool many = !as_alone && p.batch * tiles_of(p, row.rows) > multiprocessors;
        if (row.needs_16_bytes && row.blocks_per_multiprocessor > 1 &&
            (!many || p.tokens * (p.heads / p.kv_heads) > row.rows)) {
            continue;
        }
        // Rows of a tile that are not there cost as much as those that are.
        if (row.needs_16_bytes && row.rows > 8 && p.tokens * (p.heads / p.kv_heads) <= 8) continue;
        if (!row.needs_16_bytes && row.rows > 1 && p.heads == p.kv_heads && p.tokens == 1) continue;
        return row;
    }
    return rows.back();  // takes all
}

}  // namespace

Array decode_query(const Array& q) { return last_axis_dense(q) && in_pieces(q) ? q : astype(q, q.dtype()); }

bool launch_decode(const DecodeCall& call) {
    Device& device = call.q.device();
    const Array& q = call.q;
    AttentionDecodeParams p = call.params;
    const auto strides_of = [](const Array& x, int head, int token) {
        return kernels::DecodeStrides{x.strides()[0], x.strides()[head], x.strides()[token]};
    };
    p.q = q.as<>();
    p.keys = call.keys.as<>();
    p.values = call.values.as<>();
    p.out = call.out.as<>();
    p.q_at = strides_of(q, 2, 1);
    p.k_at = strides_of(call.keys, 1, 2);
    p.v_at = strides_of(call.values, 1, 2);
    p.out_at = strides_of(call.out, 2, 1);
    p.has_options = p.soft_cap > 0 || p.slopes != nullptr;
    p.vectorized = in_pieces(call.keys) && in_pieces(call.values) && in_pieces(q);
    const DecodeVariant& variant =
        choose(p, q.dtype(), call.keys.dtype(), call.as_alone, current_stream(device)->multiprocessors());
    const bool appends = p.append.k != nullptr;
    if (appends && !variant.needs_16_bytes) return false;
    // Many sequences that spread as if alone are many blocks, and each joins the others' parts.
    if (call.as_alone) p.least_keys = kernels::decode_alone(p.d);
    p.splits = static_cast<std::int32_t>(splits_of(device, p, variant, call.as_alone));
    const LaunchConfig config{
        .grid = {static_cast<std::uint32_t>(p.splits), static_cast<std::uint32_t>(tiles_of(p, variant.rows)),
                 static_cast<std::uint32_t>(p.batch)},
        .block = {static_cast<std::uint32_t>(variant.threads)},
        .shared_bytes = static_cast<std::uint32_t>(variant.shared_bytes)};
    Array partial = call.out;
    if (p.splits > 1) {
        partial = zero_counters(device, words_of(p));
        p.partial = partial.as<float>();
    }
    const Array &keys = appends ? call.keys : call.out, &values = appends ? call.values : call.out;
    with_storages(call.reads, call.more_reads, {&call.out, &partial, &keys, &values}, [&](Stream& stream) {
        device.launcher().launch(stream, *variant.kernel, config, p, call.cost);
    });
    return true;
}

}  // namespace gpk::ops
