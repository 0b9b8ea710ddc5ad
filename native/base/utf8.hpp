// Text from outside, for files that must be UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gpk {

// The length of the character at the beginning of `text`, which is not empty; 0 where there is none.
std::size_t utf8_length(std::string_view text) noexcept;

// The text with U+FFFD for each byte that is not part of a character.
std::string valid_utf8(std::string_view text);

}  // namespace gpk
