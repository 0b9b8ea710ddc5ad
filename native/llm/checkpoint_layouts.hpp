// How AWQ, GPTQ, compressed-tensors and fp8 checkpoints lay out a matrix (n, k) of codes.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.hpp"
#include "io/tensor_view.hpp"
#include "ops/quantize.hpp"

namespace gpk::llm {

// The tensors beside a module's name. Those that were asked for count as used.
class ModuleTensors {
   public:
    using Used = std::set<std::string, std::less<>>;
    ModuleTensors(const io::TensorFile& file, std::string module, Used& used)
        : file_(file), module_(std::move(module)), used_(used) {}

    const io::TensorView* find(std::string_view suffix) const;
    const io::TensorView& at(std::string_view suffix) const;  // throws Error (file)
    // Of 32-bit or 64-bit integers, all of them.
    std::vector<std::int64_t> integers(const io::TensorView& tensor) const;
    std::vector<float> floats(const io::TensorView& tensor) const;
    // Throws Error (file) where a tensor is not of that type and shape.
    void require(const io::TensorView& tensor, io::StoredType type, const Dims& shape) const;
    Error wrong(const io::TensorView& tensor, const std::string& expected, const std::string& got) const;
    const std::string& path() const { return file_.path(); }
    const std::string& module() const { return module_; }

   private:
    const io::TensorFile& file_;
    std::string module_;
    Used& used_;
};

struct CheckpointLayout {
    std::string_view method;  // quantization_config's quant_method
    std::string_view format;  // its format, where that decides; else empty
    std::string_view codes;   // what a module's tensor of codes is called
    // Refuses what it does not know.
    void (*check)(const std::string& what, const io::Json& quantization);
    // Nothing where the tensor holds no codes.
    std::optional<ops::CodedMatrix> (*read)(const ModuleTensors& tensors, const io::Json& quantization);
};

// By quant_method and, of compressed-tensors, its format. Throws Error (unsupported), listing those there
// are.
const CheckpointLayout& checkpoint_layout(const std::string& what, const io::Json& quantization);

}  // namespace gpk::llm
