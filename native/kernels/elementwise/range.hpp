// Evenly spaced numbers, in any dtype.
#pragma once

#include <cstdint>

#include "kernels/elementwise/elements.hpp"

namespace gpk {

class Kernel;

namespace kernels {

// out[i] = start + i * step in float64, multiplied and added separately so that both sides and NumPy
// agree; the last is `last` where has_last. `floor` rounds down first (NumPy's linspace of integers).
struct RangeParams {
    std::int64_t count;
    double start, step, last;
    void* out;
    DType dtype;
    bool has_last, floor;
};
const Kernel& range_kernel();

// The same in integers, modulo 2^64.
struct IntegerRangeParams {
    std::int64_t count, start, step;
    void* out;
    DType dtype;
};
const Kernel& integer_range_kernel();

}  // namespace kernels
}  // namespace gpk
