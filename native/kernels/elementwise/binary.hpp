// Element-wise functions of two arrays: their names, parameters and kernels.
#pragma once

#include <cstdint>

namespace gpk {

// X(name): one list for the enum, the tables and the kernels.
#define GPK_BINARY_OPS(X)                                                                        \
    X(add) X(subtract) X(multiply) X(divide) X(floor_divide) X(remainder) X(fmod) X(power)       \
    X(minimum) X(maximum) X(arctan2) X(hypot) X(logaddexp)                                       \
    X(equal) X(not_equal) X(less) X(less_equal) X(greater) X(greater_equal)                      \
    X(logical_and) X(logical_or) X(logical_xor) X(bitwise_and) X(bitwise_or) X(bitwise_xor)      \
    X(left_shift) X(right_shift)

enum class BinaryOp : std::uint8_t {
#define GPK_ENUMERATOR(name) name,
    GPK_BINARY_OPS(GPK_ENUMERATOR)
#undef GPK_ENUMERATOR
};

#define GPK_COUNT(name) +1
inline constexpr int kBinaryOpCount = 0 GPK_BINARY_OPS(GPK_COUNT);
#undef GPK_COUNT

}  // namespace gpk
