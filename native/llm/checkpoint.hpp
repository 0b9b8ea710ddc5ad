// Checkpoints whose matrices are stored as codes: those that config.json describes by its
// quantization_config.
#pragma once

#include <map>
#include <memory>

#include "io/json.hpp"
#include "llm/source.hpp"

namespace gpk::llm {

// AWQ, GPTQ, compressed-tensors and fp8. What a matrix is stored as follows from the tensors beside its name;
// the configuration says how they are to be read. Throws Error (unsupported) for a method, a layout or a
// field that is not known, and Error (file), naming the tensor, where tensors do not fit together. `file`
// must outlive this.
class CheckpointSource : public FileSource {
   public:
    CheckpointSource(const io::TensorFile& file, const io::Json& quantization,
                     io::LoadProgress progress = nullptr);
    ~CheckpointSource() override;

    std::vector<std::string> names() const override;
    bool contains(const std::string& name) const override;
    Dims shape(const std::string& name) const override;
    void check_convertible(const std::string& name, DType dtype) const override;
    void load_into(const Array& to, const std::string& name,
                   std::span<const std::int64_t> rows) const override;
    std::optional<ops::CodedMatrix> coded(const std::string& name, std::span<const std::int64_t> rows,
                                          DType dtype) const override;

   private:
    const ops::CodedMatrix* find(const std::string& name) const;
    std::map<std::string, ops::CodedMatrix, std::less<>> matrices_;  // by the names of whole weights
    std::vector<std::string> names_;
};

// The tensors of a file as `config` says that they are stored. (Of a GGUF file it is empty.)
std::unique_ptr<WeightSource> open_source(const io::TensorFile& file, const io::Json& config,
                                          io::LoadProgress progress = nullptr);

}  // namespace gpk::llm
