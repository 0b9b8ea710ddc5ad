// out = condition ? a : b, for elements of any kind.
#pragma once

#include <cstdint>

#include "kernels/elementwise/packs.hpp"

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

// The same of a contiguous result, packs of 16 bytes at a time: what is not a run along the innermost axis
// repeats one element along it. A thread a pack or element that fills none.
struct WherePacksParams {
    std::int64_t count;    // elements of the result
    PackLayout<3> layout;  // condition, a, b
    void* out;
    const std::uint8_t* condition;
    const void *a, *b;  // null: the number in bits
    std::uint64_t a_bits, b_bits;
    std::int32_t element_bytes;  // 1, 2, 4 or 8
    bool is_run[3];              // condition, a, b
};
const Kernel& where_packs_kernel();

}  // namespace kernels
}  // namespace gpk
