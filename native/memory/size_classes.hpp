// Size classes: eight to a power of two, at least 256 bytes apart; above 64 MiB multiples of 2 MiB.
#pragma once

#include <bit>
#include <cstddef>

namespace gpk::size_class {

inline constexpr std::size_t kSmallest = 256;
inline constexpr std::size_t kLarge = std::size_t{64} << 20;
inline constexpr std::size_t kLargeStep = std::size_t{2} << 20;
inline constexpr int kCount = 128;                               // of those up to kLarge
inline constexpr std::size_t kMostBytes = std::size_t{1} << 60;  // no device has more

// `step` is a power of two.
constexpr std::size_t round_up(std::size_t value, std::size_t step) {
    return (value + step - 1) & ~(step - 1);
}

// The class of 1 to kLarge bytes: 0 to kCount - 1.
constexpr int index(std::size_t bytes) {
    const std::size_t last = bytes - 1;
    if (last < 2048) return static_cast<int>(last >> 8);
    const int power = std::bit_width(last) - 1;
    return 8 * (power - 10) + static_cast<int>((last >> (power - 3)) & 7);
}

constexpr std::size_t bytes_of(int index) {
    if (index < 8) return static_cast<std::size_t>(index + 1) << 8;
    return static_cast<std::size_t>((index & 7) + 9) << (index / 8 + 7);
}

// What a request of 1 to kMostBytes takes.
constexpr std::size_t bytes_for(std::size_t bytes) {
    return bytes <= kLarge ? bytes_of(index(bytes)) : round_up(bytes, kLargeStep);
}

static_assert(index(1) == 0 && index(256) == 0 && index(257) == 1 && index(2048) == 7 && index(2049) == 8);
static_assert(bytes_of(8) == 2304 && bytes_of(15) == 4096 && index(kLarge) == kCount - 1);
static_assert(bytes_of(kCount - 1) == kLarge);

}  // namespace gpk::size_class
