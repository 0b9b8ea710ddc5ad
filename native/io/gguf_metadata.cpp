// Typed access to the metadata of a GGUF file.
#include <cstring>
#include <limits>

#include "base/error.hpp"
#include "io/gguf.hpp"

namespace gpk::io {

namespace {

std::string describe(const GgufValue& value) {
    if (const auto* array = std::get_if<std::shared_ptr<const GgufArray>>(&value.value)) {
        return str("an array of ", (*array)->count, " ", name((*array)->type));
    }
    return std::string(name(value.type));
}

[[noreturn]] void wrong_type(const Gguf& file, std::string_view key, std::string_view expected,
                             const GgufValue& got) {
    throw error(ErrorKind::file, {.call = str(file.path(), ": key ", shown(key)),
                                  .expected = std::string(expected),
                                  .got = describe(got)});
}

const GgufValue& required(const Gguf& file, std::string_view key, std::string_view expected) {
    if (const GgufValue* value = file.find_metadata(key)) return *value;
    throw error(ErrorKind::file, {.call = str(file.path(), ": key ", shown(key)),
                                  .expected = std::string(expected),
                                  .got = "no such key"});
}

std::int64_t as_integer(const Gguf& file, std::string_view key, const GgufValue& value) {
    if (const auto* integer = std::get_if<std::int64_t>(&value.value)) return *integer;
    const auto* natural = std::get_if<std::uint64_t>(&value.value);
    if (natural == nullptr) wrong_type(file, key, "an integer", value);
    if (*natural > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        throw error(ErrorKind::file, {.call = str(file.path(), ": key ", shown(key)),
                                      .expected = "an integer below 2**63",
                                      .got = str(*natural)});
    }
    return static_cast<std::int64_t>(*natural);
}

double as_number(const Gguf& file, std::string_view key, const GgufValue& value) {
    if (const auto* number = std::get_if<double>(&value.value)) return *number;
    if (const auto* natural = std::get_if<std::uint64_t>(&value.value)) return static_cast<double>(*natural);
    if (const auto* integer = std::get_if<std::int64_t>(&value.value)) return static_cast<double>(*integer);
    wrong_type(file, key, "a number", value);
}

const std::string& as_string(const Gguf& file, std::string_view key, const GgufValue& value) {
    const auto* text = std::get_if<std::string>(&value.value);
    if (text == nullptr) wrong_type(file, key, "a string", value);
    return *text;
}

const GgufArray& array(const Gguf& file, std::string_view key, std::string_view expected) {
    const GgufValue& value = required(file, key, expected);
    const auto* array = std::get_if<std::shared_ptr<const GgufArray>>(&value.value);
    if (array == nullptr) wrong_type(file, key, expected, value);
    return **array;
}

template <class To, class From>
void append(const GgufArray& array, std::vector<To>& to) {
    for (std::size_t i = 0; i < array.count; ++i) {
        From value;
        std::memcpy(&value, array.numbers.data() + i * sizeof(From), sizeof(From));
        to.push_back(static_cast<To>(value));
    }
}

// Reads the elements as integers; false where they are something else.
template <class To>
bool append_integers(const GgufArray& array, std::vector<To>& to) {
    switch (array.type) {
        case GgufType::uint8: append<To, std::uint8_t>(array, to); return true;
        case GgufType::int8: append<To, std::int8_t>(array, to); return true;
        case GgufType::uint16: append<To, std::uint16_t>(array, to); return true;
        case GgufType::int16: append<To, std::int16_t>(array, to); return true;
        case GgufType::uint32: append<To, std::uint32_t>(array, to); return true;
        case GgufType::int32: append<To, std::int32_t>(array, to); return true;
        case GgufType::uint64: append<To, std::uint64_t>(array, to); return true;
        case GgufType::int64: append<To, std::int64_t>(array, to); return true;
        default: return false;
    }
}

}  // namespace

const GgufValue* Gguf::find_metadata(std::string_view key) const noexcept {
    const auto found = metadata_.find(key);
    return found == metadata_.end() ? nullptr : &found->second;
}

std::int64_t Gguf::integer(std::string_view key) const {
    return as_integer(*this, key, required(*this, key, "an integer"));
}

std::int64_t Gguf::integer(std::string_view key, std::int64_t fallback) const {
    const GgufValue* value = find_metadata(key);
    return value == nullptr ? fallback : as_integer(*this, key, *value);
}

double Gguf::number(std::string_view key) const {
    return as_number(*this, key, required(*this, key, "a number"));
}

double Gguf::number(std::string_view key, double fallback) const {
    const GgufValue* value = find_metadata(key);
    return value == nullptr ? fallback : as_number(*this, key, *value);
}

bool Gguf::boolean(std::string_view key, bool fallback) const {
    const GgufValue* value = find_metadata(key);
    if (value == nullptr) return fallback;
    const bool* boolean = std::get_if<bool>(&value->value);
    if (boolean == nullptr) wrong_type(*this, key, "a bool", *value);
    return *boolean;
}

const std::string& Gguf::string(std::string_view key) const {
    return as_string(*this, key, required(*this, key, "a string"));
}

std::string Gguf::string(std::string_view key, std::string_view fallback) const {
    const GgufValue* value = find_metadata(key);
    return value == nullptr ? std::string(fallback) : as_string(*this, key, *value);
}

const std::vector<std::string>& Gguf::strings(std::string_view key) const {
    constexpr std::string_view kExpected = "an array of strings";
    const GgufArray& found = array(*this, key, kExpected);
    if (found.type != GgufType::string) wrong_type(*this, key, kExpected, *find_metadata(key));
    return found.strings;
}

std::vector<std::int64_t> Gguf::integers(std::string_view key) const {
    constexpr std::string_view kExpected = "an array of integers";
    const GgufArray& found = array(*this, key, kExpected);
    std::vector<std::int64_t> values;
    if (!append_integers(found, values)) wrong_type(*this, key, kExpected, *find_metadata(key));
    if (found.type == GgufType::uint64) {
        for (const std::int64_t value : values) {
            if (value < 0) wrong_type(*this, key, "integers below 2**63", *find_metadata(key));
        }
    }
    return values;
}

std::vector<double> Gguf::numbers(std::string_view key) const {
    constexpr std::string_view kExpected = "an array of numbers";
    const GgufArray& found = array(*this, key, kExpected);
    std::vector<double> values;
    if (found.type == GgufType::float32) {
        append<double, float>(found, values);
    } else if (found.type == GgufType::float64) {
        append<double, double>(found, values);
    } else if (!append_integers(found, values)) {
        wrong_type(*this, key, kExpected, *find_metadata(key));
    }
    return values;
}

}  // namespace gpk::io
