#include "io/ggml_codes.hpp"

#include <vector>

#include "io/ggml_blocks.hpp"

namespace gpk::io {

namespace {

// `blocks` blocks: a code for each element, and of each group its scale and its offset.
using Codes = void (*)(const std::byte* from, std::int64_t blocks, std::uint8_t* codes, float* scales,
                       float* offsets);

inline std::uint8_t byte_of(int code) { return static_cast<std::uint8_t>(static_cast<std::int8_t>(code)); }

// 16 bytes of two halves: elements 0..15, then 16..31.
inline void split(const std::uint8_t* qs, int count, std::uint8_t* codes) {
    for (int l = 0; l < count; ++l) {
        codes[l] = qs[l] & 15;
        codes[l + count] = qs[l] >> 4;
    }
}
// The fifth bits.
inline void add_fifth(std::uint32_t high, std::uint8_t* codes) {
    for (int l = 0; l < 32; ++l) codes[l] |= static_cast<std::uint8_t>((high >> l & 1) << 4);
}
inline void less(int amount, int count, std::uint8_t* codes) {
    for (int l = 0; l < count; ++l) codes[l] = byte_of(codes[l] - amount);
}

void codes_q4_0(const std::byte* from, std::int64_t blocks, std::uint8_t* codes, float* scales, float*) {
    for (std::int64_t i = 0; i < blocks; ++i, codes += 32) {
        const auto block = block_at<BlockQ4_0>(from, i);
        split(block.qs, 16, codes);
        scales[i] = half_of(block.d);
    }
}

void codes_q4_1(const std::byte* from, std::int64_t blocks, std::uint8_t* codes, float* scales,
                float* offsets) {
    for (std::int64_t i = 0; i < blocks; ++i, codes += 32) {
        const auto block = block_at<BlockQ4_1>(from, i);
        split(block.qs, 16, codes);
        scales[i] = half_of(block.d);
        offsets[i] = half_of(block.m);
    }
}

void codes_q5_0(const std::byte* from, std::int64_t blocks, std::uint8_t* codes, float* scales, float*) {
    for (std::int64_t i = 0; i < blocks; ++i, codes += 32) {
        const auto block = block_at<BlockQ5_0>(from, i);
        split(block.qs, 16, codes);
        add_fifth(word_of(block.qh), codes);
        less(16, 32, codes);
        scales[i] = half_of(block.d);
    }
}

void codes_q5_1(const std::byte* from, std::int64_t blocks, std::uint8_t* codes, float* scales,
                float* offsets) {
    for (std::int64_t i = 0; i < blocks; ++i, codes += 32) {
        const auto block = block_at<BlockQ5_1>(from, i);
        split(block.qs, 16, codes);
        add_fifth(word_of(block.qh), codes);
        scales[i] = half_of(block.d);
        offsets[i] = half_of(block.m);
    }
}

void codes_q8_0(const std::byte* from, std::int64_t blocks, std::uint8_t* codes, float* scales, float*) {
    for (std::int64_t i = 0; i < blocks; ++i, codes += 32) {
        const auto block = block_at<BlockQ8_0>(from, i);
        std::memcpy(codes, block.qs, 32);
        scales[i] = half_of(block.d);
    }
}

// Scales and offsets of a block of Q4_K or Q5_K.
template <class Block>
inline void scales_of_k(const Block& block, float* scales, float* offsets) {
    const float d = half_of(block.d), dmin = half_of(block.dmin);
    for (int k = 0; k < 8; ++k) {
        const GroupOfK group = group_of(block.scales, k);
        scales[k] = d * static_cast<float>(group.scale);
        offsets[k] = -(dmin * static_cast<float>(group.min));
    }
}

void codes_q4_k(const std::byte* from, std::int64_t blocks, std::uint8_t* codes, float* scales,
                float* offsets) {
    for (std::int64_t i = 0; i < blocks; ++i) {
        const auto block = block_at<BlockQ4_K>(from, i);
        scales_of_k(block, scales + 8 * i, offsets + 8 * i);
        for (int pair = 0; pair < 4; ++pair, codes += 64) split(block.qs + pair * 32, 32, codes);
    }
}

void codes_q5_k(const std::byte* from, std::int64_t blocks, std::uint8_t* codes, float* scales,
                float* offsets) {
    for (std::int64_t i = 0; i < blocks; ++i) {
        const auto block = block_at<BlockQ5_K>(from, i);
        scales_of_k(block, scales + 8 * i, offsets + 8 * i);
        for (int pair = 0; pair < 4; ++pair, codes += 64) {
            split(block.qs + pair * 32, 32, codes);
            for (int l = 0; l < 64; ++l) {
                codes[l] |= static_cast<std::uint8_t>((block.qh[l % 32] >> (2 * pair + l / 32) & 1) << 4);
            }
        }
    }
}

void codes_q6_k(const std::byte* from, std::int64_t blocks, std::uint8_t* codes, float* scales, float*) {
    for (std::int64_t i = 0; i < blocks; ++i) {
        const auto block = block_at<BlockQ6_K>(from, i);
        const float d = half_of(block.d);
        for (int group = 0; group < 16; ++group)
            scales[16 * i + group] = d * static_cast<float>(block.scales[group]);
        for (int half = 0; half < 2; ++half, codes += 128) {
            for (int l = 0; l < 128; ++l) {
                const int low = block.ql[half * 64 + l % 64] >> (l / 64 * 4) & 15;
                const int high = block.qh[half * 32 + l % 32] >> (l / 32 * 2) & 3;
                codes[l] = byte_of((low | high << 4) - 32);
            }
        }
    }
}

void codes_q2_k(const std::byte* from, std::int64_t blocks, std::uint8_t* codes, float* scales,
                float* offsets) {
    for (std::int64_t i = 0; i < blocks; ++i, codes += 256) {
        const auto block = block_at<BlockQ2_K>(from, i);
        const float d = half_of(block.d), dmin = half_of(block.dmin);
        for (int group = 0; group < 16; ++group) {
            scales[16 * i + group] = d * static_cast<float>(block.scales[group] & 15);
            offsets[16 * i + group] = -(dmin * static_cast<float>(block.scales[group] >> 4));
        }
        for (int l = 0; l < 256; ++l) codes[l] = block.qs[l / 128 * 32 + l % 32] >> (l % 128 / 32 * 2) & 3;
    }
}

void codes_q3_k(const std::byte* from, std::int64_t blocks, std::uint8_t* codes, float* scales, float*) {
    for (std::int64_t i = 0; i < blocks; ++i, codes += 256) {
        const auto block = block_at<BlockQ3_K>(from, i);
        const float d = half_of(block.d);
        for (int group = 0; group < 16; ++group) {
            const int low = block.scales[group % 8] >> (group / 8 * 4) & 15;
            const int up = block.scales[8 + group % 4] >> (group / 4 * 2) & 3;
            scales[16 * i + group] = d * static_cast<float>((low | up << 4) - 32);
        }
        for (int l = 0; l < 256; ++l) {
            const int low = block.qs[l / 128 * 32 + l % 32] >> (l % 128 / 32 * 2) & 3;
            const int high = block.hmask[l % 32] >> (l / 32) & 1;
            codes[l] = byte_of((low | high << 2) - 4);
        }
    }
}

struct Coding {
    StoredType type;
    QuantFormat format;
    int group;
    bool offsets;
    Codes codes;
};
constexpr Coding kCodings[] = {
    {StoredType::q4_0, QuantFormat::int4, 32, false, codes_q4_0},
    {StoredType::q4_1, QuantFormat::int4, 32, true, codes_q4_1},
    {StoredType::q5_0, QuantFormat::int8, 32, false, codes_q5_0},
    {StoredType::q5_1, QuantFormat::int8, 32, true, codes_q5_1},
    {StoredType::q8_0, QuantFormat::int8, 32, false, codes_q8_0},
    {StoredType::q2_k, QuantFormat::int8, 16, true, codes_q2_k},
    {StoredType::q3_k, QuantFormat::int8, 16, false, codes_q3_k},
    {StoredType::q4_k, QuantFormat::int4, 32, true, codes_q4_k},
    {StoredType::q5_k, QuantFormat::int8, 32, true, codes_q5_k},
    {StoredType::q6_k, QuantFormat::int8, 16, false, codes_q6_k},
};

}  // namespace

std::optional<ops::CodedMatrix> coded_matrix(const TensorView& tensor, DType dtype,
                                             std::span<const std::int64_t> rows) {
    for (const Coding& coding : kCodings) {
        if (coding.type != tensor.type || tensor.shape.size() != 2 || tensor.size() == 0) continue;
        const StoredTypeInfo& stored = info(tensor.type);
        const std::int64_t blocks = tensor.shape[1] / stored.block_elements;
        const auto read = [bytes = tensor.bytes.data(), codes = coding.codes, blocks,
                           row_bytes = blocks * stored.block_bytes,
                           order = std::vector(rows.begin(), rows.end())](std::int64_t row, std::uint8_t* to,
                                                                          float* scales, float* offsets) {
            const std::int64_t from = order.empty() ? row : order[static_cast<std::size_t>(row)];
            codes(bytes + from * row_bytes, blocks, to, scales, offsets);
        };
        return ops::CodedMatrix{.format = coding.format,
                                .n = tensor.shape[0],
                                .k = tensor.shape[1],
                                .group = coding.group,
                                .offsets = coding.offsets,
                                .dtype = dtype,
                                .read = read};
    }
    return std::nullopt;
}

}  // namespace gpk::io
