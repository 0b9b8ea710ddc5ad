// top_k: the k largest of each row, from the largest down, and where they were. A NaN counts as the largest;
// of equals the lower index comes first.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

inline constexpr int kMaxTopK = 2048;

struct TopKParams {
    const void* x;          // [rows, n], rows `pitch` elements apart
    void* values;           // [rows, k]
    std::int32_t* indices;  // [rows, k]
    std::int64_t rows, pitch;
    std::int32_t n;
    std::int32_t k;  // 1 to min(n, kMaxTopK)
};

const Kernel& top_k(DType dtype);

}  // namespace gpk::kernels
