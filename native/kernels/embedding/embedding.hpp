// embedding: rows of a table by token ids from device memory. An id outside the table gives zeros.
#pragma once

#include <cstdint>

#include "runtime/kernel.hpp"

namespace gpk::kernels {

struct EmbeddingParams {
    const void* table;  // [rows, row_bytes]
    const void* ids;    // [count], int32 or int64
    void* out;          // [count, row_bytes]
    std::int64_t rows;
    std::int64_t count;
    std::int64_t row_bytes;
    std::int32_t ids_are_int64;
    std::int32_t unit;  // bytes of one access: 16 or 2, dividing row_bytes and the addresses
};

const Kernel& embedding();

}  // namespace gpk::kernels
