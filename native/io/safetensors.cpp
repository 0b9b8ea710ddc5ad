#include "io/safetensors.hpp"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/error.hpp"
#include "io/json.hpp"

namespace gpk::io {

namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr std::string_view kMetadataKey = "__metadata__";

// Names of the format that no dtype here can hold.
constexpr std::string_view kUnsupported[] = {"F4",          "F6_E2M3",     "F6_E3M2", "F8_E8M0",
                                             "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64"};

std::string supported_names() {
    std::string names;
    for (const StoredTypeInfo& stored : kStoredTypes) {
        if (stored.block_elements == 1) names += str(names.empty() ? "" : ", ", stored.name);
    }
    return names;
}

StoredType type_from_name(const std::string& what, std::string_view name) {
    for (int i = 0; i < kStoredTypeCount; ++i) {
        if (kStoredTypes[i].name == name && kStoredTypes[i].block_elements == 1) {
            return static_cast<StoredType>(i);
        }
    }
    const bool known = std::ranges::find(kUnsupported, name) != std::end(kUnsupported);
    throw error(ErrorKind::file, {.call = what,
                                  .expected = str("a dtype of ", supported_names()),
                                  .got = str(shown(name), known ? ", which is not supported" : "")});
}

const Json& member(const std::string& what, const Json& object, std::string_view key) {
    if (const Json* found = object.find(key)) return *found;
    throw error(ErrorKind::file, {.call = what, .expected = str("a member \"", key, "\""), .got = "none"});
}

[[noreturn]] void wrong_kind(const std::string& what, std::string_view key, std::string_view expected,
                             const Json& got) {
    throw error(ErrorKind::file, {.call = str(what, ": \"", key, "\""),
                                  .expected = std::string(expected),
                                  .got = std::string(got.kind())});
}

// A list of integers of 0 or more.
std::vector<std::int64_t> naturals(const std::string& what, const Json& object, std::string_view key) {
    const Json& json = member(what, object, key);
    if (json.array() == nullptr) wrong_kind(what, key, "an array", json);
    std::vector<std::int64_t> values;
    for (const Json& element : *json.array()) {
        const std::int64_t* value = element.integer();
        if (value == nullptr) wrong_kind(what, key, "integers of 0 or more below 2**63", element);
        if (*value < 0) {
            throw error(ErrorKind::file, {.call = str(what, ": \"", key, "\""),
                                          .expected = "integers of 0 or more",
                                          .got = str(*value)});
        }
        values.push_back(*value);
    }
    return values;
}

struct Described {
    TensorView view;
    std::int64_t begin = 0, end = 0;  // in the data section
};

Described describe(const std::string& what, const Json::Member& entry) {
    if (entry.value.object() == nullptr) {
        throw error(ErrorKind::file,
                    {.call = what, .expected = "an object", .got = std::string(entry.value.kind())});
    }
    Described tensor;
    const Json& dtype = member(what, entry.value, "dtype");
    if (dtype.string() == nullptr) wrong_kind(what, "dtype", "a string", dtype);
    tensor.view.name = entry.key;
    tensor.view.type = type_from_name(what, *dtype.string());
    tensor.view.dtype = info(tensor.view.type).dtype;
    const auto shape = naturals(what, entry.value, "shape");
    if (shape.size() > kMaxRank) {
        throw error(
            ErrorKind::file,
            {.call = what, .expected = str("at most ", kMaxRank, " dimensions"), .got = str(shape.size())});
    }
    tensor.view.shape = Dims(shape);
    const auto offsets = naturals(what, entry.value, "data_offsets");
    if (offsets.size() != 2) {
        throw error(ErrorKind::file, {.call = str(what, ": \"data_offsets\""),
                                      .expected = "a begin and an end",
                                      .got = str(offsets.size(), " numbers")});
    }
    tensor.begin = offsets[0];
    tensor.end = offsets[1];
    return tensor;
}

StringMap string_map(const std::string& what, const Json& json) {
    if (json.object() == nullptr) {
        throw error(ErrorKind::file,
                    {.call = what, .expected = "an object of strings", .got = std::string(json.kind())});
    }
    StringMap map;
    for (const Json::Member& entry : *json.object()) {
        if (entry.value.string() == nullptr) wrong_kind(what, shown(entry.key), "a string", entry.value);
        map.emplace(entry.key, *entry.value.string());
    }
    return map;
}

std::string_view as_text(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

SafeTensors SafeTensors::open(const std::string& path) {
    SafeTensors file(path);
    file.file_ = std::make_shared<const platform::MappedFile>(path);
    file.read(file.file_->bytes());
    return file;
}

SafeTensors SafeTensors::parse(std::span<const std::byte> bytes, std::string name) {
    SafeTensors file(std::move(name));
    file.read(bytes);
    return file;
}

void SafeTensors::read(std::span<const std::byte> bytes) {
    std::uint64_t header_bytes = 0;
    if (bytes.size() < sizeof(header_bytes)) {
        throw error(ErrorKind::file, {.call = path(),
                                      .expected = "a safetensors file, at least 8 bytes",
                                      .got = str(bytes.size(), " bytes")});
    }
    for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | std::to_integer<unsigned>(bytes[i]);
    const std::uint64_t room = bytes.size() - sizeof(header_bytes);
    if (header_bytes > std::min(room, kMaxHeaderBytes)) {
        throw error(ErrorKind::file,
                    {.call = path(),
                     .expected = str("a safetensors header of at most ", std::min(room, kMaxHeaderBytes),
                                     " bytes (the file has ", bytes.size(), ")"),
                     .got = str(header_bytes)});
    }
    const auto header = as_text(bytes.subspan(sizeof(header_bytes), header_bytes));
    const auto data = bytes.subspan(sizeof(header_bytes) + header_bytes);
    if (!header.starts_with('{')) {
        throw error(ErrorKind::file, {.call = path(),
                                      .expected = "a safetensors header that begins with '{'",
                                      .got = header.empty() ? "nothing" : "something else"});
    }

    const Json json = Json::parse(header, path() + ": header", {.max_bytes = kMaxHeaderBytes});
    std::vector<Described> tensors;
    for (const Json::Member& entry : *json.object()) {
        if (entry.key == kMetadataKey) {
            metadata_ = string_map(str(path(), ": ", kMetadataKey), entry.value);
        } else {
            tensors.push_back(describe(str(path(), ": tensor ", shown(entry.key)), entry));
        }
    }

    // The data section is covered from its first byte to its last, without overlaps or holes.
    std::ranges::sort(tensors, {}, [](const Described& t) {
        return std::tuple(t.begin, t.end, std::string_view(t.view.name));
    });
    std::int64_t next = 0;
    for (Described& tensor : tensors) {
        const std::string what = str(path(), ": tensor ", shown(tensor.view.name));
        const std::int64_t size = stored_bytes(what, tensor.view.type, tensor.view.shape);
        if (tensor.begin != next || tensor.end < tensor.begin ||
            static_cast<std::uint64_t>(tensor.end) > data.size()) {
            throw error(ErrorKind::file,
                        {.call = what,
                         .expected = str("data from byte ", next, ", where the tensor before it ends, to ",
                                         "at most ", data.size(), ", where the file ends"),
                         .got = str("bytes ", tensor.begin, " to ", tensor.end),
                         .fix = "the file is damaged or not completely downloaded"});
        }
        if (tensor.end - tensor.begin != size) {
            throw error(ErrorKind::file, {.call = what,
                                          .expected = str(size, " bytes for ", info(tensor.view.type).name,
                                                          " of shape ", to_string(tensor.view.shape)),
                                          .got = str(tensor.end - tensor.begin)});
        }
        tensor.view.bytes =
            data.subspan(static_cast<std::size_t>(tensor.begin), static_cast<std::size_t>(size));
        next = tensor.end;
        tensor.view.file = file_;
        add(std::move(tensor.view));
    }
    if (static_cast<std::uint64_t>(next) != data.size()) {
        throw error(ErrorKind::file,
                    {.call = path(),
                     .expected = str("tensors that cover all ", data.size(), " bytes of data"),
                     .got = str(next, " bytes covered")});
    }
}

// -- Sets of files ---------------------------------------------------------------------------------

namespace {

// A shard lies beside its index: a plain name, which cannot lead anywhere else.
bool is_plain_name(std::string_view name) {
    return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
           std::ranges::none_of(name, [](char c) {
               return c == '/' || c == '\\' || c == ':' || static_cast<unsigned char>(c) < 0x20;
           });
}

}  // namespace

SafeTensorsSet SafeTensorsSet::open(const std::string& path) {
    SafeTensorsSet set(path);
    const std::string index = path + "/model.safetensors.index.json";
    if (platform::file_exists(path + "/model.safetensors")) {
        set.files_.push_back(SafeTensors::open(path + "/model.safetensors"));
    } else if (platform::file_exists(index)) {
        set.read_index(path, index);
        return set;
    } else if (platform::file_exists(path)) {
        set.files_.push_back(SafeTensors::open(path));
    } else {
        throw error(ErrorKind::file, {.call = path,
                                      .expected = "a safetensors file, or a folder with model.safetensors or "
                                                  "model.safetensors.index.json",
                                      .got = "neither"});
    }
    for (const TensorView& tensor : set.files_.front().tensors()) set.add(tensor);
    return set;
}

void SafeTensorsSet::read_index(const std::string& folder, const std::string& index_path) {
    const platform::MappedFile index(index_path);
    const Json json = Json::parse(as_text(index.bytes()), index_path);
    const StringMap weights = string_map(index_path + ": weight_map", member(index_path, json, "weight_map"));
    std::map<std::string, std::size_t> opened;
    for (const auto& [tensor, file] : weights) {
        const auto [place, is_new] = opened.emplace(file, files_.size());
        if (is_new) {
            if (!is_plain_name(file)) {
                throw error(ErrorKind::file, {.call = str(index_path, ": tensor ", shown(tensor)),
                                              .expected = "the name of a file in the same folder",
                                              .got = shown(file)});
            }
            if (!platform::file_exists(folder + "/" + file)) {
                throw error(ErrorKind::file,
                            {.call = str(index_path, ": tensor ", shown(tensor)),
                             .expected = str("the shard ", shown(file), " in the same folder"),
                             .got = "no such file",
                             .fix = "download all shards"});
            }
            files_.push_back(SafeTensors::open(folder + "/" + file));
        }
        const TensorView* found = files_[place->second].find(tensor);
        if (found == nullptr) {
            throw error(ErrorKind::file, {.call = str(index_path, ": tensor ", shown(tensor)),
                                          .expected = str("it in ", shown(file)),
                                          .got = "no tensor of that name there"});
        }
        add(*found);
    }
}

// -- Writing ---------------------------------------------------------------------------------------

void save_safetensors(const std::string& path, const std::vector<TensorView>& tensors,
                      const StringMap& metadata) {
    std::vector<const TensorView*> order;
    for (const TensorView& tensor : tensors) order.push_back(&tensor);
    // As the reference implementation does it: wide elements first, so that each tensor is aligned.
    std::ranges::sort(order, [](const TensorView* a, const TensorView* b) {
        return std::pair(-info(a->type).block_bytes, std::string_view(a->name)) <
               std::pair(-info(b->type).block_bytes, std::string_view(b->name));
    });

    std::string header = "{";
    if (!metadata.empty()) {
        header += json_quoted(kMetadataKey) + ":{";
        for (const auto& [key, value] : metadata) {
            header += (header.back() == '{' ? "" : ",") + json_quoted(key) + ":" + json_quoted(value);
        }
        header += "}";
    }
    std::int64_t offset = 0;
    std::set<std::string_view> names = {kMetadataKey};
    for (const TensorView* tensor : order) {
        const std::string what = str("save_safetensors: tensor ", shown(tensor->name));
        if (!names.insert(tensor->name).second) {
            throw error(ErrorKind::value, {.call = what, .expected = "each name once", .got = "it again"});
        }
        if (is_quantized(tensor->type)) {
            throw error(ErrorKind::type, {.call = what,
                                          .expected = str("one of ", supported_names()),
                                          .got = std::string(info(tensor->type).name)});
        }
        const std::int64_t size = stored_bytes(what, tensor->type, tensor->shape);
        if (static_cast<std::uint64_t>(size) != tensor->bytes.size()) {
            throw error(ErrorKind::value,
                        {.call = what, .expected = str(size, " bytes"), .got = str(tensor->bytes.size())});
        }
        header += str(header.back() == '{' ? "" : ",", json_quoted(tensor->name), ":{\"dtype\":\"",
                      info(tensor->type).name, "\",\"shape\":[");
        for (int i = 0; i < tensor->shape.size(); ++i) header += str(i == 0 ? "" : ",", tensor->shape[i]);
        header += str("],\"data_offsets\":[", offset, ",", offset + size, "]}");
        offset += size;
    }
    header += "}";
    if (!is_utf8(header)) {
        throw error(ErrorKind::value,
                    {.call = "save_safetensors", .expected = "names and metadata in UTF-8"});
    }
    header.resize((header.size() + 7) / 8 * 8, ' ');

    std::byte length[8];
    for (int i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(header.size() >> (8 * i));
    std::vector<std::span<const std::byte>> pieces = {length, std::as_bytes(std::span(header))};
    for (const TensorView* tensor : order) pieces.push_back(tensor->bytes);
    platform::save_file(path, pieces);
}

}  // namespace gpk::io
