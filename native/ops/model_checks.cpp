#include "ops/model_checks.hpp"

#include "base/error.hpp"
#include "kernels/floats.hpp"
#include "ops/launch.hpp"

namespace gpk::ops {

void require_model_float(const char* call, const char* argument, DType dtype) {
    if (kernels::float_index(dtype) >= 0) return;
    throw error(ErrorKind::type, {.call = call,
                                  .argument = argument,
                                  .expected = "float32, float16 or bfloat16",
                                  .got = std::string(name(dtype)),
                                  .fix = "convert it with astype"});
}

void require_array(const char* call, const char* argument, const Array& array, const Dims& shape,
                   DType dtype) {
    if (array.dtype() != dtype) {
        throw error(ErrorKind::type, {.call = call,
                                      .argument = argument,
                                      .expected = std::string(name(dtype)),
                                      .got = std::string(name(array.dtype()))});
    }
    if (array.shape() != shape) {
        throw error(ErrorKind::value, {.call = call,
                                       .argument = argument,
                                       .expected = "shape " + to_string(shape),
                                       .got = to_string(array.shape())});
    }
}

void require_contiguous(const char* call, const char* argument, const Array& array) {
    if (array.is_contiguous()) return;
    throw error(ErrorKind::value, {.call = call,
                                   .argument = argument,
                                   .expected = "a contiguous array",
                                   .got = "strides " + to_string(array.strides())});
}

void require_no_overlap(const char* call, const Array& out, std::initializer_list<const Array*> inputs) {
    for (const Array* input : inputs) {
        if (!writes_over(out, *input)) continue;
        throw error(ErrorKind::value, {.call = call,
                                       .argument = "out",
                                       .expected = "an array apart from the inputs, or one of them",
                                       .got = "one that overlaps an input in part"});
    }
}

void require_position(const char* call, const Array& position) {
    require_array(call, "position", position, {1}, DType::int32);
}

void require_logit_rows(const char* call, const Array& logits, std::int64_t count) {
    const bool fits = logits.rank() == 2 && count >= 1 && count <= logits.shape()[1] && count <= INT32_MAX;
    if (!fits || !last_axis_dense(logits)) {
        throw error(ErrorKind::value, {.call = call,
                                       .argument = "logits",
                                       .expected = str("rows of at least ", count, " elements without gaps"),
                                       .got = "shape " + to_string(logits.shape())});
    }
    require_array(call, "logits", logits, logits.shape(), DType::float32);
}

bool last_axis_dense(const Array& array) {
    return array.rank() == 0 || array.shape().back() <= 1 || array.strides().back() == 1;
}

bool aligned16(const Array& array) { return array.data() % 16 == 0; }

}  // namespace gpk::ops
