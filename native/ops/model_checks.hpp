// Checks that the ops of model layers share.
#pragma once

#include <initializer_list>

#include "array/array.hpp"

namespace gpk::ops {

// float32, float16 or bfloat16; else Error (type).
void require_model_float(const char* call, const char* argument, DType dtype);
// Exactly this shape (Error value), dtype (Error type).
void require_array(const char* call, const char* argument, const Array& array, const Dims& shape,
                   DType dtype);
void require_contiguous(const char* call, const char* argument, const Array& array);
// `out` may be one of the inputs, but not overlap one in another way. Error (value).
void require_no_overlap(const char* call, const Array& out, std::initializer_list<const Array*> inputs);
// [1] int32 in device memory: the position of a call's first token.
void require_position(const char* call, const Array& position);
// float32 rows (Error type) of at least `count` elements, 1 or more, without gaps (Error value).
void require_logit_rows(const char* call, const Array& logits, std::int64_t count);
// The last axis has no gaps (or one element).
bool last_axis_dense(const Array& array);
bool aligned16(const Array& array);

}  // namespace gpk::ops
