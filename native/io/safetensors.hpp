// The safetensors format: a JSON header, then the elements of all tensors without a gap.
// https://github.com/huggingface/safetensors#format
#pragma once

#include <optional>

#include "base/platform.hpp"
#include "io/tensor_view.hpp"

namespace gpk::io {

using StringMap = std::map<std::string, std::string>;

class SafeTensors final : public TensorFile {
   public:
    // Throws Error (file), naming file and tensor, for whatever the format does not allow.
    static SafeTensors open(const std::string& path);
    // The same over memory that outlives this object; `name` stands for the path in messages.
    static SafeTensors parse(std::span<const std::byte> bytes, std::string name);

    const StringMap& metadata() const noexcept { return metadata_; }  // "__metadata__"

   private:
    explicit SafeTensors(std::string path) : TensorFile(std::move(path)) {}
    void read(std::span<const std::byte> bytes);

    std::shared_ptr<const platform::MappedFile> file_;
    StringMap metadata_;
};

// One file, or a folder that holds model.safetensors, or model.safetensors.index.json and the shards
// that it names.
class SafeTensorsSet final : public TensorFile {
   public:
    static SafeTensorsSet open(const std::string& path);

    const std::vector<SafeTensors>& files() const noexcept { return files_; }

   private:
    explicit SafeTensorsSet(std::string path) : TensorFile(std::move(path)) {}
    void read_index(const std::string& folder, const std::string& index_path);

    std::vector<SafeTensors> files_;
};

// Writes a file that replaces `path` only once it is complete. Block formats have no name in
// safetensors and give Error (type). Bytes are taken as they are.
void save_safetensors(const std::string& path, const std::vector<TensorView>& tensors,
                      const StringMap& metadata = {});

}  // namespace gpk::io
