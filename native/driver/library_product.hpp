// A product of matrices as a library of the vendor is asked for it: c = a b, row-major, of one dtype.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.hpp"

namespace gpk {

struct LibraryMatrix {
    std::uint64_t data = 0;         // device address of element [0, 0]
    std::int64_t leading = 0;       // elements from one row to the next, or of one column, if transposed
    bool transposed = false;        // columns are contiguous, not rows
    std::int64_t batch_stride = 0;  // elements
};

struct LibraryProduct {
    DType dtype = DType::float32;  // float16, bfloat16, float32
    bool tf32 = false;
    std::int64_t m = 0, n = 0, k = 0, batches = 1;
    LibraryMatrix a, b, c;  // m x k, k x n, m x n; c is not transposed
    std::uint64_t workspace = 0;
    std::size_t workspace_bytes = 0;
};

}  // namespace gpk
