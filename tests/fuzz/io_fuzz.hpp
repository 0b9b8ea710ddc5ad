// What the fuzz targets of the model files do with a file that opens.
#pragma once

#include <cstddef>
#include <vector>

#include "base/error.hpp"
#include "io/dequantize.hpp"

// Reads every element. A file cannot ask for more than a small multiple of its own size.
inline void read_all(const gpk::io::TensorFile& file, std::size_t file_bytes) {
    std::size_t stored = 0;
    for (const gpk::io::TensorView& tensor : file.tensors()) {
        if (file.find(tensor.name) != &tensor) __builtin_trap();
        stored += tensor.bytes.size();
        if (stored > file_bytes) __builtin_trap();
        std::vector<std::byte> elements(static_cast<std::size_t>(tensor.size()) *
                                        gpk::itemsize(tensor.dtype));
        gpk::io::convert(tensor, 0, tensor.size(), tensor.dtype, elements);
    }
}
