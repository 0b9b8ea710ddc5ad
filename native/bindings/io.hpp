// The model file that io.cpp opens and llm.cpp loads from.
#pragma once

#include <memory>

#include "bindings/common.hpp"
#include "io/gguf.hpp"

namespace gpk::python {

struct PyTensorFile {
    std::shared_ptr<io::TensorFile> file;
};

}  // namespace gpk::python
