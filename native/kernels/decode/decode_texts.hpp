// decode_texts: a token each of 2 to 8 texts of a llama-like model in one launch (SM 90). As decode_step: the
// same ring of weights, the same order of things; see decode_texts.cuh for what eight texts change.
#pragma once

#include "kernels/decode/decode_step.hpp"

namespace gpk::kernels {

inline constexpr int kDecodeTexts = 8;
// Vectors of all texts lie in pieces of 32 elements: those of the first text, then those of the next. Warps
// have pieces by turns, in registers, so many at a time: of up to 2,048 elements.
inline constexpr int kTextsPiece = 32, kTextsPieces = 8;
inline constexpr int kTextsColumns = kTextsPiece * kTextsPieces * kDecodeStepWarps;
// The product with what was activated goes by columns of so many, if it has more.
inline constexpr int kTextsMostIntermediate = 4 * kTextsColumns;
// A warpgroup for the warp that copies, so that the others get most of its registers.
inline constexpr int kTextsThreads = 32 * (kDecodeStepWarps + 4);
inline constexpr int kTextsFewRegisters = 40, kTextsManyRegisters = 232;
// Rows of a slot begin in other banks.
inline constexpr int kTextsPitch = kDecodeStepPitch + 64;
inline constexpr int kTextsSlotBytes = kDecodeStepRows * kTextsPitch;
static_assert(kTextsSlotBytes >= 2 * kTextsColumns);
inline constexpr int kTextsSumBuffers = 4;
inline constexpr int kTextsSumBytes =
    kTextsSumBuffers * 2 * kDecodeStepWarps * kDecodeStepRows * kDecodeTexts * 4;

// Where vectors begin among the words of 32 bits that blocks exchange; each is there twice.
struct DecodeTextsVectors {
    std::int64_t hidden, residual, attended, activated, words;
};
// In shared memory, behind the ring: the layers' table, the block's units, angles, the block's rows of the
// hidden state, what each thread found of these by the columns before, and what warps found of a tile's sums,
// in whose place attention has its parts.
struct DecodeTextsShared {
    std::int64_t layers, units, angles, own, before, sums, bytes;
};
struct DecodeTextUnit : DecodeUnit {
    std::int32_t text;
};

struct DecodeTextsParams {
    // token, position: [texts], logits: [texts, vocab]; keys and values are those of the first text. Its
    // exchange has qkv of all texts and what splits found, `parts` and what chooses are not used.
    DecodeStepParams step;
    DecodeTextsVectors at;
    DecodeTextsShared parts;
    std::uint32_t* vectors;   // [at.words], ~0 at first, and as the last launch of as many blocks left them
    std::int64_t text_cache;  // elements from the keys of a text to those of the next
    std::int32_t texts;
};

GPK_HD std::int64_t decode_texts_qkv(const DecodeStepParams& p, int d) {
    return (std::int64_t{p.heads} + 2 * p.kv_heads) * d / 2;
}
// Of the words with epochs: qkv, then partial.
GPK_HD DecodeExchange decode_texts_exchange(const DecodeStepParams& p, int d) {
    DecodeExchange e{};
    e.partial = e.qkv + kDecodeTexts * decode_texts_qkv(p, d);
    e.words = e.partial + std::int64_t{kDecodeTexts} * p.heads * p.max_splits * (d + 2);
    return e;
}
GPK_HD std::int64_t decode_texts_words(std::int64_t k) { return kDecodeTexts * k / 2; }
GPK_HD DecodeTextsVectors decode_texts_vectors(const DecodeStepParams& p, int d) {
    DecodeTextsVectors v;
    v.hidden = 0;
    v.residual = v.hidden + 2 * decode_texts_words(p.hidden);
    v.attended = v.residual + 2 * decode_texts_words(p.hidden);
    v.activated = v.attended + 2 * decode_texts_words(std::int64_t{p.heads} * d);
    v.words = v.activated + 2 * decode_texts_words(p.intermediate);
    return v;
}
GPK_HD DecodeTextsShared decode_texts_shared(const DecodeStepParams& p, int d, std::int64_t blocks) {
    const auto up = [](std::int64_t bytes) { return (bytes + 127) / 128 * 128; };
    const std::int64_t attention = std::int64_t{kDecodeStepWarps} * kDecodeStepQueries * (d + 2) * 4 +
                                   (kDecodeStepQueries + 2) * 2 * std::int64_t{d};
    DecodeTextsShared s;
    s.layers = 0;
    s.units = up(s.layers + p.layer_count * static_cast<std::int64_t>(sizeof(DecodeStepLayer)));
    s.angles = up(s.units + p.layer_count * static_cast<std::int64_t>(sizeof(DecodeTextUnit)));
    s.own = up(s.angles + std::int64_t{kDecodeTexts} * 4 * d);
    const std::int64_t units = (p.hidden / 2 + blocks - 1) / blocks;
    s.before = up(s.own + units * kDecodeTexts * 4);
    s.sums = up(s.before + (2 * units + kDecodeStepRows - 1) / kDecodeStepRows * 256 * kDecodeStepWarps);
    s.bytes = up(s.sums + (attention > kTextsSumBytes ? attention : kTextsSumBytes));
    return s;
}

// Of float16 or bfloat16, and heads of 64 or 128; else null.
const Kernel* decode_texts(DType dtype, std::int64_t head_dim);

#define GPK_DECODE_TEXTS_BFLOAT16(X) X(::gpk::bfloat16, bfloat16, 64) X(::gpk::bfloat16, bfloat16, 128)
#define GPK_DECODE_TEXTS_FLOAT16(X) X(::gpk::float16, float16, 64) X(::gpk::float16, float16, 128)

}  // namespace gpk::kernels
