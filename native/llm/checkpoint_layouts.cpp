// The published layouts:
//   AWQ                 AutoAWQ's WQLinear_GEMM (awq/modules/linear/gemm.py): qweight int32 [k, n / 8], of
//   each 8
//                       columns the nibbles in the order 0 2 4 6 1 3 5 7; qzeros [groups, n / 8] alike;
//                       scales [groups, n]. (code - zero) * scale.
//   GPTQ                AutoGPTQ's and GPTQModel's QuantLinear: qweight int32 [k * bits / 32, n], codes of k
//   from the
//                       lowest bit; qzeros [groups, n * bits / 32], of "gptq" less one, of "gptq_v2" as they
//                       are; scales [groups, n]; g_idx [k], the group of each k.
//   compressed-tensors  the library's compressors. pack-quantized: weight_packed int32 [n, k * bits / 32],
//   codes plus
//                       2^(bits - 1) from the lowest bit; weight_scale [n, groups], [n, 1] or [1];
//                       weight_zero_point packed along n. int-quantized, float-quantized: weight int8 or
//                       float8_e4m3 [n, k], weight_scale, weight_zero_point int8. (code - zero) * scale.
//   fp8                 DeepSeek-V3's and Qwen3's: weight float8_e4m3, weight_scale_inv of blocks of
//                       weight_block_size, times the weight.
#include "llm/checkpoint_layouts.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.hpp"
#include "io/dequantize.hpp"

namespace gpk::llm {

const io::TensorView* ModuleTensors::find(std::string_view suffix) const {
    const io::TensorView* tensor = file_.find(str(module_, suffix));
    if (tensor != nullptr) used_.insert(tensor->name);
    return tensor;
}

const io::TensorView& ModuleTensors::at(std::string_view suffix) const {
    if (const io::TensorView* tensor = find(suffix)) return *tensor;
    return file_.tensor(str(module_, suffix));  // throws
}

Error ModuleTensors::wrong(const io::TensorView& tensor, const std::string& expected,
                           const std::string& got) const {
    return error(
        ErrorKind::file,
        {.call = str(path(), ": tensor ", io::shown(tensor.name)), .expected = expected, .got = got});
}

void ModuleTensors::require(const io::TensorView& tensor, io::StoredType type, const Dims& shape) const {
    if (tensor.type == type && tensor.shape == shape) return;
    throw wrong(tensor, str(io::info(type).name, " of shape ", to_string(shape)),
                str(io::info(tensor.type).name, " of shape ", to_string(tensor.shape)));
}

std::vector<std::int64_t> ModuleTensors::integers(const io::TensorView& tensor) const {
    const bool wide = tensor.type == io::StoredType::i64;
    if (!wide && tensor.type != io::StoredType::i32)
        throw wrong(tensor, "I32 or I64", std::string(io::info(tensor.type).name));
    std::vector<std::int64_t> values(static_cast<std::size_t>(tensor.size()));
    for (std::size_t i = 0; i < values.size(); ++i) {
        std::int32_t narrow;
        if (wide) {
            std::memcpy(&values[i], tensor.bytes.data() + i * sizeof(values[i]), sizeof(values[i]));
        } else {
            std::memcpy(&narrow, tensor.bytes.data() + i * sizeof(narrow), sizeof(narrow));
            values[i] = narrow;
        }
    }
    return values;
}

std::vector<float> ModuleTensors::floats(const io::TensorView& tensor) const {
    io::check_convertible(tensor, DType::float32);
    if (!is_floating(tensor.dtype))
        throw wrong(tensor, "a floating type", std::string(io::info(tensor.type).name));
    return io::read_float32(tensor);
}

namespace {

std::uint32_t word_at(const io::TensorView& tensor, std::int64_t i) {
    std::uint32_t word;
    std::memcpy(&word, tensor.bytes.data() + i * std::int64_t{sizeof(word)}, sizeof(word));
    return word;
}

// -- The configuration -------------------------------------------------------------------------------------

Error unsupported(const std::string& what, std::string_view key, const std::string& expected,
                  const std::string& got) {
    return error(
        ErrorKind::unsupported,
        {.call = what, .argument = str("quantization_config.", key), .expected = expected, .got = got});
}

std::string shown_value(const io::Json* value) {
    if (value == nullptr || value->is_null()) return "nothing";
    if (value->string() != nullptr) return io::json_quoted(*value->string());
    if (value->integer() != nullptr) return str(*value->integer());
    if (value->boolean() != nullptr) return *value->boolean() ? "true" : "false";
    return std::string(value->kind());
}

std::int64_t integer_of(const std::string& what, const io::Json& json, std::string_view key) {
    const io::Json* value = json.find(key);
    if (value == nullptr || value->integer() == nullptr)
        throw unsupported(what, key, "an integer", shown_value(value));
    return *value->integer();
}

// A missing or null one counts as `fallback`.
std::string text_of(const io::Json& json, std::string_view key, std::string_view fallback) {
    const io::Json* value = json.find(key);
    return value == nullptr || value->string() == nullptr ? std::string(fallback) : *value->string();
}

void require_text(const std::string& what, const io::Json& json, std::string_view key,
                  std::initializer_list<std::string_view> allowed) {
    const io::Json* value = json.find(key);
    if (value == nullptr || value->is_null()) return;
    std::string listed;
    for (const std::string_view each : allowed) {
        if (value->string() != nullptr && *value->string() == each) return;
        listed += (listed.empty() ? "" : ", ") + std::string(each);
    }
    throw unsupported(what, key, "one of " + listed, shown_value(value));
}

// Fields that change what tensors mean; false, empty or missing they change nothing.
void require_unset(const std::string& what, const io::Json& json,
                   std::initializer_list<std::string_view> keys) {
    for (const std::string_view key : keys) {
        const io::Json* value = json.find(key);
        const bool unset = value == nullptr || value->is_null() ||
                           (value->boolean() != nullptr && !*value->boolean()) ||
                           (value->object() != nullptr && value->object()->empty()) ||
                           (value->array() != nullptr && value->array()->empty());
        if (!unset) throw unsupported(what, key, "none", shown_value(value));
    }
}

void require_bits(const std::string& what, const io::Json& json, std::string_view key,
                  std::initializer_list<std::int64_t> allowed) {
    const std::int64_t bits = integer_of(what, json, key);
    if (std::ranges::find(allowed, bits) == allowed.end())
        throw unsupported(what, key, allowed.size() > 1 ? "4 or 8" : "4", str(bits));
}

// -- Scales ------------------------------------------------------------------------------------------------

// Scales and zero points of a matrix, as (row, group) of the file; zeros: none, or less than the code.
struct GroupValues {
    std::vector<float> scales, zeros;
    std::int64_t row_step = 0, group_step = 0;  // 0: shared
    std::int64_t groups = 1;
};

// The groups that a kernel takes for those of a file: they divide them, and have the same values.
struct KernelGroups {
    std::int64_t length = 0;  // 0: the row
    std::int64_t of_file = 0;
};
KernelGroups kernel_groups(const ModuleTensors& tensors, const io::TensorView& codes, QuantFormat format,
                           std::int64_t group, std::int64_t k, bool offsets) {
    const bool whole = group >= k;
    if (whole && format != QuantFormat::int4 && !offsets) return {0, group};
    for (const std::int64_t length : {128, 64, 32, 16}) {
        const bool known = format == QuantFormat::int4  ? length >= 32
                           : format == QuantFormat::fp8 ? length == 64
                                                        : length <= 64;
        if (known && (whole || group % length == 0)) return {length, group};
    }
    throw tensors.wrong(codes, "groups that 32, 64 or 128 divide (of 8 bits also 16)", str("of ", group));
}

using ReadCodes = std::function<void(std::int64_t row, std::uint8_t* codes)>;

// `symmetric`: the zero point that codes without offsets have.
ops::CodedMatrix matrix_of(const ModuleTensors& tensors, const io::TensorView& codes, QuantFormat format,
                           std::int64_t n, std::int64_t k, std::int64_t group, GroupValues values,
                           float symmetric, ReadCodes read) {
    const bool offsets = !values.zeros.empty() &&
                         !std::ranges::all_of(values.zeros, [&](float zero) { return zero == symmetric; });
    const KernelGroups groups = kernel_groups(tensors, codes, format, group, k, offsets);
    const auto shared = std::make_shared<const GroupValues>(std::move(values));
    ops::CodedMatrix matrix{.format = format,
                            .n = n,
                            .k = k,
                            .group = groups.length,
                            .offsets = offsets,
                            .dtype = DType::float32,
                            .columns = nullptr,
                            .read = nullptr};
    // Codes of int4 without offsets count from 8, those with them from 0; int8's are signed.
    const float base = format == QuantFormat::int4 ? 0 : symmetric;
    const std::int64_t count = groups.length == 0 ? 1 : (k + groups.length - 1) / groups.length;
    matrix.read = [shared, groups, offsets, base, count, read = std::move(read)](
                      std::int64_t row, std::uint8_t* to, float* scales, float* plus) {
        read(row, to);
        for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t of_file = std::min(i * groups.length / groups.of_file, shared->groups - 1);
            const auto at = static_cast<std::size_t>(row * shared->row_step + of_file * shared->group_step);
            scales[i] = shared->scales[at];
            if (offsets) plus[i] = scales[i] * (base - shared->zeros[at]);
        }
    };
    return matrix;
}

// k / groups, rounded up, where that many make a row.
std::int64_t group_length(const ModuleTensors& tensors, const io::TensorView& scales, std::int64_t k,
                          std::int64_t groups, std::int64_t stated) {
    const std::int64_t length = stated > 0 ? std::min(stated, k) : k;
    if ((k + length - 1) / length == groups) return length;
    throw tensors.wrong(scales, str((k + length - 1) / length, " groups of ", length, " along ", k),
                        str(groups));
}

void require_matrix(const ModuleTensors& tensors, const io::TensorView& tensor) {
    constexpr std::int64_t kMost = std::int64_t{1} << 27;  // times what a word holds is less than 2^31
    if (tensor.shape.size() == 2 && tensor.shape[0] > 0 && tensor.shape[1] > 0 && tensor.shape[0] < kMost &&
        tensor.shape[1] < kMost) {
        return;
    }
    throw tensors.wrong(tensor, "two dimensions", "shape " + to_string(tensor.shape));
}

// -- AWQ ---------------------------------------------------------------------------------------------------

void check_awq(const std::string& what, const io::Json& json) {
    require_bits(what, json, "bits", {4});
    require_text(what, json, "version", {"gemm", "GEMM"});
    integer_of(what, json, "group_size");
}

// Of column c of 8: its nibble.
constexpr int kAwqNibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};

std::optional<ops::CodedMatrix> read_awq(const ModuleTensors& tensors, const io::Json& json) {
    const io::TensorView& codes = tensors.at(".qweight");
    const io::TensorView& scales = tensors.at(".scales");
    const io::TensorView& zeros = tensors.at(".qzeros");
    require_matrix(tensors, codes);
    require_matrix(tensors, scales);
    const std::int64_t k = codes.shape[0], words = codes.shape[1], n = words * 8, groups = scales.shape[0];
    tensors.require(codes, io::StoredType::i32, {k, words});
    tensors.require(zeros, io::StoredType::i32, {groups, words});
    tensors.require(scales, scales.type, {groups, n});
    const std::int64_t group =
        group_length(tensors, scales, k, groups, integer_of(tensors.path(), json, "group_size"));
    GroupValues values{tensors.floats(scales), {}, 1, n, groups};
    for (std::int64_t i = 0; i < groups * n; ++i) {
        values.zeros.push_back(static_cast<float>(word_at(zeros, i / 8) >> (4 * kAwqNibble[i % 8]) & 15));
    }
    return matrix_of(tensors, codes, QuantFormat::int4, n, k, group, std::move(values), 8,
                     [&codes, k, words](std::int64_t row, std::uint8_t* to) {
                         const int shift = 4 * kAwqNibble[row % 8];
                         for (std::int64_t l = 0; l < k; ++l) {
                             to[l] = word_at(codes, l * words + row / 8) >> shift & 15;
                         }
                     });
}

// -- GPTQ --------------------------------------------------------------------------------------------------

void check_gptq(const std::string& what, const io::Json& json) {
    require_bits(what, json, "bits", {4, 8});
    require_text(what, json, "checkpoint_format", {"gptq", "gptq_v2"});
    require_unset(what, json, {"is_marlin_format", "dynamic"});
    integer_of(what, json, "group_size");
}

// Where the groups do not follow each other along k, the order in which they do; else nothing.
std::shared_ptr<const std::vector<std::int32_t>> grouped_order(const ModuleTensors& tensors,
                                                               const io::TensorView& index, std::int64_t k,
                                                               std::int64_t groups, std::int64_t group) {
    const std::vector<std::int64_t> group_of = tensors.integers(index);
    if (static_cast<std::int64_t>(group_of.size()) != k)
        throw tensors.wrong(index, str(k, " groups"), str(group_of.size()));
    std::vector<std::int64_t> members(static_cast<std::size_t>(groups));
    bool sorted = true;
    for (std::int64_t l = 0; l < k; ++l) {
        const std::int64_t of = group_of[static_cast<std::size_t>(l)];
        if (of < 0 || of >= groups) throw tensors.wrong(index, str("groups from 0 to ", groups - 1), str(of));
        ++members[static_cast<std::size_t>(of)];
        sorted = sorted && of == l / group;
    }
    if (sorted) return nullptr;
    for (std::int64_t i = 0; i < groups; ++i) {
        const std::int64_t expected = std::min(group, k - i * group);
        if (members[static_cast<std::size_t>(i)] == expected) continue;
        throw tensors.wrong(index, str(expected, " columns in group ", i),
                            str(members[static_cast<std::size_t>(i)]));
    }
    std::vector<std::int32_t> order(static_cast<std::size_t>(k));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {},
                             [&](std::int32_t l) { return group_of[static_cast<std::size_t>(l)]; });
    return std::make_shared<const std::vector<std::int32_t>>(std::move(order));
}

std::optional<ops::CodedMatrix> read_gptq(const ModuleTensors& tensors, const io::Json& json) {
    const io::TensorView& codes = tensors.at(".qweight");
    const io::TensorView& scales = tensors.at(".scales");
    const io::TensorView& zeros = tensors.at(".qzeros");
    // Without act-order it says no more than the groups' length.
    const io::Json* ordered = json.find("desc_act");
    const bool needs_index = ordered != nullptr && ordered->boolean() != nullptr && *ordered->boolean();
    const io::TensorView* index = needs_index ? &tensors.at(".g_idx") : tensors.find(".g_idx");
    require_matrix(tensors, codes);
    require_matrix(tensors, scales);
    const auto bits = static_cast<int>(integer_of(tensors.path(), json, "bits"));
    const std::int64_t in_word = 32 / bits, n = codes.shape[1], k = codes.shape[0] * in_word;
    const std::int64_t groups = scales.shape[0], zero_words = (n + in_word - 1) / in_word;
    tensors.require(codes, io::StoredType::i32, {k / in_word, n});
    tensors.require(zeros, io::StoredType::i32, {groups, zero_words});
    tensors.require(scales, scales.type, {groups, n});
    const std::int64_t group =
        group_length(tensors, scales, k, groups, integer_of(tensors.path(), json, "group_size"));
    const std::uint32_t mask = (1u << bits) - 1;
    const std::uint32_t more = text_of(json, "checkpoint_format", "gptq") == "gptq" ? 1 : 0;
    GroupValues values{tensors.floats(scales), {}, 1, n, groups};
    for (std::int64_t i = 0; i < groups * n; ++i) {
        const std::uint32_t word = word_at(zeros, i / n * zero_words + i % n / in_word);
        const auto shift = static_cast<unsigned>(i % n % in_word * bits);
        values.zeros.push_back(static_cast<float>(((word >> shift & mask) + more) & mask));
    }
    const auto order = index == nullptr ? nullptr : grouped_order(tensors, *index, k, groups, group);
    const bool wide = bits == 8;
    ops::CodedMatrix matrix = matrix_of(
        tensors, codes, wide ? QuantFormat::int8 : QuantFormat::int4, n, k, group, std::move(values),
        wide ? 128.0f : 8.0f,
        [&codes, k, n, bits, in_word, mask, order, wide](std::int64_t row, std::uint8_t* to) {
            for (std::int64_t l = 0; l < k; ++l) {
                const std::int64_t from = order == nullptr ? l : (*order)[static_cast<std::size_t>(l)];
                const auto shift = static_cast<unsigned>(from % in_word * bits);
                const std::uint32_t code = word_at(codes, from / in_word * n + row) >> shift & mask;
                to[l] = static_cast<std::uint8_t>(wide ? code ^ 0x80 : code);  // signed: less 128
            }
        });
    matrix.columns = order;
    return matrix;
}

// -- compressed-tensors and fp8 ----------------------------------------------------------------------------

void check_compressed(const std::string& what, const io::Json& json) {
    require_unset(what, json, {"sparsity_config", "transform_config", "kv_cache_scheme"});
    const io::Json* groups = json.find("config_groups");
    if (groups == nullptr || groups->object() == nullptr)
        throw unsupported(what, "config_groups", "an object", shown_value(groups));
    for (const io::Json::Member& group : *groups->object()) {
        const io::Json* weights = group.value.find("weights");
        if (weights == nullptr || weights->object() == nullptr)
            throw unsupported(what, "config_groups.weights", "an object", shown_value(weights));
        require_bits(what, *weights, "num_bits", {4, 8});
        require_text(what, *weights, "type", {"int", "float"});
        require_text(what, *weights, "strategy", {"tensor", "channel", "group", "block"});
        require_text(what, *weights, "actorder", {"weight", "static"});
    }
}

// Scales [n, groups], [n, 1] or one, and zero points of the same shape. `stated`: the groups' length, 0: it
// follows.
GroupValues values_of(const ModuleTensors& tensors, const io::TensorView& scales, std::int64_t n) {
    GroupValues values;
    values.scales = tensors.floats(scales);
    if (scales.size() == 1) return values;
    const bool rows = scales.shape.size() == 1 && scales.shape[0] == n;
    if (!rows && (scales.shape.size() != 2 || scales.shape[0] != n || scales.shape[1] == 0)) {
        throw tensors.wrong(scales, str("one scale, one for each of ", n, " rows, or groups of these"),
                            "shape " + to_string(scales.shape));
    }
    values.groups = rows ? 1 : scales.shape[1];
    values.row_step = values.groups, values.group_step = 1;
    return values;
}

std::int64_t even_group(const ModuleTensors& tensors, const io::TensorView& scales, std::int64_t k,
                        std::int64_t groups) {
    if (k % groups == 0) return k / groups;
    throw tensors.wrong(scales, str("groups that divide ", k), str(groups));
}

std::optional<ops::CodedMatrix> read_packed(const ModuleTensors& tensors, const io::Json&) {
    const io::TensorView& codes = tensors.at(".weight_packed");
    const io::TensorView& scales = tensors.at(".weight_scale");
    const io::TensorView* zeros = tensors.find(".weight_zero_point");
    const io::TensorView& stated = tensors.at(".weight_shape");
    require_matrix(tensors, codes);
    const std::vector<std::int64_t> shape = tensors.integers(stated);
    const std::int64_t n = codes.shape[0], words = codes.shape[1];
    const std::int64_t k = shape.size() == 2 && shape[0] == n ? shape[1] : 0;
    const int bits = k > 0 && words == (k + 7) / 8 ? 4 : k > 0 && words == (k + 3) / 4 ? 8 : 0;
    if (bits == 0) {
        throw tensors.wrong(codes, str("the words of 4 or 8 bits that weight_shape asks for"),
                            "shape " + to_string(codes.shape));
    }
    tensors.require(codes, io::StoredType::i32, {n, words});
    GroupValues values = values_of(tensors, scales, n);
    const std::int64_t group = even_group(tensors, scales, k, values.groups), in_word = 32 / bits;
    const std::uint32_t mask = (1u << bits) - 1;
    if (zeros != nullptr) {
        const std::int64_t zero_words = (n + in_word - 1) / in_word;
        tensors.require(*zeros, io::StoredType::i32, {zero_words, values.groups});
        if (values.row_step == 0) throw tensors.wrong(scales, "a scale for each row", "one");
        for (std::int64_t i = 0; i < n * values.groups; ++i) {
            const std::int64_t row = i / values.groups;
            const std::uint32_t word = word_at(*zeros, row / in_word * values.groups + i % values.groups);
            values.zeros.push_back(static_cast<float>(word >> (row % in_word * bits) & mask));
        }
    }
    const bool wide = bits == 8;
    return matrix_of(tensors, codes, wide ? QuantFormat::int8 : QuantFormat::int4, n, k, group,
                     std::move(values), wide ? 128.0f : 8.0f,
                     [&codes, k, words, bits, in_word, mask, wide](std::int64_t row, std::uint8_t* to) {
                         for (std::int64_t l = 0; l < k; ++l) {
                             const std::uint32_t code =
                                 word_at(codes, row * words + l / in_word) >> (l % in_word * bits) & mask;
                             to[l] = static_cast<std::uint8_t>(wide ? code ^ 0x80 : code);
                         }
                     });
}

ReadCodes bytes_of(const io::TensorView& codes, std::int64_t k) {
    return [&codes, k](std::int64_t row, std::uint8_t* to) {
        std::memcpy(to, codes.bytes.data() + row * k, static_cast<std::size_t>(k));
    };
}

std::optional<ops::CodedMatrix> read_int8(const ModuleTensors& tensors, const io::Json&) {
    const io::TensorView& codes = tensors.at(".weight");
    if (codes.type != io::StoredType::i8) return std::nullopt;
    const io::TensorView& scales = tensors.at(".weight_scale");
    const io::TensorView* zeros = tensors.find(".weight_zero_point");
    require_matrix(tensors, codes);
    const std::int64_t n = codes.shape[0], k = codes.shape[1];
    GroupValues values = values_of(tensors, scales, n);
    const std::int64_t group = even_group(tensors, scales, k, values.groups);
    if (zeros != nullptr) {
        if (zeros->type != io::StoredType::i8 || zeros->size() != scales.size())
            throw tensors.wrong(*zeros, "I8 of the shape of weight_scale",
                                "shape " + to_string(zeros->shape));
        for (const std::byte each : zeros->bytes)
            values.zeros.push_back(static_cast<float>(static_cast<std::int8_t>(each)));
    }
    return matrix_of(tensors, codes, QuantFormat::int8, n, k, group, std::move(values), 0,
                     bytes_of(codes, k));
}

void refuse_nan(const ModuleTensors& tensors, const io::TensorView& codes) {
    const auto is_nan = [](std::byte code) { return (code & std::byte{0x7f}) == std::byte{0x7f}; };
    if (std::ranges::any_of(codes.bytes, is_nan)) throw tensors.wrong(codes, "numbers", "NaN");
}

// `scales`: [1], [n, 1], [n], or [blocks of n, blocks of k].
ops::CodedMatrix fp8_matrix(const ModuleTensors& tensors, const io::TensorView& codes,
                            const io::TensorView& scales, std::int64_t block_n, std::int64_t block_k) {
    require_matrix(tensors, codes);
    refuse_nan(tensors, codes);
    const std::int64_t n = codes.shape[0], k = codes.shape[1];
    if (block_n <= 0 || block_k <= 0) {
        GroupValues values = values_of(tensors, scales, n);
        const std::int64_t group = even_group(tensors, scales, k, values.groups);
        return matrix_of(tensors, codes, QuantFormat::fp8, n, k, group, std::move(values), 0,
                         bytes_of(codes, k));
    }
    const std::int64_t down = 1 + (n - 1) / block_n, across = 1 + (k - 1) / block_k;  // any size of 64 bits
    tensors.require(scales, scales.type, {down, across});
    const std::vector<float> blocks = tensors.floats(scales);
    GroupValues values{.scales = {}, .zeros = {}, .row_step = across, .group_step = 1, .groups = across};
    for (std::int64_t row = 0; row < n; ++row) {
        const auto from = blocks.begin() + row / block_n * across;
        values.scales.insert(values.scales.end(), from, from + across);
    }
    return matrix_of(tensors, codes, QuantFormat::fp8, n, k, block_k, std::move(values), 0,
                     bytes_of(codes, k));
}

std::pair<std::int64_t, std::int64_t> block_shape(const std::string& what, const io::Json* shape,
                                                  std::string_view key) {
    if (shape == nullptr || shape->is_null()) return {0, 0};
    const io::Json::Array* sizes = shape->array();
    if (sizes == nullptr || sizes->size() != 2 || (*sizes)[0].integer() == nullptr ||
        (*sizes)[1].integer() == nullptr || *(*sizes)[0].integer() <= 0 || *(*sizes)[1].integer() <= 0) {
        throw unsupported(what, key, "two sizes > 0", shown_value(shape));
    }
    return {*(*sizes)[0].integer(), *(*sizes)[1].integer()};
}

std::optional<ops::CodedMatrix> read_float8(const ModuleTensors& tensors, const io::Json& json) {
    const io::TensorView& codes = tensors.at(".weight");
    if (codes.type != io::StoredType::f8_e4m3) return std::nullopt;
    std::pair<std::int64_t, std::int64_t> block{0, 0};
    for (const io::Json::Member& group : *json.find("config_groups")->object()) {
        const io::Json* shape = group.value.find("weights")->find("block_structure");
        if (text_of(*group.value.find("weights"), "strategy", "") == "block")
            block = block_shape(tensors.path(), shape, "config_groups.weights.block_structure");
    }
    return fp8_matrix(tensors, codes, tensors.at(".weight_scale"), block.first, block.second);
}

void check_fp8(const std::string& what, const io::Json& json) {
    require_text(what, json, "fmt", {"e4m3"});
    require_text(what, json, "activation_scheme", {"dynamic", "static"});
}

std::optional<ops::CodedMatrix> read_fp8(const ModuleTensors& tensors, const io::Json& json) {
    const io::TensorView& codes = tensors.at(".weight");
    if (codes.type != io::StoredType::f8_e4m3) return std::nullopt;
    const auto [down, across] =
        block_shape(tensors.path(), json.find("weight_block_size"), "weight_block_size");
    return fp8_matrix(tensors, codes, tensors.at(down > 0 ? ".weight_scale_inv" : ".weight_scale"), down,
                      across);
}

constexpr CheckpointLayout kLayouts[] = {
    {"awq", "", ".qweight", check_awq, read_awq},
    {"gptq", "", ".qweight", check_gptq, read_gptq},
    {"compressed-tensors", "pack-quantized", ".weight_packed", check_compressed, read_packed},
    {"compressed-tensors", "int-quantized", ".weight", check_compressed, read_int8},
    {"compressed-tensors", "float-quantized", ".weight", check_compressed, read_float8},
    {"fp8", "", ".weight", check_fp8, read_fp8},
};

}  // namespace

const CheckpointLayout& checkpoint_layout(const std::string& what, const io::Json& quantization) {
    const std::string method = text_of(quantization, "quant_method", "");
    const std::string format = text_of(quantization, "format", "");
    std::string methods, formats;
    for (const CheckpointLayout& layout : kLayouts) {
        const auto add = [](std::string& to, std::string_view name) {
            if (to.find(name) == std::string::npos) to += (to.empty() ? "" : ", ") + std::string(name);
        };
        add(methods, layout.method);
        if (layout.method != method) continue;
        add(formats, layout.format);
        if (!layout.format.empty() && layout.format != format) continue;
        layout.check(what, quantization);
        return layout;
    }
    if (formats.empty())
        throw unsupported(what, "quant_method", "one of " + methods,
                          shown_value(quantization.find("quant_method")));
    throw unsupported(what, "format", "one of " + formats, shown_value(quantization.find("format")));
}

}  // namespace gpk::llm
