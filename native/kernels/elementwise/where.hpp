// out = condition ? a : b, for elements of any kind.
#pragma once

#include <cstdint>

#include "kernels/elementwise/layout.hpp"

namespace gpk {

class Kernel;

namespace kernels {

struct WhereParams {
    Layout<4> layout;  // out, condition, a, b: in elements
    void* out;
    const std::uint8_t* condition;  // bool
    const void *a, *b;              // null: the number in bits
    std::uint64_t a_bits, b_bits;
    std::int32_t element_bytes;  // 1, 2, 4 or 8
};
const Kernel& where_kernel();

}  // namespace kernels
}  // namespace gpk
