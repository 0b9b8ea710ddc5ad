// A Python number as the bits of an element.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "base/scalar.hpp"

namespace gpk::ops {

// The element's bytes at the low end. Throws Error (value), naming `call`, for an integer outside an
// integer dtype's range (NumPy's OverflowError); a float becomes an integer as in
// kernels/elementwise/copy.hpp.
std::uint64_t scalar_bits(const char* call, const Scalar& value, DType dtype);

// The same for each element of 16 bytes.
struct Pattern {
    std::uint64_t words[2];
};
Pattern repeat_bits(std::uint64_t bits, DType dtype);

}  // namespace gpk::ops
