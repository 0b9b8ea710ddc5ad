// CUDA C++ source cut into tokens: what the signature parser, the include scan and the host compiler
// read it by. Comments are gone, a preprocessor line is one token, literals are one token each.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace gpk::jit {

enum class TokenKind { identifier, number, text, punctuation, directive };

struct Token {
    TokenKind kind;
    std::string_view text;  // of the source, which must outlive it; punctuation is one character or "::"
    std::size_t offset;     // in the source
};

std::vector<Token> tokenize(std::string_view source);

// Counted from 1.
std::size_t line_of(std::string_view source, std::size_t offset);

// The lines around `line` (counted from 1), numbered, the line itself marked.
std::string numbered_lines(std::string_view source, std::size_t line);

}  // namespace gpk::jit
