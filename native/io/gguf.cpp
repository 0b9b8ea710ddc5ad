#include "io/gguf.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/error.hpp"
#include "io/json.hpp"

namespace gpk::io {

namespace {

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr int kMaxTensorRank = 4;             // GGML_MAX_DIMS
constexpr int kMaxArrayDepth = 4;
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kMaxAlignment = 1 << 20;
constexpr std::string_view kAlignmentKey = "general.alignment";

struct GgufTypeInfo {
    std::string_view name;
    std::size_t min_bytes;  // the fewest bytes that a value takes in the file
};

constexpr std::array<GgufTypeInfo, 13> kGgufTypes = {{
    {"uint8", 1},
    {"int8", 1},
    {"uint16", 2},
    {"int16", 2},
    {"uint32", 4},
    {"int32", 4},
    {"float32", 4},
    {"bool", 1},
    {"string", 8},
    {"array", 12},
    {"uint64", 8},
    {"int64", 8},
    {"float64", 8},
}};

// The types of enum ggml_type, by number. Those without a stored type are known by name only.
struct GgmlType {
    std::uint32_t id;
    std::string_view name;
    std::optional<StoredType> stored;
};

constexpr GgmlType kGgmlTypes[] = {
    {0, "F32", StoredType::f32},
    {1, "F16", StoredType::f16},
    {2, "Q4_0", StoredType::q4_0},
    {3, "Q4_1", StoredType::q4_1},
    {4, "Q4_2", {}},
    {5, "Q4_3", {}},
    {6, "Q5_0", StoredType::q5_0},
    {7, "Q5_1", StoredType::q5_1},
    {8, "Q8_0", StoredType::q8_0},
    {9, "Q8_1", {}},
    {10, "Q2_K", StoredType::q2_k},
    {11, "Q3_K", StoredType::q3_k},
    {12, "Q4_K", StoredType::q4_k},
    {13, "Q5_K", StoredType::q5_k},
    {14, "Q6_K", StoredType::q6_k},
    {15, "Q8_K", {}},
    {16, "IQ2_XXS", {}},
    {17, "IQ2_XS", {}},
    {18, "IQ3_XXS", {}},
    {19, "IQ1_S", {}},
    {20, "IQ4_NL", {}},
    {21, "IQ3_S", {}},
    {22, "IQ2_S", {}},
    {23, "IQ4_XS", {}},
    {24, "I8", StoredType::i8},
    {25, "I16", StoredType::i16},
    {26, "I32", StoredType::i32},
    {27, "I64", StoredType::i64},
    {28, "F64", StoredType::f64},
    {29, "IQ1_M", {}},
    {30, "BF16", StoredType::bf16},
    {31, "Q4_0_4_4", {}},
    {32, "Q4_0_4_8", {}},
    {33, "Q4_0_8_8", {}},
    {34, "TQ1_0", {}},
    {35, "TQ2_0", {}},
    {36, "IQ4_NL_4_4", {}},
    {37, "IQ4_NL_4_8", {}},
    {38, "IQ4_NL_8_8", {}},
    {39, "MXFP4", {}},
    {40, "NVFP4", {}},
};

StoredType stored_type(const std::string& what, std::uint32_t id) {
    std::string supported;
    std::string got = str("type number ", id);
    for (const GgmlType& type : kGgmlTypes) {
        if (type.id == id) {
            if (type.stored) return *type.stored;
            got = type.name;
        }
        if (type.stored) supported += str(supported.empty() ? "" : ", ", type.name);
    }
    throw error(ErrorKind::file, {.call = what,
                                  .expected = "a type of " + supported,
                                  .got = got,
                                  .fix = "use a file with another quantisation"});
}

template <class T>
T load(const std::byte* from) {
    static_assert(std::endian::native == std::endian::little);
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
}

// Reads the file from front to back. Every length is compared with what is left before it is used.
class Reader {
   public:
    Reader(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

    std::size_t at() const { return at_; }
    std::size_t left() const { return bytes_.size() - at_; }

    std::span<const std::byte> take(std::size_t count, std::string_view what) {
        if (count > left()) {
            throw error(ErrorKind::file, {.call = str(path_, ": ", what),
                                          .expected = str(count, " bytes at byte ", at_),
                                          .got = str("a file that ends at byte ", bytes_.size()),
                                          .fix = "the file is damaged or not completely downloaded"});
        }
        const auto taken = bytes_.subspan(at_, count);
        at_ += count;
        return taken;
    }

    template <class T>
    T number(std::string_view what) {
        return load<T>(take(sizeof(T), what).data());
    }

    // A count of things of which each takes at least `min_bytes` of what is left.
    std::size_t count(std::size_t min_bytes, std::string_view what) {
        const auto count = number<std::uint64_t>(what);
        if (count > left() / min_bytes) {
            throw error(ErrorKind::file,
                        {.call = str(path_, ": ", what),
                         .expected = str("at most ", left() / min_bytes, ", for which the file has room"),
                         .got = str(count),
                         .fix = "the file is damaged or not completely downloaded"});
        }
        return static_cast<std::size_t>(count);
    }

    std::string string(std::string_view what) {
        const auto bytes = take(count(1, what), what);
        const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        if (!is_utf8(text)) {
            throw error(ErrorKind::file,
                        {.call = str(path_, ": ", what), .expected = "text in UTF-8", .got = "other bytes"});
        }
        return std::string(text);
    }

    std::string name(std::string_view what) {
        std::string name = string(what);
        if (name.empty()) {
            throw error(ErrorKind::file,
                        {.call = str(path_, ": ", what), .expected = "a name", .got = "nothing"});
        }
        return name;
    }

    GgufType type(std::string_view what) {
        const auto type = number<std::uint32_t>(what);
        if (type >= kGgufTypes.size()) {
            throw error(ErrorKind::file, {.call = str(path_, ": ", what),
                                          .expected = str("a value type below ", kGgufTypes.size()),
                                          .got = str(type)});
        }
        return static_cast<GgufType>(type);
    }

    bool boolean(std::string_view what) {
        const auto value = number<std::uint8_t>(what);
        if (value > 1) {
            throw error(
                ErrorKind::file,
                {.call = str(path_, ": ", what), .expected = "a bool of 0 or 1", .got = str(int{value})});
        }
        return value == 1;
    }

    GgufArray array(std::string_view what, int depth) {
        if (depth > kMaxArrayDepth) {
            throw error(ErrorKind::file, {.call = str(path_, ": ", what),
                                          .expected = str("arrays at most ", kMaxArrayDepth, " deep")});
        }
        GgufArray array;
        array.type = type(what);
        const std::size_t bytes = kGgufTypes[static_cast<std::size_t>(array.type)].min_bytes;
        array.count = count(bytes, what);
        if (array.type == GgufType::string) {
            array.strings.reserve(array.count);
            for (std::size_t i = 0; i < array.count; ++i) array.strings.push_back(string(what));
        } else if (array.type == GgufType::array) {
            for (std::size_t i = 0; i < array.count; ++i)
                array.arrays.push_back(this->array(what, depth + 1));
        } else {
            array.numbers = take(array.count * bytes, what);
        }
        return array;
    }

    GgufValue value(std::string_view what) {
        GgufValue value;
        value.type = type(what);
        switch (value.type) {
            case GgufType::uint8: value.value = std::uint64_t{number<std::uint8_t>(what)}; break;
            case GgufType::uint16: value.value = std::uint64_t{number<std::uint16_t>(what)}; break;
            case GgufType::uint32: value.value = std::uint64_t{number<std::uint32_t>(what)}; break;
            case GgufType::uint64: value.value = number<std::uint64_t>(what); break;
            case GgufType::int8: value.value = std::int64_t{number<std::int8_t>(what)}; break;
            case GgufType::int16: value.value = std::int64_t{number<std::int16_t>(what)}; break;
            case GgufType::int32: value.value = std::int64_t{number<std::int32_t>(what)}; break;
            case GgufType::int64: value.value = number<std::int64_t>(what); break;
            case GgufType::float32: value.value = double{number<float>(what)}; break;
            case GgufType::float64: value.value = number<double>(what); break;
            case GgufType::bool_: value.value = boolean(what); break;
            case GgufType::string: value.value = string(what); break;
            case GgufType::array: value.value = std::make_shared<const GgufArray>(array(what, 1)); break;
        }
        return value;
    }

   private:
    std::span<const std::byte> bytes_;
    const std::string& path_;
    std::size_t at_ = 0;
};

// A tensor as the file describes it; `offset` counts from the data section.
struct Described {
    TensorView view;
    std::uint64_t offset = 0;
};

Described describe(Reader& reader, const std::string& path) {
    Described tensor;
    tensor.view.name = reader.name("a tensor's name");
    const std::string field = str("tensor ", shown(tensor.view.name));
    const std::string what = str(path, ": ", field);
    const auto rank = reader.number<std::uint32_t>(field);
    if (rank > kMaxTensorRank) {
        throw error(
            ErrorKind::file,
            {.call = what, .expected = str("at most ", kMaxTensorRank, " dimensions"), .got = str(rank)});
    }
    // GGUF lists the contiguous axis first.
    tensor.view.shape = Dims::filled(static_cast<int>(rank), 0);
    for (int i = static_cast<int>(rank) - 1; i >= 0; --i) {
        tensor.view.shape[i] = reader.number<std::int64_t>(field);
    }
    tensor.view.type = stored_type(what, reader.number<std::uint32_t>(field));
    tensor.view.dtype = info(tensor.view.type).dtype;
    tensor.offset = reader.number<std::uint64_t>(field);
    return tensor;
}

}  // namespace

std::string_view name(GgufType type) { return kGgufTypes[static_cast<std::size_t>(type)].name; }

Gguf Gguf::open(const std::string& path) {
    Gguf file(path);
    file.file_ = std::make_shared<const platform::MappedFile>(path);
    file.read(file.file_->bytes());
    return file;
}

Gguf Gguf::parse(std::span<const std::byte> bytes, std::string name) {
    Gguf file(std::move(name));
    file.read(bytes);
    return file;
}

void Gguf::read(std::span<const std::byte> bytes) {
    Reader reader(bytes, path());
    if (reader.number<std::uint32_t>("magic number") != kMagic) {
        throw error(ErrorKind::file,
                    {.call = path(),
                     .expected = "a GGUF file",
                     .got = "one that does not begin with \"GGUF\"",
                     .fix = "of a model in safetensors give the folder that has its config.json"});
    }
    version_ = reader.number<std::uint32_t>("version");
    if (version_ != 2 && version_ != 3) {
        const bool big_endian = version_ != 0 && (version_ & 0xffff) == 0;
        throw error(ErrorKind::file, {.call = path(),
                                      .expected = "GGUF version 2 or 3, little endian",
                                      .got = big_endian ? "a big-endian file" : str("version ", version_),
                                      .fix = "convert the model again with a current converter"});
    }
    const std::size_t tensor_count = reader.count(24, "the number of tensors");  // name, rank, type, offset
    const std::size_t metadata_count = reader.count(13, "the number of keys");   // key, type, value

    for (std::size_t i = 0; i < metadata_count; ++i) {
        std::string key = reader.name("a metadata key");
        const std::string what = str("key ", shown(key));
        GgufValue value = reader.value(what);
        if (!metadata_.emplace(std::move(key), std::move(value)).second) {
            throw error(ErrorKind::file,
                        {.call = str(path(), ": ", what), .expected = "each key once", .got = "it twice"});
        }
    }
    const auto alignment =
        static_cast<std::uint64_t>(integer(kAlignmentKey, static_cast<std::int64_t>(kDefaultAlignment)));
    if (!std::has_single_bit(alignment) || alignment > kMaxAlignment) {
        throw error(ErrorKind::file, {.call = str(path(), ": key '", kAlignmentKey, "'"),
                                      .expected = str("a power of two, at most ", kMaxAlignment),
                                      .got = str(static_cast<std::int64_t>(alignment))});
    }

    std::vector<Described> tensors;
    for (std::size_t i = 0; i < tensor_count; ++i) tensors.push_back(describe(reader, path()));

    const std::size_t padding = (alignment - reader.at() % alignment) % alignment;
    const auto data = bytes.subspan(reader.at() + std::min(padding, reader.left()));
    std::vector<const Described*> in_order;
    for (Described& tensor : tensors) {
        const std::string what = str(path(), ": tensor ", shown(tensor.view.name));
        const auto size = static_cast<std::uint64_t>(stored_bytes(what, tensor.view.type, tensor.view.shape));
        if (tensor.offset % alignment != 0) {
            throw error(ErrorKind::file, {.call = what,
                                          .expected = str("an offset of a multiple of ", alignment),
                                          .got = str(tensor.offset)});
        }
        if (tensor.offset > data.size() || size > data.size() - tensor.offset) {
            throw error(ErrorKind::file,
                        {.call = what,
                         .expected = str("data within the file's ", data.size(), " bytes of data"),
                         .got = str(size, " bytes at offset ", tensor.offset),
                         .fix = "the file is damaged or not completely downloaded"});
        }
        tensor.view.bytes =
            data.subspan(static_cast<std::size_t>(tensor.offset), static_cast<std::size_t>(size));
        if (size != 0) in_order.push_back(&tensor);
    }
    std::ranges::sort(in_order, {}, [](const Described* tensor) { return tensor->offset; });
    for (std::size_t i = 1; i < in_order.size(); ++i) {
        const Described &before = *in_order[i - 1], &tensor = *in_order[i];
        if (before.offset + before.view.bytes.size() > tensor.offset) {
            throw error(ErrorKind::file, {.call = str(path(), ": tensor ", shown(tensor.view.name)),
                                          .expected = "data of its own",
                                          .got = str("data shared with ", shown(before.view.name))});
        }
    }
    for (Described& tensor : tensors) {
        tensor.view.file = file_;
        add(std::move(tensor.view));
    }
}

}  // namespace gpk::io
