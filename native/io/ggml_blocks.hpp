// The block formats of ggml: a run of elements along the last axis that share scales. The structs are
// the bytes of the file (ggml-common.h and the GGUF documentation describe them); `d` and `m` are
// float16, q the small integers. In the 256-element "K" formats, groups of 16 or 32 elements have
// integer scales of their own, themselves scaled by d (and dmin).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/float_types.hpp"

namespace gpk::io {

struct BlockQ4_0 {  // x = d * (q - 8)
    std::uint16_t d;
    std::uint8_t qs[16];  // low halves: elements 0..15, high halves: 16..31
};
struct BlockQ4_1 {  // x = d * q + m
    std::uint16_t d, m;
    std::uint8_t qs[16];  // as Q4_0
};
struct BlockQ5_0 {  // x = d * (q - 16)
    std::uint16_t d;
    std::uint8_t qh[4];   // bit i: the fifth bit of element i
    std::uint8_t qs[16];  // the lower four, as Q4_0
};
struct BlockQ5_1 {  // x = d * q + m
    std::uint16_t d, m;
    std::uint8_t qh[4];
    std::uint8_t qs[16];
};
struct BlockQ8_0 {  // x = d * q
    std::uint16_t d;
    std::int8_t qs[32];
};
struct BlockQ2_K {            // x = d * scale * q - dmin * min, groups of 16
    std::uint8_t scales[16];  // a group's scale in the low half, its min in the high half
    std::uint8_t qs[64];      // 32 bytes hold 128 elements: bits 2k, 2k+1 of byte l are element 32 k + l
    std::uint16_t d, dmin;
};
struct BlockQ3_K {            // x = d * (scale - 32) * (q - 4), groups of 16
    std::uint8_t hmask[32];   // bit k of byte l: the third bit of element 32 k + l
    std::uint8_t qs[64];      // the lower two, as Q2_K
    std::uint8_t scales[12];  // 16 scales of 6 bits: low halves of 0..7, of 8..15, then the upper bits
    std::uint16_t d;
};
struct BlockQ4_K {  // x = d * scale * q - dmin * min, groups of 32
    std::uint16_t d, dmin;
    std::uint8_t scales[12];  // 8 scales and 8 mins of 6 bits, see group_of()
    std::uint8_t qs[128];     // 32 bytes hold two groups: the low halves, then the high halves
};
struct BlockQ5_K {  // as Q4_K
    std::uint16_t d, dmin;
    std::uint8_t scales[12];
    std::uint8_t qh[32];  // bit k of byte l: the fifth bit of element l of group k
    std::uint8_t qs[128];
};
struct BlockQ6_K {         // x = d * scale * (q - 32), groups of 16
    std::uint8_t ql[128];  // 64 bytes hold 128 elements: the low halves 0..63, the high halves 64..127
    std::uint8_t qh[64];   // 32 bytes: bits 2k, 2k+1 of byte l are the upper bits of element 32 k + l
    std::int8_t scales[16];
    std::uint16_t d;
};

static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22);
static_assert(sizeof(BlockQ5_1) == 24 && sizeof(BlockQ8_0) == 34 && sizeof(BlockQ2_K) == 84);
static_assert(sizeof(BlockQ3_K) == 110 && sizeof(BlockQ4_K) == 144 && sizeof(BlockQ5_K) == 176);
static_assert(sizeof(BlockQ6_K) == 210);

inline float half_of(std::uint16_t bits) {
    float16 value;
    value.bits = bits;
    return static_cast<float>(value);
}

template <class Block>
inline Block block_at(const std::byte* from, std::int64_t i) {
    Block block;
    std::memcpy(&block, from + i * static_cast<std::int64_t>(sizeof(Block)), sizeof(Block));
    return block;
}

inline std::uint32_t word_of(const std::uint8_t (&bytes)[4]) {
    std::uint32_t value;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
}

struct GroupOfK {
    int scale, min;
};

// Of Q4_K and Q5_K. Groups 0..3 have their 6 bits in bytes k (scale) and k + 4 (min); groups 4..7 have the
// lower four in the halves of byte k + 4 and the upper two on top of bytes k - 4 and k.
inline GroupOfK group_of(const std::uint8_t (&scales)[12], int k) {
    if (k < 4) return {scales[k] & 63, scales[k + 4] & 63};
    return {(scales[k + 4] & 15) | (scales[k - 4] >> 6 << 4), (scales[k + 4] >> 4) | (scales[k] >> 6 << 4)};
}

// `blocks` blocks at `from`, of any alignment, to float32. The values are those of ggml to the bit:
// scale times q is exact in float32, so that only the addition rounds, fused or not.
void decode_q4_0(const std::byte* from, std::int64_t blocks, float* to);
void decode_q4_1(const std::byte* from, std::int64_t blocks, float* to);
void decode_q5_0(const std::byte* from, std::int64_t blocks, float* to);
void decode_q5_1(const std::byte* from, std::int64_t blocks, float* to);
void decode_q8_0(const std::byte* from, std::int64_t blocks, float* to);
void decode_q2_k(const std::byte* from, std::int64_t blocks, float* to);
void decode_q3_k(const std::byte* from, std::int64_t blocks, float* to);
void decode_q4_k(const std::byte* from, std::int64_t blocks, float* to);
void decode_q5_k(const std::byte* from, std::int64_t blocks, float* to);
void decode_q6_k(const std::byte* from, std::int64_t blocks, float* to);

}  // namespace gpk::io
