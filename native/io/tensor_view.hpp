// What a model file holds: tensors as they are stored, still in the mapped file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dims.hpp"
#include "base/dtype.hpp"
#include "base/platform.hpp"

namespace gpk::io {

// How elements are stored: a plain dtype, or one of ggml's block formats (io/dequantize.hpp).
enum class StoredType : std::uint8_t {
    bool_,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
    f16,
    bf16,
    f32,
    f64,
    f8_e4m3,
    f8_e5m2,
    q4_0,
    q4_1,
    q5_0,
    q5_1,
    q8_0,
    q2_k,
    q3_k,
    q4_k,
    q5_k,
    q6_k,
};

inline constexpr int kStoredTypeCount = 25;

struct StoredTypeInfo {
    std::string_view name;  // as safetensors and GGUF write it
    DType dtype;            // of the elements: for a block format, what it dequantises to without loss
    int block_elements;     // 1 for a plain dtype
    int block_bytes;
};

inline constexpr StoredTypeInfo kStoredTypes[kStoredTypeCount] = {
    {"BOOL", DType::bool_, 1, 1},          {"I8", DType::int8, 1, 1},
    {"I16", DType::int16, 1, 2},           {"I32", DType::int32, 1, 4},
    {"I64", DType::int64, 1, 8},           {"U8", DType::uint8, 1, 1},
    {"U16", DType::uint16, 1, 2},          {"U32", DType::uint32, 1, 4},
    {"U64", DType::uint64, 1, 8},          {"F16", DType::float16, 1, 2},
    {"BF16", DType::bfloat16, 1, 2},       {"F32", DType::float32, 1, 4},
    {"F64", DType::float64, 1, 8},         {"F8_E4M3", DType::float8_e4m3, 1, 1},
    {"F8_E5M2", DType::float8_e5m2, 1, 1}, {"Q4_0", DType::float32, 32, 18},
    {"Q4_1", DType::float32, 32, 20},      {"Q5_0", DType::float32, 32, 22},
    {"Q5_1", DType::float32, 32, 24},      {"Q8_0", DType::float32, 32, 34},
    {"Q2_K", DType::float32, 256, 84},     {"Q3_K", DType::float32, 256, 110},
    {"Q4_K", DType::float32, 256, 144},    {"Q5_K", DType::float32, 256, 176},
    {"Q6_K", DType::float32, 256, 210},
};

constexpr const StoredTypeInfo& info(StoredType type) { return kStoredTypes[static_cast<int>(type)]; }
constexpr bool is_quantized(StoredType type) { return info(type).block_elements > 1; }
// The plain stored type of a dtype.
constexpr StoredType stored_type(DType dtype) {
    int i = 0;
    while (kStoredTypes[i].dtype != dtype) ++i;
    return static_cast<StoredType>(i);
}

// One tensor. The bytes belong to the file that gave the view and live as long as it; they have the right
// length for type and shape, but no alignment.
struct TensorView {
    std::string name;
    StoredType type = StoredType::f32;
    DType dtype = DType::float32;  // info(type).dtype
    Dims shape;                    // row-major, the last axis contiguous (in GGUF files, too)
    std::span<const std::byte> bytes;
    std::shared_ptr<const platform::MappedFile> file = nullptr;  // that they are mapped from; null: in memory

    // A copy of bytes [offset, offset + out.size()). Of a file they are read, which costs less than a fault
    // for each page of the map. Throws Error (file) where the file has become shorter.
    void read(std::size_t offset, std::span<std::byte> out) const;

    std::int64_t size() const { return element_count(shape); }
};

// A file of tensors (or a set of files), whatever its format. Names are unique.
class TensorFile {
   public:
    virtual ~TensorFile() = default;
    TensorFile(TensorFile&&) = default;
    TensorFile& operator=(TensorFile&&) = default;

    const std::string& path() const noexcept { return path_; }
    const std::vector<TensorView>& tensors() const noexcept { return tensors_; }
    std::vector<std::string> names() const;
    const TensorView* find(std::string_view name) const noexcept;  // null where there is none
    const TensorView& tensor(std::string_view name) const;         // throws Error (file)

   protected:
    explicit TensorFile(std::string path) : path_(std::move(path)) {}
    void add(TensorView tensor);  // throws Error (file) for a name that is there already

   private:
    std::string path_;
    std::vector<TensorView> tensors_;
    std::map<std::string, std::size_t, std::less<>> index_;
};

// The number of bytes that a tensor takes. Throws Error (file), beginning with `what`, for negative
// extents, a last axis that is not whole blocks, and sizes past int64.
std::int64_t stored_bytes(const std::string& what, StoredType type, const Dims& shape);

// A name from a file, for messages: in quotes, control characters escaped, and not endless.
std::string shown(std::string_view name);

}  // namespace gpk::io
