// The model file that io.cpp opens and llm.cpp loads from.
#pragma once

#include <memory>

#include "bindings/common.hpp"
#include "io/gguf.hpp"
#include "io/load.hpp"

namespace gpk::python {

struct PyTensorFile {
    std::shared_ptr<io::TensorFile> file;
};

// Tells a callable, or None, which must outlive it; on the way Ctrl-C ends the loading.
io::LoadProgress progress_to(nb::handle call);

}  // namespace gpk::python
