#include "io/json.hpp"

#include <algorithm>
#include <charconv>

#include "base/error.hpp"

namespace gpk::io {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

void append_utf8(std::string& text, std::uint32_t code) {
    if (code < 0x80) {
        text += static_cast<char>(code);
        return;
    }
    const int tail = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static constexpr unsigned kLead[] = {0, 0xc0, 0xe0, 0xf0};
    text += static_cast<char>(kLead[tail] | (code >> (6 * tail)));
    for (int i = tail - 1; i >= 0; --i) text += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3f));
}

}  // namespace

class JsonParser {
   public:
    JsonParser(std::string_view text, const std::string& what, const JsonLimits& limits)
        : text_(text), what_(what), limits_(limits) {}

    Json document() {
        if (text_.size() > limits_.max_bytes) {
            throw error(ErrorKind::file, {.call = what_,
                                          .expected = str("at most ", limits_.max_bytes, " bytes of JSON"),
                                          .got = str(text_.size())});
        }
        if (!is_utf8(text_)) throw error(ErrorKind::file, {.call = what_, .expected = "valid UTF-8"});
        Json json = value(0);
        skip_space();
        if (at_ != text_.size()) fail("the end of the JSON text");
        return json;
    }

   private:
    [[noreturn]] void fail(const std::string& expected) const {
        std::string got = "the end of the text";
        if (at_ < text_.size()) {
            const auto byte = static_cast<unsigned char>(text_[at_]);
            got = byte > 0x20 && byte < 0x7f ? str("'", text_[at_], "'") : str("byte ", int{byte});
        }
        throw error(
            ErrorKind::file,
            {.call = str(what_, ": JSON at byte ", at_), .expected = expected, .got = std::move(got)});
    }

    char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
    bool take(char c) {
        if (peek() != c || at_ == text_.size()) return false;
        ++at_;
        return true;
    }
    void skip_space() {
        while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != std::string_view::npos) {
            ++at_;
        }
    }

    Json value(int depth) {
        if (depth > limits_.max_depth) fail(str("at most ", limits_.max_depth, " levels"));
        if (++values_ > limits_.max_values) fail(str("at most ", limits_.max_values, " values"));
        skip_space();
        Json json;
        switch (peek()) {
            case '{': json.value_ = object(depth); break;
            case '[': json.value_ = array(depth); break;
            case '"': json.value_ = string(); break;
            case 't':
                word("true");
                json.value_ = true;
                break;
            case 'f':
                word("false");
                json.value_ = false;
                break;
            case 'n': word("null"); break;
            default: number(json);
        }
        return json;
    }

    void word(std::string_view word) {
        if (text_.substr(at_, word.size()) != word) fail("a value");
        at_ += word.size();
    }

    Json::Object object(int depth) {
        Json::Object members;
        ++at_;
        skip_space();
        if (take('}')) return members;
        for (;;) {
            skip_space();
            if (peek() != '"') fail("a key");
            std::string key = string();
            skip_space();
            if (!take(':')) fail("':'");
            Json member = value(depth + 1);
            members.push_back({std::move(key), std::move(member)});
            skip_space();
            if (take('}')) break;
            if (!take(',')) fail("',' or '}'");
        }
        std::vector<std::string_view> keys;
        keys.reserve(members.size());
        for (const auto& member : members) keys.push_back(member.key);
        std::sort(keys.begin(), keys.end());
        const auto twice = std::adjacent_find(keys.begin(), keys.end());
        if (twice != keys.end()) {
            throw error(ErrorKind::file, {.call = what_,
                                          .expected = "each key once in a JSON object",
                                          .got = json_quoted(twice->substr(0, 100)) + " twice"});
        }
        return members;
    }

    Json::Array array(int depth) {
        Json::Array elements;
        ++at_;
        skip_space();
        if (take(']')) return elements;
        for (;;) {
            elements.push_back(value(depth + 1));
            skip_space();
            if (take(']')) return elements;
            if (!take(',')) fail("',' or ']'");
        }
    }

    std::string string() {
        std::string result;
        ++at_;
        for (;;) {
            const std::size_t start = at_;
            while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
                   static_cast<unsigned char>(text_[at_]) >= 0x20) {
                ++at_;
            }
            result.append(text_.substr(start, at_ - start));
            if (take('"')) return result;
            if (!take('\\')) fail("the rest of a string");
            escape(result);
        }
    }

    void escape(std::string& result) {
        static constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
        if (take('u')) {
            std::uint32_t code = hex4();
            if (code >= 0xdc00 && code < 0xe000) fail("a high surrogate before a low one");
            if (code >= 0xd800 && code < 0xdc00) {
                if (!take('\\') || !take('u')) fail("a low surrogate");
                const std::uint32_t low = hex4();
                if (low < 0xdc00 || low >= 0xe000) fail("a low surrogate");
                code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
            }
            return append_utf8(result, code);
        }
        const std::size_t which = at_ < text_.size() ? kNames.find(text_[at_]) : std::string_view::npos;
        if (which == std::string_view::npos) fail("an escape");
        result += kValues[which];
        ++at_;
    }

    std::uint32_t hex4() {
        const std::string_view digits = text_.substr(at_, 4);
        std::uint32_t code = 0;
        const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
        if (digits.size() != 4 || failure != std::errc() || end != digits.data() + 4) fail("four hex digits");
        at_ += 4;
        return code;
    }

    void digits() {
        if (!is_digit(peek())) fail("a digit");
        while (is_digit(peek())) ++at_;
    }

    void number(Json& json) {
        const std::size_t start = at_;
        const bool negative = take('-');
        if (!negative && !is_digit(peek())) fail("a value");
        if (!take('0')) digits();
        bool is_integer = true;
        if (take('.')) {
            digits();
            is_integer = false;
        }
        if (take('e') || take('E')) {
            if (!take('+')) take('-');
            digits();
            is_integer = false;
        }
        const char* const first = text_.data() + start;
        const char* const last = text_.data() + at_;
        std::int64_t integer = 0;
        if (is_integer && std::from_chars(first, last, integer).ec == std::errc()) {
            json.value_ = integer;
            return;
        }
        double number = 0;
        if (std::from_chars(first, last, number).ec != std::errc()) {
            at_ = start;
            fail("a number within float64");
        }
        json.value_ = number;
    }

    std::string_view text_;
    const std::string& what_;
    const JsonLimits& limits_;
    std::size_t at_ = 0;
    std::size_t values_ = 0;
};

Json Json::parse(std::string_view text, const std::string& what, const JsonLimits& limits) {
    return JsonParser(text, what, limits).document();
}

double Json::number() const noexcept {
    if (const auto* fraction = std::get_if<double>(&value_)) return *fraction;
    return integer() ? static_cast<double>(*integer()) : 0;
}

const Json* Json::find(std::string_view key) const noexcept {
    if (object() == nullptr) return nullptr;
    for (const Member& member : *object()) {
        if (member.key == key) return &member.value;
    }
    return nullptr;
}

std::string_view Json::kind() const noexcept {
    static constexpr std::string_view kKinds[] = {"null",     "a boolean", "an integer", "a number",
                                                  "a string", "an array",  "an object"};
    return kKinds[value_.index()];
}

std::string json_quoted(std::string_view text) {
    static constexpr char kHex[] = "0123456789abcdef";
    std::string quoted = "\"";
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x20) {
            quoted += {'\\', 'u', '0', '0', kHex[byte >> 4], kHex[byte & 15]};
        } else {
            if (c == '"' || c == '\\') quoted += '\\';
            quoted += c;
        }
    }
    return quoted + "\"";
}

// The well-formed sequences of Unicode 15, table 3-7: no overlong forms, no surrogates.
bool is_utf8(std::string_view text) noexcept {
    const auto* at = reinterpret_cast<const unsigned char*>(text.data());
    const auto* const end = at + text.size();
    while (at < end) {
        const unsigned lead = *at++;
        if (lead < 0x80) continue;
        const int tail = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
        if (lead < 0xc2 || lead > 0xf4 || end - at < tail) return false;
        const unsigned low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
        const unsigned high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
        if (at[0] < low || at[0] > high) return false;
        for (int i = 1; i < tail; ++i) {
            if ((at[i] & 0xc0) != 0x80) return false;
        }
        at += tail;
    }
    return true;
}

}  // namespace gpk::io
