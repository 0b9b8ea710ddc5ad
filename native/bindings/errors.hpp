// Errors on their way to Python.
#pragma once

#include "bindings/common.hpp"

namespace gpk::python {

// Sets it as the exception that Python raises.
void raise_python(const Error& failure);
// Arguments that no signature of a module's or a class's functions takes are an Error (type) from then on.
void turn_signature_errors(nb::handle scope);

}  // namespace gpk::python
