// decode_texts: a step of up to eight texts, by the ring, the copying warp and the attention of decode_step.
//
// What differs is x. Its eight rows would not fit beside the ring, so they stay in registers: a warp has
// pieces of 32 elements of all texts, as mma.sync wants its eight columns (lane 4 g + t: 8 elements of text
// g), and multiplies these with the same elements of the weights' rows. Eight warps find eight parts of each
// sum; one of them, by turns, adds these up and goes on. So no vector is ever in shared memory, and products
// begin warp by warp, as soon as the words of its pieces came. All of a layer's products are turns of one
// loop, down's columns 2,048 at a time: instructions that are not in their cache cost more than all else.
//
// Eight texts have eight times the words, and an epoch beside each would double what the L2 cache has to
// give: vectors are bare words of two elements, in two copies for layers by turns. A word of ones is none
// yet: no two rounded numbers have these bits. Who writes a word sets its other copy back, which all have
// read by then; fences, where warps wait anyway, bring that before the next layer's words. This wants blocks
// that all have rows of every matrix. Slots without a text are columns like others, which attend to nothing
// (and then hold NaN); their logits are not written.
#pragma once

#include <utility>

#include "kernels/decode/decode_attention.cuh"
#include "kernels/decode/decode_texts.hpp"

namespace gpk::kernels {

using TextsX = uint4[kTextsPieces];

inline constexpr std::uint32_t kNoWord = 0xffffffffu;
__device__ __forceinline__ bool lacks_words(const uint4& v) {
    return max(max(v.x, v.y), max(v.z, v.w)) == kNoWord;
}
// Reads v again where words of it are not there.
__device__ __forceinline__ void peek_lacking(uint4& v, const uint4* from, bool lacks) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, "
        "[%4];\n}\n"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
        : "l"(from), "r"(static_cast<std::uint32_t>(lacks))
        : "memory");
}
__device__ __forceinline__ void put_word(std::uint32_t* to, std::uint32_t word) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}

// What was written is seen before what comes, by whoever sees that; what is read later is newer than what
// was.
__device__ __forceinline__ void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// What the warps share beside the dynamic memory.
struct DecodeTextsStatic {
    Barrier barriers[2 * kDecodeStepMostSlots];
    Barrier sums[2 * kTextsSumBuffers];  // of buffers that are full, then of those that are empty
    float squares[kDecodeStepWarps][kDecodeTexts];
    int waiting;
    int positions[kDecodeTexts];  // -1: no text
    std::uint32_t tokens[kDecodeTexts];
    DecodeShare qkv, own, gate_up, head;  // `own` has the rows of the hidden state
};
static_assert(sizeof(DecodeTextsStatic) <= kDecodeStepStaticBytes);

// What warps found of a tile: [part][warp][pair of rows][text], of two rows each.
struct DecodeTextsSums {
    float2 of[2][kDecodeStepWarps][kDecodeStepRows / 2][kDecodeTexts];
};
static_assert(sizeof(DecodeTextsSums) * kTextsSumBuffers == kTextsSumBytes);

template <class T, int D>
struct DecodeTexts {
    using Unit = DecodeTextUnit;
    const DecodeTextsParams& p;
    const DecodeTextsStatic& shared;
    const float2* of_angles;

    // Units of one text, then those of the next; without a text, units without keys.
    __device__ __forceinline__ Unit unit(std::int64_t left, int number) const {
        Unit found;
        int before = 0;
        bool is_found = false;
#pragma unroll 1
        for (int text = 0; text < kDecodeTexts; ++text) {
            const DecodeUnit unit = decode_unit<D>(p.step, shared.positions[text], left, number - before);
            if (!is_found) static_cast<DecodeUnit&>(found) = unit, found.text = text;
            is_found = is_found || number - before < unit.count;
            before += unit.count;
        }
        found.count = before;
        return found;
    }
    __device__ __forceinline__ int position(const Unit& unit) const { return shared.positions[unit.text]; }
    __device__ __forceinline__ const float2* angles(const Unit& unit) const {
        return of_angles + unit.text * (D / 2);
    }
    __device__ __forceinline__ std::int64_t cache(const Unit& unit) const { return unit.text * p.text_cache; }
    __device__ __forceinline__ std::int64_t qkv(const Unit& unit) const {
        return p.step.at.qkv + unit.text * decode_texts_qkv(p.step, D);
    }
    __device__ __forceinline__ std::int64_t partial(const Unit& unit, int head) const {
        const std::int64_t row = std::int64_t{unit.text} * p.step.heads + head;
        return p.step.at.partial + row * p.step.max_splits * (D + 2);
    }
    __device__ __forceinline__ void publish_attended(const Unit& unit, int head, int d, std::uint32_t two,
                                                     std::uint32_t epoch) const {
        put(p.at.attended, p.step.heads * D, head * D + d, unit.text, two, epoch);
    }
    __device__ __forceinline__ std::int64_t vector(std::int64_t of, int k, std::uint32_t epoch) const {
        return of + (epoch % 2 != 0 ? decode_texts_words(k) : 0);
    }
    // Elements `at` (even) and at + 1 of a text. Of four words of a thread those in the middle change places:
    // so a register pair has what one product of the thread's weights, as they lie, wants of x.
    __device__ __forceinline__ void put(std::int64_t of, int k, int at, int text, std::uint32_t two,
                                        std::uint32_t epoch) const {
        const int of_piece = at % kTextsPiece / 2, of_four = of_piece % 4;
        const int word = (at / kTextsPiece * kDecodeTexts + text) * (kTextsPiece / 2) + of_piece - of_four +
                         of_four % 2 * 2 + of_four / 2;
        std::uint32_t* to = opaque_pointer(p.vectors) + word;
        put_word(to + vector(of, k, epoch), two);
        put_word(to + vector(of, k, epoch + 1), kNoWord);
    }
};

// A turn of the loop: a layer's matrix or some columns of it.
enum class TextsTurn : int { qkv, out, gate_up, down, head };

template <class T, int D>
struct DecodeTextsKernel {
    const DecodeTextsParams& p;
    DecodeTextsStatic& shared;
    const DecodeStepLayer* layers;
    const DecodeTextUnit* units;
    std::uint32_t* own;  // [units][texts]: the block's pairs of rows of the hidden state
    float2* before;      // [tiles][threads]
    DecodeTextsSums* sums;
    const DecodeTexts<T, D> texts;
    const DecodeRing ring;
    std::uint32_t epoch;     // before this launch
    std::uint32_t next = 0;  // of the ring's slots
    std::uint32_t tile_number = 0;

    __device__ __forceinline__ static int warp() { return __shfl_sync(0xffffffffu, thread_index() / 32, 0); }

    __device__ __forceinline__ int elements_of(TextsTurn turn) const {
        return turn == TextsTurn::out    ? p.step.heads * D
               : turn == TextsTurn::down ? p.step.intermediate
                                         : p.step.hidden;
    }
    __device__ __forceinline__ const DecodeShare& share_of(TextsTurn turn) const {
        return turn == TextsTurn::qkv       ? shared.qkv
               : turn == TextsTurn::gate_up ? shared.gate_up
               : turn == TextsTurn::head    ? shared.head
                                            : shared.own;
    }
    __device__ __forceinline__ static bool has_norm(TextsTurn turn) {
        return turn != TextsTurn::out && turn != TextsTurn::down;
    }
    // turn_of(turn, layer, first column) for all that there is to multiply, in order.
    template <class Turn>
    __device__ __forceinline__ void each_turn(Turn turn_of) {
        TextsTurn turn = TextsTurn::qkv;
        int column = 0;
#pragma unroll 1
        for (int layer = 0; layer <= p.step.layer_count;) {
            if (layer == p.step.layer_count) turn = TextsTurn::head;
            turn_of(turn, layer, column);
            if (turn == TextsTurn::down) column += kTextsColumns;
            if (turn == TextsTurn::head || (turn == TextsTurn::down && column >= p.step.intermediate)) {
                ++layer, turn = TextsTurn::qkv, column = 0;
            } else if (turn != TextsTurn::down) {
                turn = static_cast<TextsTurn>(static_cast<int>(turn) + 1);
            }
        }
    }

    __device__ __forceinline__ void stream() {
        DecodeStreamOf<kTextsPitch> stream{ring, shared.waiting, static_cast<std::uint32_t>(p.step.in_flight),
                                           static_cast<std::uint32_t>(p.step.in_flight_waiting)};
        each_turn([&](TextsTurn turn, int layer, int column) {
            const bool ends = turn == TextsTurn::head;
            const DecodeStepLayer& l = layers[ends ? 0 : layer];
            if (turn == TextsTurn::qkv)
                prefetch_cache<T, D>(p.step, l, units[layer], texts.cache(units[layer]));
            const void* weights = ends                         ? p.step.head
                                  : turn == TextsTurn::qkv     ? l.qkv
                                  : turn == TextsTurn::out     ? l.out
                                  : turn == TextsTurn::gate_up ? l.gate_up
                                                               : l.down;
            if (has_norm(turn)) {
                stream.vector(ends                     ? p.step.final_norm
                              : turn == TextsTurn::qkv ? l.attention_norm
                                                       : l.mlp_norm,
                              p.step.hidden);
            }
            const int k = elements_of(turn);
            stream.columns(static_cast<const T*>(weights) + column, share_of(turn), ends ? 1 : 2,
                           turn == TextsTurn::gate_up ? 2 : 1, p.step.intermediate,
                           min(k - column, kTextsColumns), std::int64_t{2} * k);
        });
    }

    // x before anything came: zeros in the place of pieces that are not there.
    __device__ __forceinline__ static void begin(TextsX& x, int pieces) {
#pragma unroll
        for (int i = 0; i < kTextsPieces; ++i) {
            const std::uint32_t word = i * kDecodeStepWarps < pieces ? kNoWord : 0;
            x[i] = {word, word, word, word};
        }
    }
    // Asks for what lacks. Whether something did.
    __device__ __forceinline__ static bool ask(TextsX& x, const uint4* from) {
        bool lacked = false;
#pragma unroll
        for (int i = 0; i < kTextsPieces; ++i) {
            const bool lacks = lacks_words(x[i]);
            peek_lacking(x[i], from + i * kDecodeStepWarps * 32, lacks);
            lacked = lacked || lacks;
        }
        return lacked;
    }
    // Where the thread has its first of them, and how many there are from the warp's first on.
    __device__ __forceinline__ const uint4* pieces_from(std::int64_t of, int k, int column,
                                                        std::uint32_t now) const {
        const std::uint32_t* words = opaque_pointer(p.vectors) + texts.vector(of, k, now);
        return reinterpret_cast<const uint4*>(words) + (column / kTextsPiece + warp()) * 32 +
               thread_index() % 32;
    }
    __device__ __forceinline__ static int pieces_of(int k, int column) {
        return (min(k - column, kTextsColumns) / kTextsPiece) - warp();
    }
    __device__ __forceinline__ void embed(TextsX& x) const {
        const int lane = thread_index() % 32, pieces = pieces_of(p.step.hidden, 0);
        const std::uint32_t token = shared.tokens[lane / 4];
        const bool is_token = token < static_cast<std::uint32_t>(p.step.vocab);
        const auto* row = reinterpret_cast<const uint4*>(static_cast<const T*>(p.step.embedding) +
                                                         std::int64_t{is_token ? token : 0} * p.step.hidden);
        row += warp() * 4 + lane % 4;
#pragma unroll
        for (int i = 0; i < kTextsPieces; ++i) {
            const uint4 four =
                i * kDecodeStepWarps < pieces && is_token ? row[i * kDecodeStepWarps * 4] : uint4{};
            x[i] = {four.x, four.z, four.y, four.w};
        }
    }
    // The norm's weights are the ring's next slot.
    __device__ __forceinline__ void normalize(TextsX& x) {
        const int warp = this->warp(), lane = thread_index() % 32, pieces = pieces_of(p.step.hidden, 0);
        // Of the products of each two texts, those of a text with itself.
        float acc[4][4] = {};
#pragma unroll
        for (int i = 0; i < kTextsPieces; ++i) {
            multiply<T>(acc[i % 2 * 2], x[i].x, 0, x[i].y, 0, x[i].x, x[i].y);
            multiply<T>(acc[i % 2 * 2 + 1], x[i].z, 0, x[i].w, 0, x[i].z, x[i].w);
        }
        const int text = lane / 4;
        if (lane % 4 == text / 2) {
            const int j = text % 2;
            shared.squares[warp][text] = j == 0 ? (acc[0][0] + acc[1][0]) + (acc[2][0] + acc[3][0])
                                                : (acc[0][1] + acc[1][1]) + (acc[2][1] + acc[3][1]);
        }
        const DecodeRing::Place place = full_slot(ring, next++);
        computing_sync();
        float squares = 0;
#pragma unroll
        for (int w = 0; w < kDecodeStepWarps; ++w) squares += shared.squares[w][text];
        const float scale = rsqrtf(squares * (1.0f / static_cast<float>(p.step.hidden)) + p.step.norm_eps);
        const std::uint32_t weights = place.slot + 2 * (warp * kTextsPiece + lane % 4 * 8);
#pragma unroll
        for (int i = 0; i < kTextsPieces; ++i) {
            if (i * kDecodeStepWarps >= pieces) break;
            const uint4 by = load_shared(weights + i * 2 * kDecodeStepWarps * kTextsPiece);
            const uint2 even = scaled_four<T>({x[i].x, x[i].y}, {by.x, by.z}, scale);
            const uint2 odd = scaled_four<T>({x[i].z, x[i].w}, {by.y, by.w}, scale);
            x[i] = {even.x, even.y, odd.x, odd.y};
        }
        __syncwarp();
        free_slot(ring, place, kDecodeStepWarps);
    }

    // Of the slots from `next` on, one or two that hold rows of k elements: the warp's part of the sums, rows
    // lane / 4, texts 2 (lane % 4) and the one after it. The thread's weights, four words, are of one row,
    // but those of rows lane / 4 and lane / 4 + 8 as mma.sync wants them; with the elements of x that belong
    // to two of the words it makes sums of those, and with the others' in the place of the row after. `at`:
    // where the thread's weights are in a slot.
    __device__ __forceinline__ float2 multiply_slots(const TextsX& x, std::uint32_t at, int pieces,
                                                     bool two) {
        constexpr int kOfSlot = DecodeChunks::kMost / (kTextsPiece * kDecodeStepWarps);
        static_assert(2 * kOfSlot == kTextsPieces);
        const DecodeRing::Place places[2] = {full_slot(ring, next), ring.at(next + 1)};
        uint4 a[kTextsPieces];
        load_slot<0>(a, places[0].slot + at, pieces, std::make_integer_sequence<int, kOfSlot>());
        if (two) full_slot(ring, next + 1);
        load_slot<kOfSlot>(a, places[1].slot + at, pieces, std::make_integer_sequence<int, kOfSlot>());
        float acc[4][4] = {};  // each product waits for the one before into the same
#pragma unroll
        for (int j = 0; j < kTextsPieces; ++j) {
            multiply<T>(acc[j % 2 * 2], a[j].x, a[j].y, a[j].z, a[j].w, x[j].x, x[j].y);
            multiply<T>(acc[j % 2 * 2 + 1], a[j].x, a[j].y, a[j].z, a[j].w, x[j].z, x[j].w);
        }
        __syncwarp();
        free_slot(ring, places[0], kDecodeStepWarps);
        if (two) free_slot(ring, places[1], kDecodeStepWarps);
        next += two ? 2 : 1;
        return {(acc[0][0] + acc[1][2]) + (acc[2][0] + acc[3][2]),
                (acc[0][1] + acc[1][3]) + (acc[2][1] + acc[3][3])};
    }
    // What is behind a shorter chunk may be NaN.
    template <int kFirst, int... j>
    __device__ __forceinline__ static void load_slot(uint4 (&a)[kTextsPieces], std::uint32_t address,
                                                     int pieces, std::integer_sequence<int, j...>) {
        ((a[kFirst + j] = uint4{}, load_if<j * 2 * kDecodeStepWarps * kTextsPiece>(
                                       a[kFirst + j], address, (kFirst + j) * kDecodeStepWarps < pieces)),
         ...);
    }
    template <int kAhead>
    __device__ __forceinline__ static void load_if(uint4& v, std::uint32_t address, bool wanted) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.u32 p, %6, 0;\n@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4+%5];\n}\n"
            : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
            : "r"(address), "n"(kAhead), "r"(static_cast<std::uint32_t>(wanted)));
    }

    // What becomes of the sums of rows `row` and row + 1, and of the ups that belong to them, of a text.
    // `left`: rows that are there.
    __device__ __forceinline__ void finish(TextsTurn turn, int row, int left, int text, float2 sum, float2 up,
                                           float4 bias, std::uint32_t now) {
        const DecodeStepParams& step = p.step;
        if (turn == TextsTurn::head) {
            if (shared.positions[text] < 0) return;
            float* to = step.logits + std::int64_t{text} * step.vocab + row;
            to[0] = sum.x;
            if (left > 1) to[1] = sum.y;
            return;
        }
        sum.x += bias.x, sum.y += bias.y;
        if (turn == TextsTurn::gate_up) {
            up.x += bias.z, up.y += bias.w;
#pragma unroll 1
            for (int i = 0; i < 2; ++i) sum = {sum.y, gated<T>(step.glu, sum.x, up.x)}, up.x = up.y;
        } else if (turn != TextsTurn::qkv) {
            const float2 mine = unpack_pair<T>(own[(row / 2 - shared.own.first) * kDecodeTexts + text]);
            sum.x = mine.x + rounded<T>(sum.x), sum.y = mine.y + rounded<T>(sum.y);
        }
        const std::uint32_t two = pack_pair<T>(sum.x, sum.y);
        if (turn == TextsTurn::qkv) {
            publish(opaque_pointer(step.exchange) + step.at.qkv + text * decode_texts_qkv(step, D) + row / 2,
                    two, now);
            return;
        }
        if (turn != TextsTurn::gate_up) own[(row / 2 - shared.own.first) * kDecodeTexts + text] = two;
        const bool is_hidden = turn == TextsTurn::down;
        texts.put(is_hidden                    ? p.at.hidden
                  : turn == TextsTurn::gate_up ? p.at.activated
                                               : p.at.residual,
                  turn == TextsTurn::gate_up ? step.intermediate : step.hidden, row, text, two, now);
    }

    __device__ __forceinline__ float4 bias_of(TextsTurn turn, const DecodeStepLayer& l, int row,
                                              int left) const {
        if (turn == TextsTurn::head) return {};
        const void* bias = turn == TextsTurn::qkv       ? l.qkv_bias
                           : turn == TextsTurn::out     ? l.out_bias
                           : turn == TextsTurn::gate_up ? l.gate_up_bias
                                                        : l.down_bias;
        const float2 first = pair_of(static_cast<const T*>(bias), row, left);
        const float2 second = pair_of(static_cast<const T*>(bias), p.step.intermediate + row,
                                      turn == TextsTurn::gate_up ? left : 0);
        return {first.x, first.y, second.x, second.y};
    }

    // A warp's part of a tile's sums, [rows][texts] over its lanes, for the one that adds them up.
    __device__ __forceinline__ void give(float2 found, float2 gate, bool gates, int warp, int lane) {
        const std::uint32_t buffer = tile_number % kTextsSumBuffers;
        const std::uint32_t full = shared_address(&shared.sums[buffer]);
        bulk_wait(full + 8 * kTextsSumBuffers, tile_number / kTextsSumBuffers % 2 ^ 1);
        auto* to = reinterpret_cast<float*>(&sums[buffer].of[0][warp][lane / 8][lane % 4 * 2]) + lane / 4 % 2;
        to[0] = found.x, to[2] = found.y;
        if (gates) {
            to += sizeof sums->of[0] / sizeof(float);
            to[0] = gate.x, to[2] = gate.y;
        }
        __syncwarp();
        if (lane == 0) bulk_arrive(full);
        ++tile_number;
    }
    __device__ __forceinline__ float2
    sum_of(const float2 (&of)[kDecodeStepWarps][kDecodeStepRows / 2][kDecodeTexts]) const {
        const int lane = thread_index() % 32;
        float2 sum{};
#pragma unroll
        for (int w = 0; w < kDecodeStepWarps; ++w) {
            const float2 of_warp = of[w][lane / kDecodeTexts][lane % kDecodeTexts];
            sum.x += of_warp.x, sum.y += of_warp.y;
        }
        return sum;
    }
    __device__ __forceinline__ void multiply_turn(const TextsX& x, TextsTurn turn, int layer, int column,
                                                  std::uint32_t now) {
        const DecodeShare share = share_of(turn);
        const int k = elements_of(turn), of_unit = turn == TextsTurn::head ? 1 : 2;
        const bool gates = turn == TextsTurn::gate_up, ends = k - column <= kTextsColumns;
        const int of_warp = warp(), lane = thread_index() % 32, pieces = pieces_of(k, column);
        const bool two = k - column > DecodeChunks::kMost;
        const auto at =
            static_cast<std::uint32_t>(lane / 4 * kTextsPitch + of_warp * 2 * kTextsPiece + lane % 4 * 16);
        // A tile is finished when the next one was multiplied, so that nobody waits for who does that.
#pragma unroll 1
        for (int tile = 0; tile <= share.tiles; ++tile) {
            const std::uint32_t number = tile_number - 1;
            if (tile < share.tiles) {
                float2 gate{}, found{};
#pragma unroll 1
                for (int part = 0; part < (gates ? 2 : 1); ++part)
                    gate = found, found = multiply_slots(x, at, pieces, two);
                if (turn == TextsTurn::down) {
                    float2& others = before[tile * kComputing + thread_index()];
                    if (column > 0) found.x += others.x, found.y += others.y;
                    if (!ends) {
                        others = found;
                        continue;
                    }
                }
                give(found, gate, gates, of_warp, lane);
            } else if (!ends) {
                continue;
            }
            if (tile == 0 || static_cast<int>(number % kDecodeStepWarps) != of_warp) continue;
            const int text = lane % kDecodeTexts;
            const int row = share.begin(tile - 1) * of_unit + 2 * (lane / kDecodeTexts);
            const int left = share.begin(tile) * of_unit - row;
            const float4 bias = bias_of(turn, layers[turn == TextsTurn::head ? 0 : layer], row, left);
            const std::uint32_t buffer = number % kTextsSumBuffers;
            const std::uint32_t full = shared_address(&shared.sums[buffer]);
            bulk_wait(full, number / kTextsSumBuffers % 2);
            float2 sum = sum_of(sums[buffer].of[0]), up{};
            if (gates) up = sum, sum = sum_of(sums[buffer].of[1]);
            __syncwarp();
            if (lane == 0) bulk_arrive(full + 8 * kTextsSumBuffers);
            if (left > 0) finish(turn, row, left, text, sum, up, bias, now);
        }
    }

    __device__ __forceinline__ void compute() {
        TextsX x, ahead;
        each_turn([&](TextsTurn turn, int layer, int column) {
            const DecodeStepParams& step = p.step;
            const std::uint32_t now = epoch + 1 + static_cast<std::uint32_t>(layer);
            if (layer == 0 && turn == TextsTurn::qkv) {
                embed(x);
            } else {
                const bool is_hidden = turn == TextsTurn::qkv || turn == TextsTurn::head;
                const int k = elements_of(turn), pieces = pieces_of(k, column);
                const uint4* from = pieces_from(turn == TextsTurn::out       ? p.at.attended
                                                : turn == TextsTurn::gate_up ? p.at.residual
                                                : is_hidden                  ? p.at.hidden
                                                                             : p.at.activated,
                                                k, column, is_hidden ? now - 1 : now);
                if (column > 0) {
#pragma unroll
                    for (int i = 0; i < kTextsPieces; ++i) x[i] = ahead[i];
                } else {
                    if (thread_index() == 0) shared.waiting = 1;
                    begin(x, pieces);
                    // One lane of a warp asks until there is something, and not all the time: askers delay
                    // the words.
                    if (thread_index() % 32 == 0 && pieces > 0) {
                        for (uint4 first = x[0]; lacks_words(first); __nanosleep(32))
                            peek_lacking(first, from, true);
                    }
                    __syncwarp();
                }
#pragma unroll 1
                while (ask(x, from)) {
                }
                __syncwarp();
                if (thread_index() == 0) shared.waiting = 0;
                if (!has_norm(turn) && column == 0) fence_device();
                if (turn == TextsTurn::down) {
                    begin(ahead, pieces_of(k, column + kTextsColumns));
                    ask(ahead, from + kTextsColumns / kTextsPiece * 32);
                }
            }
            if (has_norm(turn)) normalize(x);
            multiply_turn(x, turn, layer, column, now);
            if (turn != TextsTurn::qkv) return;
            computing_sync();  // attention's parts lie in the place of the sums
            decode_attend<T, D>(step, layers[layer], units[layer],
                                *reinterpret_cast<DecodeScratch<T, D>*>(sums), texts, now);
        });
    }
};

template <class T, int D>
__device__ __forceinline__ void decode_texts(const DecodeTextsParams& p) {
    __shared__ DecodeTextsStatic shared;
    extern __shared__ __align__(128) unsigned char dynamic[];
    wait_for_predecessor();
    const DecodeStepParams& step = p.step;
    const int thread = thread_index();
    const std::uint32_t epoch = step.epochs[blockIdx.x];
    int position = -1;
    if (thread < kDecodeTexts) {
        if (thread < p.texts) position = step.position[thread];
        shared.positions[thread] = max(position, -1);
        shared.tokens[thread] = position >= 0 ? static_cast<std::uint32_t>(step.token[thread]) : kNoWord;
    }
    if (thread < step.slots) {
        barrier_init(shared.barriers[thread], 1);
        barrier_init(shared.barriers[kDecodeStepMostSlots + thread], kDecodeStepWarps);
        barrier_init_fence();
    }
    if (thread < kTextsSumBuffers) {
        barrier_init(shared.sums[thread], kDecodeStepWarps);
        barrier_init(shared.sums[kTextsSumBuffers + thread], 1);
        barrier_init_fence();
    }
    if (thread == 0) shared.waiting = 0;
    const DecodeTextsShared& parts = p.parts;
    unsigned char* beside = dynamic + step.slots * kTextsSlotBytes;
    auto* layers = reinterpret_cast<DecodeStepLayer*>(beside + parts.layers);
    const auto words = step.layer_count * static_cast<int>(sizeof(DecodeStepLayer) / 8);
    for (int i = thread; i < words; i += kTextsThreads)
        reinterpret_cast<std::uint64_t*>(layers)[i] = reinterpret_cast<const std::uint64_t*>(step.layers)[i];
    switch (kTextsThreads - 1 - thread) {
        case 0: shared.qkv = DecodeShare::of<StepRows::pairs>((step.heads + 2 * step.kv_heads) * D, 0); break;
        case 1: shared.own = DecodeShare::of<StepRows::pairs>(step.hidden, 37); break;
        case 2: shared.gate_up = DecodeShare::of<StepRows::gated>(step.intermediate, 90); break;
        case 3: shared.head = DecodeShare::of<StepRows::single>(step.vocab, 0); break;
    }
    if (__syncthreads_or(position >= 0) == 0) return;
    auto* angles = reinterpret_cast<float2*>(beside + parts.angles);
    const DecodeTexts<T, D> texts{p, shared, angles};
    auto* units = reinterpret_cast<DecodeTextUnit*>(beside + parts.units);
    for (int i = thread; i < step.layer_count; i += kTextsThreads)
        units[i] = texts.unit(step.layers[i].left, static_cast<int>(blockIdx.x));
    for (int i = thread; i < kDecodeTexts * (D / 2); i += kTextsThreads)
        angles[i] = angle_of(step, shared.positions[i / (D / 2)], i % (D / 2));
    auto* own = reinterpret_cast<std::uint32_t*>(beside + parts.own);
    for (int i = thread; i < shared.own.count * kDecodeTexts; i += kTextsThreads) {
        const std::uint32_t token = shared.tokens[i % kDecodeTexts];
        const auto* row = reinterpret_cast<const std::uint32_t*>(static_cast<const T*>(step.embedding) +
                                                                 std::int64_t{token} * step.hidden);
        const bool is_token = token < static_cast<std::uint32_t>(step.vocab);
        own[i] = is_token ? row[shared.own.first + i / kDecodeTexts] : 0;
    }
    __syncthreads();
    DecodeTextsKernel<T, D> kernel{
        p,
        shared,
        layers,
        units,
        own,
        reinterpret_cast<float2*>(beside + parts.before),
        reinterpret_cast<DecodeTextsSums*>(beside + parts.sums),
        texts,
        DecodeRing{shared_address(dynamic), shared_address(shared.barriers),
                   static_cast<std::uint32_t>(step.slots), kTextsSlotBytes, kDecodeStepWarps,
                   DecodeRing::inverse_of(static_cast<std::uint32_t>(step.slots))},
        epoch};
    const int warp = kernel.warp();
    if (warp >= kDecodeStepWarps) {
        give_registers<kTextsFewRegisters>();
        if (warp == kDecodeStepWarps) kernel.stream();
        return;
    }
    take_registers<kTextsManyRegisters>();
    kernel.compute();
    if (thread_index() == 0) step.epochs[blockIdx.x] = epoch + static_cast<std::uint32_t>(step.layer_count);
}

#define GPK_DECODE_TEXTS_SYMBOL(T, type, d)                                       \
    extern "C" __global__ void __launch_bounds__(kTextsThreads, 1)                \
        decode_texts_##type##_d##d(const __grid_constant__ DecodeTextsParams p) { \
        decode_texts<T, d>(p);                                                    \
    }

}  // namespace gpk::kernels
