#include "kernels/attention/rope.hpp"
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

void require_heads(const char* call, const char* argument, const Array& x) {
    require_model_float(call, argument, x.dtype());
    if (x.rank() != 3 || x.shape()[2] < 2 || x.shape()[2] % 2 != 0) {
        throw error(ErrorKind::value, {.call = call,
                                       .argument = argument,
                                       .expected = "shape (tokens, heads, d) with an even d",
                                       .got = to_string(x.shape())});
    }
}

Array rope(const Array& input, const Array& position, const Rope& rope, const Array* out) {
    constexpr const char* kCall = "rope";
    require_heads(kCall, "x", input);
    require_position(kCall, position);
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
    if (x.size() == 0) return y;
    const Dims& shape = x.shape();
    const kernels::RopeParams params{
        .x = x.as<>(),
        .y = y.as<>(),
        .position = position.as<const std::int32_t>(),
        .table = rope_table(kCall, rope, shape[2]),
        .tokens = shape[0],
        .heads = shape[1],
        .d = shape[2],
        .x_token_stride = x.strides()[0],
        .x_head_stride = x.strides()[1],
        .y_token_stride = y.strides()[0],
        .y_head_stride = y.strides()[1],
    };
    launch(kernels::rope(x.dtype()), grid_for(x.size() / 2, 128), params,
           {.flops = 3 * static_cast<double>(x.size()), .bytes = 2 * static_cast<double>(x.nbytes())},
           {&x, &position, &rope.inv_freq}, {&y});
    return y;
}

}  // namespace gpk::ops
