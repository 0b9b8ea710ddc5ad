// The floating-point types that model kernels come in: one list, from which the device symbols and the
// host tables are both made.
#pragma once

#include "base/dtype.hpp"
#include "base/float_types.hpp"

// X(suffix of the symbol, C++ type), in the order of float_index().
#define GPK_FLOAT_TYPES(X) \
    X(f32, float)          \
    X(f16, ::gpk::float16) \
    X(bf16, ::gpk::bfloat16)

namespace gpk::kernels {

// A dtype's place in GPK_FLOAT_TYPES, or -1.
constexpr int float_index(DType dtype) {
    switch (dtype) {
        case DType::float32: return 0;
        case DType::float16: return 1;
        case DType::bfloat16: return 2;
        default: return -1;
    }
}

}  // namespace gpk::kernels
