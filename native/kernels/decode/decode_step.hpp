// decode_step: one token of a llama-like model in one launch (SM 90). A block stays on each multiprocessor;
// its copying warp streams the block's part of all weights, one matrix after the other, through a ring of
// shared memory and never waits for anything but room in it, while the others compute: norm, product,
// attention, product, norm, product, activation, product, and so on. What one block makes and all need goes
// through `exchange`, see decode_exchange.cuh.
//
// Everything is of float16 or bfloat16 (T below), rounded where the ops of ops/ that do the same would round.
// All blocks must run at once: the launch is cooperative.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/activation/glu.hpp"
#include "kernels/attention/rope.hpp"
#include "kernels/gemm/quantized.hpp"

namespace gpk::kernels {

struct DecodeStepLayer {
    const void* attention_norm;  // [hidden]
    const void* qkv;             // [(heads + 2 kv_heads) d, hidden]: rows of q, k, v
    const void* qkv_bias;        // biases: [rows], or null
    const void* q_norm;          // [d], or null
    const void* k_norm;
    const void* out;  // [hidden, heads * d]
    const void* out_bias;
    const void* mlp_norm;
    const void* gate_up;  // [2 intermediate, hidden]: rows of gate, then up
    const void* gate_up_bias;
    const void* down;  // [hidden, intermediate]
    const void* down_bias;
    void* keys;  // [kv_heads, capacity, d]
    void* values;
    std::int64_t left;  // keys before its own that a query sees
};

// How a matrix goes by along its rows of k elements, a multiple of 64: in pieces of kMost, the last of which
// may be shorter.
struct DecodeChunks {
    static constexpr std::int32_t kMost = 1024, kUnit = 64;
    GPK_HD static std::int32_t count(std::int32_t k) { return (k + kMost - 1) / kMost; }
};

// The codes of a quantised matrix (kernels/gemm/quantized.hpp), whose `data` is where others have their
// weights. It goes by in tiles of 16 rows, each in blocks of 128 weights along k.
inline constexpr int kDecodeCodesBlock = 128, kDecodeCodesDigits = 3;  // bytes of an element of x
struct DecodeCodes {
    const float* scales;         // of rows or of groups
    const float* offsets;        // of groups, or null
    std::int16_t bits;           // 4 or 8; 16: it has weights of T instead
    std::int16_t group;          // as QuantLayout says
    std::int16_t chunk, chunks;  // blocks of a tile that a slot holds, and how many slots it takes
    static DecodeCodes of(const QuantLayout& w);
    static constexpr DecodeCodes none() { return {nullptr, nullptr, 16, 0, 0, 0}; }
    GPK_HD QuantLayout layout(const void* data, std::int64_t n, std::int64_t k) const {
        return {
            bits == 4 ? QuantFormat::int4 : QuantFormat::int8, n, k, group, data, scales, offsets, nullptr};
    }
};
// Elements of x become digits in chunks of 256, with a record of so many bytes for each block of 128, which
// has a number for each group.
GPK_HD std::int32_t decode_chunks(std::int32_t k) {
    return (k + 2 * kDecodeCodesBlock - 1) / (2 * kDecodeCodesBlock);
}
GPK_HD std::int32_t decode_record(std::int32_t least_group) {
    return least_group >= kDecodeCodesBlock ? 8 : least_group >= 32 ? 32 : 48;
}
// Which codes a kernel is for: those that `quantize` makes at loading (int8 by the row, int4 in groups of 128
// without offsets; the head int8 or of T), or any.
enum class DecodeForm : int { int8, int4_128, any };

// A layer's matrices, in the order in which they are needed.
enum class DecodePart : int { qkv, out, gate_up, down };
inline constexpr int kDecodeParts = 4;
struct DecodeLayerCodes {
    DecodeCodes of[kDecodeParts];
};

// Words of `exchange`: where the parts begin. Each holds 32 bits beside the epoch that wrote them.
struct DecodeExchange {
    std::int64_t hidden, qkv, residual, attended, activated, partial, best, words;
};
// What of a layer's attention a block does: so many query heads of a key/value head, with the keys from begin
// to end - 1; part `split` of `splits`. heads 0: nothing.
struct DecodeUnit {
    std::int32_t splits, split, kv_head, first_head, heads, begin, end, last;
    std::int32_t count;  // units in all
    bool appends;        // its block puts the new key and value into the cache
};

// In shared memory: the layers' tables, the block's units, angles, the hidden vector (twice), parts of the
// sums of codes, then x; attention's parts lie in its place. Of codes, `records` are behind the digits of x.
struct DecodeStepShared {
    std::int64_t layers, codes, units, angles, hidden, sums, x, records, bytes;
};
struct DecodeStepParams {
    const DecodeStepLayer* layers;  // [layer_count], in device memory
    const DecodeLayerCodes* codes;  // [layer_count], where the layers' matrices are codes, else null
    DecodeCodes head_codes;
    DecodeCodes embedding_codes;  // only beside `codes`
    std::int32_t least_group;     // of all codes that are multiplied
    const void* embedding;        // [vocab, hidden]
    const void* final_norm;       // [hidden]
    const void* head;             // [vocab, hidden]
    float* logits;                // [vocab]
    std::int32_t* token;          // to go on from; outside the vocabulary it counts as zeros
    std::int32_t* position;       // its place; below 0 nothing is done
    std::int32_t* log;            // [log_size] in pinned memory, or null
    // Whether the largest logit's id, among num_tokens, becomes the token (-1 where it is not finite) and
    // goes to log[position + 1], and the position one up, as in next_token.
    bool chooses;
    std::int64_t log_size;
    std::uint64_t* exchange;  // [at.words]
    DecodeExchange at;        // decode_exchange()
    DecodeStepShared parts;   // decode_step_shared()
    std::uint32_t* epochs;    // [blocks], zero at first, and as the last launch of as many blocks left them
    RopeTable rope;           // of d / 2 pairs
    std::int32_t layer_count, hidden, heads, kv_heads, intermediate, vocab, num_tokens, capacity;
    std::int32_t max_splits;  // blocks that the keys of a head may be spread over
    std::int32_t slots;       // of the ring
    // Slots that may be on their way while the block computes, and while it waits for others: what these say
    // stands in the same queues as the weights.
    std::int32_t in_flight, in_flight_waiting;
    float norm_eps;
    float scale;  // of the products of queries and keys
    GluOp glu;
};

inline constexpr int kDecodeStepWarps = 8;  // that compute; one more keeps the copy engine busy
inline constexpr int kDecodeStepThreads = 32 * (kDecodeStepWarps + 1);
inline constexpr int kDecodeStepMostHidden = 8192;
inline constexpr int kDecodeStepQueries = 8;  // heads that a block attends with at a time
// A slot of the ring: so many rows of up to DecodeChunks::kMost elements; or the weights of a norm.
inline constexpr int kDecodeStepRows = 8;
inline constexpr int kDecodeStepPitch = 2 * DecodeChunks::kMost;
inline constexpr int kDecodeStepSlotBytes = kDecodeStepRows * kDecodeStepPitch;
static_assert(kDecodeStepSlotBytes >= 2 * kDecodeStepMostHidden);
inline constexpr int kDecodeStepMostSlots = 16, kDecodeStepLeastSlots = 4;  // and even
inline constexpr int kDecodeStepStaticBytes = 1024;  // of shared memory beside the dynamic one, at most
// A slot of the ring of codes: 16 blocks of 4 bits with a scale of each row.
inline constexpr int kDecodeCodesSlotBytes = 17 * 1024, kDecodeCodesSumBytes = 8192;
static_assert(kDecodeCodesSlotBytes >= kDecodeStepSlotBytes);

inline DecodeCodes DecodeCodes::of(const QuantLayout& w) {
    const std::int64_t blocks = (w.k + kDecodeCodesBlock - 1) / kDecodeCodesBlock;
    const std::int64_t scales = w.group == 0 ? 0 : 4 * kQuantRows * kDecodeCodesBlock / w.group;
    const std::int64_t bytes =
        kQuantRows * kDecodeCodesBlock * quant_bits(w.format) / 8 + scales * (w.offsets == nullptr ? 1 : 2);
    const std::int64_t most = kDecodeCodesSlotBytes / bytes, chunks = (blocks + most - 1) / most;
    const auto narrow = [](std::int64_t value) { return static_cast<std::int16_t>(value); };
    return {static_cast<const float*>(w.scales),    w.offsets,
            narrow(quant_bits(w.format)),           narrow(w.group),
            narrow((blocks + chunks - 1) / chunks), narrow(chunks)};
}

GPK_HD DecodeExchange decode_exchange(const DecodeStepParams& p, int d, std::int64_t blocks) {
    const std::int64_t of_heads = std::int64_t{p.heads} * d;
    DecodeExchange e;
    e.hidden = 0;
    e.residual = e.hidden + p.hidden / 2;
    e.qkv = e.residual + p.hidden / 2;
    e.attended = e.qkv + (std::int64_t{p.heads} + 2 * p.kv_heads) * d / 2;
    e.activated = e.attended + of_heads / 2;
    e.partial = e.activated + p.intermediate / 2;
    e.best = e.partial + std::int64_t{p.heads} * p.max_splits * (d + 2);
    e.words = e.best + 2 * blocks;
    return e;
}

GPK_HD DecodeStepShared decode_step_shared(const DecodeStepParams& p, int d) {
    const auto most = [](std::int64_t a, std::int64_t b) { return a > b ? a : b; };
    const auto up = [](std::int64_t bytes) { return (bytes + 127) / 128 * 128; };
    const std::int64_t of_heads = std::int64_t{p.heads} * d;
    const std::int64_t elements = most(most(p.hidden, p.intermediate), of_heads);
    const std::int64_t chunks = decode_chunks(static_cast<std::int32_t>(elements));
    const std::int64_t digits = p.codes != nullptr ? chunks * 2 * kDecodeCodesBlock * kDecodeCodesDigits : 0;
    const std::int64_t records = p.codes != nullptr ? chunks * 2 * decode_record(p.least_group) : 0;
    const std::int64_t attention = std::int64_t{kDecodeStepWarps} * kDecodeStepQueries * (d + 4) * 4 +
                                   (kDecodeStepQueries + 2) * 2 * std::int64_t{d};
    DecodeStepShared s;
    s.layers = 0;
    s.codes = up(s.layers + p.layer_count * static_cast<std::int64_t>(sizeof(DecodeStepLayer)));
    s.units = up(s.codes + (p.codes != nullptr ? p.layer_count : 0) *
                               static_cast<std::int64_t>(sizeof(DecodeLayerCodes)));
    s.angles = up(s.units + p.layer_count * static_cast<std::int64_t>(sizeof(DecodeUnit)));
    s.hidden = up(s.angles + 4 * std::int64_t{d});
    s.sums = up(s.hidden + 4 * std::int64_t{p.hidden});
    s.x = s.sums + (p.codes != nullptr ? kDecodeCodesSumBytes : 0);
    s.records = s.x + digits;
    s.bytes = up(s.x + most(most(digits + records, 2 * (elements + DecodeChunks::kUnit)), attention));
    return s;
}

// `count` things in `parts` parts that differ by one at the most, the larger ones first.
struct EvenParts {
    std::int32_t least, larger;
    EvenParts() = default;
    GPK_HD EvenParts(std::int32_t count, std::int32_t parts)
        : least(count / parts), larger(count - least * parts) {}
    GPK_HD std::int32_t begin(std::int32_t part) const {
        return part * least + (part < larger ? part : larger);
    }
};

// Of float16 or bfloat16, and heads of 64 or 128; else null. `codes`: of the layers' matrices, if they are.
const Kernel* decode_step(DType dtype, std::int64_t head_dim, std::optional<DecodeForm> codes);

#define GPK_DECODE_STEP_OF(X, T, type) X(T, type, 64) X(T, type, 128)
#define GPK_DECODE_CODES_OF(X, T, type) \
    X(T, type, 64, int8)                \
    X(T, type, 128, int8)               \
    X(T, type, 64, int4_128) X(T, type, 128, int4_128) X(T, type, 64, any) X(T, type, 128, any)
#define GPK_DECODE_CODES_BFLOAT16(X) GPK_DECODE_CODES_OF(X, ::gpk::bfloat16, bfloat16)
#define GPK_DECODE_CODES_FLOAT16(X) GPK_DECODE_CODES_OF(X, ::gpk::float16, float16)
#define GPK_DECODE_STEP_BFLOAT16(X) GPK_DECODE_STEP_OF(X, ::gpk::bfloat16, bfloat16)
#define GPK_DECODE_STEP_FLOAT16(X) GPK_DECODE_STEP_OF(X, ::gpk::float16, float16)

}  // namespace gpk::kernels
