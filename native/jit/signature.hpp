// The parameters of a kernel, read from its CUDA C++ source: what a call is checked against and how its
// arguments are packed. Parameters are pointers and numbers; anything else is refused with the reason.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.hpp"
#include "base/scalar.hpp"

namespace gpk::jit {

struct Parameter {
    std::string name;  // empty where the source gives none
    std::string type;  // as the source writes it, aliases resolved: "const float*"
    bool pointer = false;
    bool read_only = false;      // a pointer to const
    std::optional<DType> dtype;  // of the number, or of what is pointed to where it is one of ours
    std::size_t size = 0;
    std::size_t offset = 0;  // in the packed parameters; also a multiple of the alignment, which is `size`
};

struct Signature {
    std::string name;             // with its namespaces: "detail::scale"
    bool extern_c = false;        // its symbol is its name
    bool dynamic_shared = false;  // the source declares dynamic shared memory
    std::vector<Parameter> parameters;
    std::size_t params_bytes = 0;  // packed

    // "scale(float* x, float factor, int n)"
    std::string text() const;
};

// Throws Error (compile) where `source` has no such kernel, or one that cannot be called from here:
// a template, an overloaded one, parameters by reference or of class type.
Signature parse_signature(std::string_view source, std::string_view function);

// The name of the one kernel that `source` has. Throws Error (compile) where it has none or several.
std::string only_kernel(std::string_view source);

// Writes a number as the parameter wants it. Throws Error (type) for a pointer parameter or a float for
// an integer one, and Error (value) for an integer that does not fit.
void pack_scalar(const Signature& signature, const Parameter& parameter, const Scalar& value, void* params);
// Writes an array's address. Throws Error (type) for a number parameter or another element type.
void pack_pointer(const Signature& signature, const Parameter& parameter, std::uint64_t address, DType dtype,
                  void* params);

}  // namespace gpk::jit
