#include "jit/source.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace gpk::jit {

namespace {

bool starts_identifier(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool continues_identifier(char c) { return starts_identifier(c) || is_digit(c); }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v'; }

// The end of a comment that begins at `at`, or `at` where none does.
std::size_t skip_comment(std::string_view source, std::size_t at) {
    if (source.substr(at, 2) == "//") return std::min(source.find('\n', at), source.size());
    if (source.substr(at, 2) == "/*") {
        const std::size_t end = source.find("*/", at + 2);
        return end == std::string_view::npos ? source.size() : end + 2;
    }
    return at;
}

std::size_t end_of_directive(std::string_view source, std::size_t at) {
    while (at < source.size() && source[at] != '\n') {
        const std::size_t after = skip_comment(source, at);
        if (after != at) {
            at = after;
        } else if (source[at] == '\\' && source.substr(at, 2) == "\\\n") {
            at += 2;
        } else if (source.substr(at, 3) == "\\\r\n") {
            at += 3;
        } else {
            ++at;
        }
    }
    return at;
}

std::size_t end_of_quoted(std::string_view source, std::size_t at) {
    const char quote = source[at++];
    while (at < source.size() && source[at] != quote && source[at] != '\n') at += source[at] == '\\' ? 2 : 1;
    return std::min(at + 1, source.size());
}

// R"tag( ... )tag"
std::size_t end_of_raw(std::string_view source, std::size_t quote) {
    const std::size_t open = source.find('(', quote);
    if (open == std::string_view::npos) return source.size();
    const std::string close = ")" + std::string(source.substr(quote + 1, open - quote - 1)) + "\"";
    const std::size_t end = source.find(close, open);
    return end == std::string_view::npos ? source.size() : end + close.size();
}

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
    std::vector<Token> tokens;
    bool line_start = true;
    std::size_t at = 0;
    while (at < source.size()) {
        const char c = source[at];
        if (is_space(c)) {
            line_start = line_start || c == '\n';
            ++at;
            continue;
        }
        if (const std::size_t after = skip_comment(source, at); after != at) {
            at = after;
            continue;
        }
        std::size_t end = at + 1;
        TokenKind kind = TokenKind::punctuation;
        if (c == '#' && line_start) {
            kind = TokenKind::directive;
            end = end_of_directive(source, at);
        } else if (starts_identifier(c)) {
            kind = TokenKind::identifier;
            while (end < source.size() && continues_identifier(source[end])) ++end;
            if (end < source.size() && source[end] == '"' && source[end - 1] == 'R') {
                kind = TokenKind::text;
                end = end_of_raw(source, end);
            }
        } else if (is_digit(c)) {
            kind = TokenKind::number;
            while (end < source.size() && (continues_identifier(source[end]) || source[end] == '.')) ++end;
        } else if (c == '"' || c == '\'') {
            kind = TokenKind::text;
            end = end_of_quoted(source, at);
        } else if (source.substr(at, 2) == "::") {
            end = at + 2;
        }
        tokens.push_back({kind, source.substr(at, end - at), at});
        line_start = false;
        at = end;
    }
    return tokens;
}

std::size_t line_of(std::string_view source, std::size_t offset) {
    const auto end = source.begin() + static_cast<std::ptrdiff_t>(std::min(offset, source.size()));
    return 1 + static_cast<std::size_t>(std::count(source.begin(), end, '\n'));
}

std::string numbered_lines(std::string_view source, std::size_t line) {
    constexpr std::size_t kAround = 2;
    std::string text;
    std::size_t begin = 0;
    for (std::size_t number = 1; begin <= source.size() && number <= line + kAround; ++number) {
        const std::size_t end = std::min(source.find('\n', begin), source.size());
        if (number + kAround >= line) {
            text += str(number == line ? "> " : "  ", number, " | ", source.substr(begin, end - begin), "\n");
        }
        begin = end + 1;
    }
    return text;
}

}  // namespace gpk::jit
