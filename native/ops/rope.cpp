#include "kernels/attention/rope.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "ops/attention.hpp"
#include "ops/attention_checks.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"

namespace gpk::ops {

kernels::RopeTable rope_table(const char* call, const Rope& rope, std::int64_t d) {
    const Array& table = rope.inv_freq;
    if (table.dtype() != DType::float32) {
        throw error(ErrorKind::type, {.call = call,
                                      .argument = "inv_freq",
                                      .expected = "float32",
                                      .got = std::string(name(table.dtype()))});
    }
    if (table.rank() != 1 || table.shape()[0] > d / 2 || !table.is_contiguous()) {
        throw error(ErrorKind::value, {.call = call,
                                       .argument = "inv_freq",
                                       .expected = str("a contiguous array of at most ", d / 2, " elements"),
                                       .got = "shape " + to_string(table.shape())});
    }
    return {.inv_freq = table.as<const float>(),
            .pairs = static_cast<std::int32_t>(table.shape()[0]),
            .factor = static_cast<float>(rope.factor)};
}

namespace {

// Accesses of 16 bytes, and all of a head turns.
bool suits_vectors(const Array& x, const Array& y, const kernels::RopeTable& table) {
    const std::int64_t size = static_cast<std::int64_t>(itemsize(x.dtype()));
    if (2 * table.pairs != x.shape()[3] || table.pairs * size % 16 != 0) return false;
    for (const Array* each : {&x, &y}) {
        if (!aligned16(*each)) return false;
        for (int axis = 0; axis < 3; ++axis) {
            if (each->shape()[axis] > 1 && each->strides()[axis] * size % 16 != 0) return false;
        }
    }
    return true;
}

}  // namespace

Array rope(const Array& input, const Array& position, const Rope& rope, const Array* out) {
    constexpr const char* kCall = "rope";
    require_model_float(kCall, "x", input.dtype());
    if (input.rank() < 3 || input.rank() > 4 || input.shape().back() < 2 || input.shape().back() % 2 != 0) {
        throw error(ErrorKind::value,
                    {.call = kCall,
                     .argument = "x",
                     .expected = "shape (tokens, heads, d) or (batch, tokens, heads, d) with an even d",
                     .got = to_string(input.shape())});
    }
    const std::int64_t tokens = input.shape()[input.rank() - 3];
    const bool all_positions = position.shape() == Dims{tokens} && tokens != 1;
    if (!all_positions) require_position(kCall, position);
    require_array(kCall, "position", position, position.shape(), DType::int32);
    require_contiguous(kCall, "position", position);
    const Array x = last_axis_dense(input) ? input : contiguous(input);
    Device& device = common_device(kCall, {&x, &position, &rope.inv_freq});
    const Array y = prepare_output(kCall, device, x.shape(), x.dtype(), out);
    if (!last_axis_dense(y)) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "out",
                                       .expected = "a last axis without gaps",
                                       .got = "strides " + to_string(y.strides())});
    }
    require_no_overlap(kCall, y, {&x});
    const kernels::RopeTable table = rope_table(kCall, rope, x.shape().back());
    if (x.size() == 0) return y;
    const Array from = x.rank() == 3 ? x.expand_dims(0) : x, to = y.rank() == 3 ? y.expand_dims(0) : y;
    kernels::RopeParams params{
        .x = from.as<>(),
        .y = to.as<>(),
        .position = position.as<const std::int32_t>(),
        .table = table,
        .batch = from.shape()[0],
        .tokens = tokens,
        .heads = from.shape()[2],
        .d = from.shape()[3],
        .x_batch_stride = from.strides()[0],
        .x_token_stride = from.strides()[1],
        .x_head_stride = from.strides()[2],
        .y_batch_stride = to.strides()[0],
        .y_token_stride = to.strides()[1],
        .y_head_stride = to.strides()[2],
        .has_all_positions = all_positions,
        .heads_per_thread = 0,
    };
    std::int64_t threads = x.size() / 2;
    if (suits_vectors(from, to, table)) {
        // As many heads a thread as leave enough threads.
        const std::int64_t all = x.size() * static_cast<std::int64_t>(itemsize(x.dtype())) / 32;
        const std::int64_t enough = 2048 * std::int64_t{current_stream(device)->multiprocessors()};
        const std::int64_t each = std::clamp<std::int64_t>(all / enough, 1, params.heads);
        params.heads_per_thread = static_cast<std::int32_t>(each);
        threads = all / params.heads * ((params.heads + each - 1) / each);
    }
    launch(kernels::rope(x.dtype()), grid_for(threads, 128), params,
           {.flops = 3 * static_cast<double>(x.size()), .bytes = 2 * static_cast<double>(x.nbytes())},
           {&x, &position, &rope.inv_freq}, {&y});
    return y;
}

}  // namespace gpk::ops
