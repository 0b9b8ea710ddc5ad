// The GGUF format, versions 2 and 3, little endian: typed metadata, tensor descriptions, elements.
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <memory>
#include <optional>
#include <variant>

#include "base/platform.hpp"
#include "io/tensor_view.hpp"

namespace gpk::io {

// The numbers are the format's.
enum class GgufType : std::uint32_t {
    uint8,
    int8,
    uint16,
    int16,
    uint32,
    int32,
    float32,
    bool_,
    string,
    array,
    uint64,
    int64,
    float64,
};
std::string_view name(GgufType type);

struct GgufArray;

// One metadata value. Integers of every width are widened, floats are doubles.
struct GgufValue {
    GgufType type = GgufType::uint8;
    std::variant<std::uint64_t, std::int64_t, double, bool, std::string, std::shared_ptr<const GgufArray>>
        value;
};

// Numbers and bools stay in the file until numbers() reads them.
struct GgufArray {
    GgufType type = GgufType::uint8;  // of the elements
    std::size_t count = 0;
    std::span<const std::byte> numbers;
    std::vector<std::string> strings;
    std::vector<GgufArray> arrays;
};

class Gguf final : public TensorFile {
   public:
    // Throws Error (file), naming file and key or tensor, for whatever the format does not allow.
    static Gguf open(const std::string& path);
    // The same over memory that outlives this object; `name` stands for the path in messages.
    static Gguf parse(std::span<const std::byte> bytes, std::string name);

    std::uint32_t version() const noexcept { return version_; }
    const std::map<std::string, GgufValue, std::less<>>& metadata() const noexcept { return metadata_; }
    const GgufValue* find_metadata(std::string_view key) const noexcept;  // null where there is none

    // Typed access. Each throws Error (file) that names the key, what was expected and what is there.
    // The forms with a fallback give it where the key is missing (not where its type is wrong).
    std::int64_t integer(std::string_view key) const;  // of any integer type that fits
    std::int64_t integer(std::string_view key, std::int64_t fallback) const;
    double number(std::string_view key) const;  // of any integer or float type
    double number(std::string_view key, double fallback) const;
    bool boolean(std::string_view key, bool fallback) const;
    const std::string& string(std::string_view key) const;
    std::string string(std::string_view key, std::string_view fallback) const;
    const std::vector<std::string>& strings(std::string_view key) const;
    std::vector<std::int64_t> integers(std::string_view key) const;
    std::vector<double> numbers(std::string_view key) const;

   private:
    explicit Gguf(std::string path) : TensorFile(std::move(path)) {}
    void read(std::span<const std::byte> bytes);

    std::shared_ptr<const platform::MappedFile> file_;
    std::uint32_t version_ = 0;
    std::map<std::string, GgufValue, std::less<>> metadata_;
};

}  // namespace gpk::io
