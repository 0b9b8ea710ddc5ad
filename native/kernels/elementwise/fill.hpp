// Sets every element of a view to one value.
#pragma once

#include <cstdint>

#include "kernels/elementwise/layout.hpp"

namespace gpk {

class Kernel;

namespace kernels {

// The layout counts in units of element_bytes (1, 2, 4, 8 or 16), to which `to` is aligned.
struct FillParams {
    Layout<1> layout;
    std::uint64_t value[2];  // the first element_bytes of it
    void* to;
    std::int32_t element_bytes;
};
const Kernel& fill_kernel();

}  // namespace kernels
}  // namespace gpk
