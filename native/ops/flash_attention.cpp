#include "ops/flash_attention.hpp"

#include <algorithm>
#include <numeric>

#include "kernels/attention/flash_values.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"
#include "ops/sm90.hpp"

namespace gpk::ops {

namespace {

using kernels::FlashAttentionParams;
using kernels::FlashVariant;

// Of the keys and values that are in use at a time.
constexpr double kCachedBytes = 32 << 20;

bool available(Device& device, const FlashVariant& variant) {
    return !variant.tensor_maps || runs_sm90(*variant.kernel, device.info().sm);
}

// Whether whole steps of this many keys are copied page by page, and whole swizzle patterns each time.
std::int32_t keys_of_box(const FlashAttentionParams& p, int keys) {
    return p.pages == nullptr ? keys : std::gcd(p.page_tokens, keys);
}

const FlashVariant* choose(const FlashCall& call) {
    const FlashAttentionParams& p = call.params;
    const bool options =
        p.soft_cap > 0 || p.slopes != nullptr || p.mask_kind != kernels::MaskKind::none || !(p.scale > 0);
    const bool pieces = suits_tensor_map(call.q) && suits_tensor_map(call.k) && suits_tensor_map(call.v) &&
                        aligned16(call.out) &&
                        std::all_of(call.out.strides().begin(), call.out.strides().end() - 1,
                                    [](std::int64_t stride) { return stride % 8 == 0; });
    for (const FlashVariant& row : kernels::flash_attention(call.q.dtype(), options)) {
        if (p.d > row.max_d || (row.pieces && !pieces) || !available(call.q.device(), row)) continue;
        if (row.tensor_maps && keys_of_box(p, row.keys) % 8 != 0) continue;
        return &row;
    }
    return nullptr;
}

kernels::AttentionStrides strides_of(const Array& x) {
    return {.batch = x.strides()[0], .head = x.strides()[1], .token = x.strides()[2]};
}

// Boxes of `rows` of the last axis but one, and of 128 bytes.
TensorMap map_of(const Array& x, int rows) {
    TensorMapDef def{.address = x.data(), .dtype = x.dtype(), .rank = 4, .swizzle = TensorSwizzle::bytes_128};
    constexpr int kAxes[] = {3, 2, 1, 0};
    const std::uint64_t item = itemsize(x.dtype());
    for (int i = 0; i < 4; ++i) {
        def.extents[i] = static_cast<std::uint64_t>(x.shape()[kAxes[i]]);
        def.box[i] = 1;
        // The stride of an axis with one index says nothing, and need not be one that maps have.
        if (i > 0) {
            def.strides_bytes[i - 1] =
                def.extents[i] == 1 ? 16 : static_cast<std::uint64_t>(x.strides()[kAxes[i]]) * item;
        }
    }
    def.box[0] = static_cast<std::uint32_t>(128 / item);
    def.box[1] = static_cast<std::uint32_t>(rows);
    return x.device().driver().tensor_map(def);
}

// What the kernels of float8 read instead of v.
Array turned_values(const Array& v) {
    constexpr std::int64_t kKeys = kernels::kFlashValueKeys, kColumns = kernels::kFlashValueColumns;
    const std::int64_t heads = v.shape()[0] * v.shape()[1], keys = v.shape()[2], d = v.shape()[3],
                       padded = (keys + kKeys - 1) / kKeys * kKeys;
    const Array turned = Array::empty(v.device(), {v.shape()[0], v.shape()[1], d, padded}, v.dtype());
    const kernels::FlashValuesParams params{.in = v.as<>(),
                                            .out = turned.as<>(),
                                            .batch_stride = v.strides()[0],
                                            .head_stride = v.strides()[1],
                                            .token_stride = v.strides()[2],
                                            .batch = static_cast<std::int32_t>(v.shape()[0]),
                                            .kv_heads = static_cast<std::int32_t>(v.shape()[1]),
                                            .keys = static_cast<std::int32_t>(keys),
                                            .d = static_cast<std::int32_t>(d),
                                            .padded = static_cast<std::int32_t>(padded)};
    const LaunchConfig config{.grid = {static_cast<std::uint32_t>(padded / kKeys),
                                       static_cast<std::uint32_t>((d + kColumns - 1) / kColumns),
                                       static_cast<std::uint32_t>(heads)},
                              .block = {kernels::kFlashValueThreads}};
    launch(kernels::flash_values(), config, params,
           {.flops = 0, .bytes = static_cast<double>(v.nbytes() + turned.nbytes())}, {&v}, {&turned});
    return turned;
}

bool reads_16_bytes(const Array& x) {
    const auto size = static_cast<std::int64_t>(itemsize(x.dtype()));
    return aligned16(x) && x.shape()[3] % 8 == 0 &&
           std::all_of(x.strides().begin(), x.strides().end() - 1,
                       [&](std::int64_t stride) { return stride * size % 16 == 0; });
}

}  // namespace

bool suits_tensor_map(const Array& x) {
    const auto item = static_cast<std::int64_t>(itemsize(x.dtype()));
    if (item > 2 || !aligned16(x) || x.shape()[3] * item % 16 != 0) return false;
    for (int axis = 0; axis < 3; ++axis) {
        const std::int64_t stride = x.strides()[axis];
        if (x.shape()[axis] > 1 &&
            (stride < 0 || stride * item % 16 != 0 || stride >= std::int64_t{1} << 39)) {
            return false;
        }
    }
    return true;
}

bool takes_flash(const FlashCall& call) { return choose(call) != nullptr; }

void launch_flash(const FlashCall& call, const FlashVariant* only) {
    const FlashVariant& variant = only != nullptr ? *only : *choose(call);
    FlashAttentionParams p = call.params;
    p.q = call.q.as<>();
    p.k = call.k.as<>();
    p.v = call.v.as<>();
    p.out = call.out.as<>();
    p.q_at = strides_of(call.q);
    p.k_at = strides_of(call.k);
    p.v_at = strides_of(call.v);
    p.out_at = strides_of(call.out);
    p.vectorized = reads_16_bytes(call.k) && reads_16_bytes(call.v);
    p.box_keys = keys_of_box(p, variant.keys);
    p.out_float16 = call.out.dtype() == DType::float16;
    p.tile_rows = variant.tile_rows;
    p.tiles = (p.tokens + p.tile_rows - 1) / p.tile_rows;
    // Where tiles differ in length the longest go first, of as many heads as the L2 cache holds; where they
    // do not, head after head reads its keys and values once.
    const std::int32_t heads = p.batch * p.heads, all = heads * p.tiles;
    const double head_bytes =
        2.0 * static_cast<double>(itemsize(call.k.dtype())) * p.keys * p.d * p.kv_heads / p.heads;
    const bool alike = p.right == kernels::kUnbounded && p.q_starts == nullptr;
    p.heads_together =
        alike ? 1 : static_cast<std::int32_t>(std::clamp(kCachedBytes / head_bytes, 1.0, double(heads)));

    Device& device = call.q.device();
    const bool narrow = call.q.dtype() == DType::float8_e4m3;
    const Array turned = narrow ? turned_values(call.v) : call.out;
    const auto run = [&](Stream& stream) {
        if (variant.tensor_maps) {
            p.q_map = map_of(call.q, variant.tile_rows);
            p.k_map = map_of(call.k, p.box_keys);
            p.v_map = narrow ? map_of(turned, variant.max_d) : map_of(call.v, p.box_keys);
        }
        const auto config_of = [&](std::int32_t blocks) {
            return LaunchConfig{.grid = {static_cast<std::uint32_t>(blocks)},
                                .block = {static_cast<std::uint32_t>(variant.threads)},
                                .shared_bytes = static_cast<std::uint32_t>(variant.shared_bytes)};
        };
        const std::int64_t slices = slices_for(stream, *variant.kernel, config_of(all), call.cost);
        const auto step = static_cast<std::int32_t>(std::max<std::int64_t>((all + slices - 1) / slices, 1));
        for (p.first_tile = 0; p.first_tile < all; p.first_tile = p.end_tile) {
            p.end_tile = std::min(p.first_tile + step, all);
            const std::int32_t count = p.end_tile - p.first_tile;
            const std::int32_t blocks =
                variant.tensor_maps ? std::min(count, stream.multiprocessors()) : count;
            const double part = static_cast<double>(count) / all;
            stream.device().launcher().launch(
                stream, *variant.kernel, config_of(blocks), p,
                {.flops = call.cost.flops * part, .bytes = call.cost.bytes * part});
        }
    };
    if (alike || !variant.tensor_maps || all <= current_stream(device)->multiprocessors()) {
        return with_storages(call.reads, {&call.out, &turned}, run);
    }
    // The counter from which blocks take tiles, so that none is done long before the others.
    const Array counter = Array::empty(device, {1}, DType::int32);
    p.next_tile = counter.as<std::uint32_t>();
    with_storages(call.reads, {&call.out, &turned, &counter}, [&](Stream& stream) {
        device.launcher().fill(stream, counter.data(), 0, sizeof(std::uint32_t));
        run(stream);
    });
}

}  // namespace gpk::ops
