// A strict JSON reader (RFC 8259) for the headers and indices of model files. Its input is hostile:
// depth, size and number of values are limited, strings are valid UTF-8, keys are unique.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace gpk::io {

struct JsonLimits {
    std::size_t max_bytes = 100'000'000;
    std::size_t max_values = 4'000'000;  // bounds the memory that a small text can ask for
    int max_depth = 32;
};

class Json {
   public:
    struct Member;
    using Array = std::vector<Json>;
    using Object = std::vector<Member>;  // in the text's order

    Json() = default;

    // `what` begins the message of an Error (file), for instance the file's path.
    static Json parse(std::string_view text, const std::string& what, const JsonLimits& limits = {});

    // Each gives null where the value is of another kind.
    const bool* boolean() const noexcept { return std::get_if<bool>(&value_); }
    const std::int64_t* integer() const noexcept { return std::get_if<std::int64_t>(&value_); }
    const std::string* string() const noexcept { return std::get_if<std::string>(&value_); }
    const Array* array() const noexcept { return std::get_if<Array>(&value_); }
    const Object* object() const noexcept { return std::get_if<Object>(&value_); }
    bool is_null() const noexcept { return std::holds_alternative<std::monostate>(value_); }
    bool is_number() const noexcept { return integer() || std::holds_alternative<double>(value_); }
    double number() const noexcept;  // of an integer or a fraction; 0 for anything else

    // A member of an object; null where there is none or this is no object.
    const Json* find(std::string_view key) const noexcept;
    std::string_view kind() const noexcept;  // "an object", "a string", ..., for messages

   private:
    friend class JsonParser;
    // An integer outside int64, and whatever has a fraction or an exponent, is a double.
    std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object> value_;
};

struct Json::Member {
    std::string key;
    Json value;
};

// `text` as a JSON string, with its quotes.
std::string json_quoted(std::string_view text);
bool is_utf8(std::string_view text) noexcept;

}  // namespace gpk::io
