// How a quantised weight lies in memory, for every kernel that makes or reads one.
//
// A weight [n, k] is stored in tiles of 16 rows by 64 bytes of each row: 64 weights of 8 bits or 128 of 4,
// the tiles of 16 rows one after another along k. A tile is what one warp reads at a time as operand of
// mma.sync: 2 halves (of 8 rows) of 32 lanes (row g = lane / 4 of the half, t = lane % 4) of 16 bytes. Those
// are, for each unit u of 32 weights along k, the weights 32 u + 8 t to 32 u + 8 t + 7 of the row:
//
//   8 bits   two words; the bytes of a word are weights 0, 2, 1, 3 of its four
//   4 bits   one word; nibble i (from the lowest bit) is weight 2 i, nibble 4 + i weight 2 i + 1
//
// so that two neighbours along k lie 16 bits apart. Rows and columns past the end are zeros.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/float_types.hpp"

namespace gpk {

enum class QuantFormat : std::uint8_t { int8, int4, fp8, nvfp4 };
inline constexpr int kQuantFormats = 4;

inline constexpr int kQuantRows = 16;  // of a tile
inline constexpr int kQuantTileBytes = 1024;
inline constexpr int kNvfp4Block = 16;  // weights along k that share a scale

// A weight [n, k] in memory. Rows count up to n rounded up to 16. A weight is number(code) * scale + offset.
struct QuantLayout {
    QuantFormat format;
    std::int64_t n, k;
    // Weights along k that share a scale: of int4 32, 64 or 128; of int8 16, 32 or 64; of fp8 64; of int8 and
    // fp8 also 0, a whole row. (nvfp4: 0, it has its own.)
    std::int64_t group;
    const void* data;  // [tiles of n][steps of k] tiles
    // Of rows: float32 [rows]. Of groups: float32 [tiles of n][groups][16 rows]. nvfp4: float8_e4m3 [tiles of
    // n][steps of k], and of each [16 rows][2][4]: of half h of unit u at h * 4 + u.
    const void* scales;
    // Of groups of integers: as the scales; or null. Codes of int4 are 0 to 15 with offsets, -8 to 7 (code 8
    // is 0) without.
    const float* offsets;
    const float* global;  // nvfp4: [1], times every scale; else null
};

GPK_HD constexpr int quant_bits(QuantFormat format) {
    return format == QuantFormat::int8 || format == QuantFormat::fp8 ? 8 : 4;
}
// Weights along k of a tile.
GPK_HD constexpr int quant_step(QuantFormat format) { return 512 / quant_bits(format); }
GPK_HD constexpr std::int64_t quant_tiles(std::int64_t n) { return (n + kQuantRows - 1) / kQuantRows; }
GPK_HD constexpr std::int64_t quant_steps(QuantFormat format, std::int64_t k) {
    return (k + quant_step(format) - 1) / quant_step(format);
}
// Groups of a row, in whole steps; 1 where the row is one.
GPK_HD constexpr std::int64_t quant_groups(QuantFormat format, std::int64_t k, std::int64_t group) {
    return group == 0 ? 1 : quant_steps(format, k) * (quant_step(format) / group);
}

// The layout of expert `index` of several that follow each other.
GPK_HD QuantLayout expert_layout(const QuantLayout& w, std::int64_t index) {
    const std::int64_t tiles = quant_tiles(w.n) * index, steps = quant_steps(w.format, w.k);
    const std::int64_t scales = w.format == QuantFormat::nvfp4
                                    ? tiles * steps * 128
                                    : tiles * kQuantRows * quant_groups(w.format, w.k, w.group) * 4;
    QuantLayout part = w;
    part.data = static_cast<const char*>(w.data) + tiles * steps * kQuantTileBytes;
    part.scales = static_cast<const char*>(w.scales) + scales;
    if (w.offsets != nullptr) part.offsets = w.offsets + scales / 4;
    if (w.global != nullptr) part.global = w.global + index;
    return part;
}

// Byte of `data` where the 16 bytes of a row, a step of k and a lane's t begin.
GPK_HD constexpr std::int64_t quant_chunk(std::int64_t row, std::int64_t step, int t, std::int64_t steps) {
    return ((row / kQuantRows * steps + step) * 2 + row % kQuantRows / 8) * 512 + (row % 8 * 4 + t) * 16;
}
// Where weight `i` (0..7) of unit `u` lies in those 16 bytes: its first bit.
GPK_HD constexpr int quant_bit(int bits, int u, int i) {
    return bits == 4 ? 32 * u + 16 * (i % 2) + 4 * (i / 2)
                     : 64 * u + 32 * (i / 4) + 16 * (i % 2) + 8 * (i / 2 % 2);
}
// The scale and the offset of a row's group.
GPK_HD constexpr std::int64_t quant_group_place(std::int64_t row, std::int64_t group, std::int64_t groups) {
    return (row / kQuantRows * groups + group) * kQuantRows + row % kQuantRows;
}
// The scale of a row's block of 16 weights (nvfp4).
GPK_HD constexpr std::int64_t nvfp4_scale(std::int64_t row, std::int64_t block, std::int64_t steps) {
    const std::int64_t step = block / 8, in_step = block % 8;
    return (row / kQuantRows * steps + step) * 128 + row % kQuantRows * 8 + in_step % 2 * 4 + in_step / 2;
}

// e2m1 (OCP Microscaling formats, rev. 1.0): sign, then the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6.
GPK_HD float decode_e2m1(std::uint32_t code) {
    const std::uint32_t exponent = code >> 1 & 3, mantissa = code & 1;
    const float magnitude = exponent == 0 ? 0.5f * static_cast<float>(mantissa)
                                          : static_cast<float>((2 + mantissa) << exponent) * 0.25f;
    return code & 8 ? -magnitude : magnitude;
}
// To nearest, ties to the even mantissa; beyond 6 gives 6. NaN gives 6: its block's scale is NaN anyway.
GPK_HD std::uint32_t encode_e2m1(float value) {
    const float a = value < 0 ? -value : value;
    const std::uint32_t magnitude = a <= 0.25f   ? 0
                                    : a < 0.75f  ? 1
                                    : a <= 1.25f ? 2
                                    : a < 1.75f  ? 3
                                    : a <= 2.5f  ? 4
                                    : a < 3.5f   ? 5
                                    : a <= 5.0f  ? 6
                                                 : 7;
    return magnitude | (value < 0 ? 8 : 0);
}

// The code of a value that is to be code * scale (int4: (code - zero) * scale), to nearest, ties to even.
GPK_HD std::uint32_t quant_code(QuantFormat format, float value, float scale, int zero) {
    const float ratio = scale > 0 ? value / scale : 0;
    const auto whole = [&](float low, float high) {
        const float rounded = rintf(ratio);
        return static_cast<int>(rounded < low        ? low
                                : rounded > high     ? high
                                : rounded == rounded ? rounded
                                                     : 0);
    };
    switch (format) {
        case QuantFormat::int8: return static_cast<std::uint32_t>(whole(-127, 127)) & 0xff;
        case QuantFormat::int4:
            return static_cast<std::uint32_t>(
                whole(static_cast<float>(-zero), static_cast<float>(15 - zero)) + zero);
        case QuantFormat::fp8: return float8_e4m3(ratio).bits;
        case QuantFormat::nvfp4: break;
    }
    return encode_e2m1(ratio);
}

// What a weight's number is multiplied by, and what is added then.
GPK_HD float quant_scale(const QuantLayout& w, std::int64_t row, std::int64_t column) {
    if (w.format == QuantFormat::nvfp4) {
        const float8_e4m3 scale = static_cast<const float8_e4m3*>(
            w.scales)[nvfp4_scale(row, column / kNvfp4Block, quant_steps(w.format, w.k))];
        return static_cast<float>(scale) * *w.global;
    }
    const auto* scales = static_cast<const float*>(w.scales);
    if (w.group == 0) return scales[row];
    return scales[quant_group_place(row, column / w.group, quant_groups(w.format, w.k, w.group))];
}
GPK_HD float quant_offset(const QuantLayout& w, std::int64_t row, std::int64_t column) {
    if (w.offsets == nullptr) return 0;
    return w.offsets[quant_group_place(row, column / w.group, quant_groups(w.format, w.k, w.group))];
}

// The number that a code is. `zero`: of int4, the code of 0.
GPK_HD float quant_number(QuantFormat format, std::uint32_t code, int zero) {
    switch (format) {
        case QuantFormat::int8: return static_cast<float>(static_cast<std::int8_t>(code));
        case QuantFormat::int4: return static_cast<float>(static_cast<int>(code) - zero);
        case QuantFormat::fp8: {
            float8_e4m3 value;
            value.bits = static_cast<std::uint8_t>(code);
            return static_cast<float>(value);
        }
        case QuantFormat::nvfp4: break;
    }
    return decode_e2m1(code);
}

// A weight in float32.
GPK_HD float dequantized(const QuantLayout& w, std::int64_t row, std::int64_t column) {
    const int bits = quant_bits(w.format), step_length = quant_step(w.format);
    const std::int64_t steps = quant_steps(w.format, w.k), step = column / step_length;
    const int within = static_cast<int>(column % step_length);
    const int bit = quant_bit(bits, within / 32, within % 8);
    const std::uint32_t byte =
        static_cast<const std::uint8_t*>(w.data)[quant_chunk(row, step, within % 32 / 8, steps) + bit / 8];
    const std::uint32_t code = bits == 8 ? byte : byte >> (bit % 8) & 15;
    const float number = quant_number(w.format, code, w.offsets == nullptr ? 8 : 0);
    const float scaled = number * quant_scale(w, row, column);
    return w.offsets == nullptr ? scaled : scaled + quant_offset(w, row, column);
}

}  // namespace gpk
