// decode_step's products with quantised weights (kernels/gemm/quantized.hpp), tiles of 16 rows.
//
// Codes are bytes, and the tensor cores multiply bytes: what has to be made of bytes is x
// (decode_digits.cuh), whose digits are columns of mma.sync's second operand. Their sums are whole numbers,
// exact; a group's are multiplied by its scale and added up in float32. So a code costs no instruction in 8
// bits, and in 4 a quarter of one: the low nibbles of a word are four codes, and so are the high ones, times
// 16, for which their x is made 16 times smaller. Offsets, and the 8 that codes of four bits have too much,
// are multiplied by the sums of x of their groups.
#pragma once

#include "kernels/decode/decode_digits.cuh"

namespace gpk::kernels {

// Of rows g and g + 8, what a lane has: the sums of its two digits, and what comes of offsets.
struct DecodeCodeSums {
    float of[2] = {}, offsets[2] = {};
};

// d += a b
template <bool kFourBits>
__device__ __forceinline__ void multiply_bytes(std::int32_t (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                               std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                               std::uint32_t b1) {
    if constexpr (kFourBits) {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
}
__device__ __forceinline__ std::uint32_t word_of(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
__device__ __forceinline__ float load_shared_float(std::uint32_t address) {
    return __uint_as_float(load_shared_word(address));
}

// 16 bytes, or zeros.
__device__ __forceinline__ uint4 load_shared_where(std::uint32_t address, bool where) {
    uint4 words;
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\nmov.u32 %0, 0;\nmov.u32 %1, 0;\nmov.u32 %2, 0;\nmov.u32 "
        "%3, "
        "0;\n@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n}\n"
        : "=&r"(words.x), "=&r"(words.y), "=&r"(words.z), "=&r"(words.w)
        : "r"(address), "r"(static_cast<std::uint32_t>(where)));
    return words;
}
// Whether a phase is over, at once or soon.
__device__ __forceinline__ bool bulk_try(std::uint32_t barrier, std::uint32_t parity) {
    std::uint32_t done;
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
}

// How a matrix of codes goes by: see DecodeCodes.
struct DecodeCodesShape {
    int blocks, steps, block_steps, block_bytes, scale_bytes;  // the last two of a block
    __device__ __forceinline__ DecodeCodesShape(const DecodeCodes& c, int k)
        : blocks((k + kDecodeCodesBlock - 1) / kDecodeCodesBlock),
          steps(c.bits == 4 ? blocks : (k + 63) / 64),
          block_steps(c.bits == 4 ? 1 : 2),
          block_bytes(block_steps * kQuantTileBytes),
          scale_bytes(c.group == 0 ? 0 : 64 * kDecodeCodesBlock / c.group) {}
};

// Where a lane reads: of the slot's first block the codes, scales and offsets, and of x that goes with it the
// digits and the records.
struct DecodeCodesPlace {
    std::uint32_t codes, scales, offsets, digits, records, sums;
    // Of block i.
    __device__ __forceinline__ DecodeCodesPlace at(int i, int block_bytes, int scale_bytes,
                                                   std::uint32_t record) const {
        const auto block = static_cast<std::uint32_t>(i);
        const std::uint32_t of_scales = block * static_cast<std::uint32_t>(scale_bytes);
        return {codes + block * static_cast<std::uint32_t>(block_bytes),
                scales + of_scales,
                offsets + of_scales,
                digits + block * DecodeDigits::kBlock,
                records + block * record,
                sums + block * record};
    }
};

// A block of 128 along k of a tile, in which kOfGroup units of 32 share a scale; 4 also where a whole row
// does, whose scale comes later. `halves`: two groups in a unit; the second one's are columns 4 to 7.
// kPaired: a record is two numbers, that are read at once.
template <bool kFourBits, int kOfGroup, bool kScaled, bool kPaired>
struct DecodeCodesBlock {
    static constexpr int kGroups = 4 / kOfGroup, kPieces = kFourBits ? 2 : 4;
    uint4 codes[kPieces], x[2];
    float factor, sums[kGroups], scales[kGroups][2], offsets[kGroups][2];

    // `groups`: of the block, less where k ends. `has_sums`: there are offsets, or codes have four bits.
    __device__ __forceinline__ void read(const DecodeCodesPlace& at, bool has_sums, bool has_offsets,
                                         bool halves, int groups, int lane) {
#pragma unroll
        for (int i = 0; i < kPieces; ++i) codes[i] = load_shared(at.codes + 512 * i);
        // Three columns are used, of either half: what others would read takes shared memory's time.
        const int half = lane % 4 / 2, column = lane / 4;
        const bool used = column % 4 < 3 && column / 4 == (kOfGroup == 1 && halves ? half : 0);
#pragma unroll
        for (int i = 0; i < 2; ++i) x[i] = load_shared_where(at.digits + DecodeDigits::kPair * i, used);
        if constexpr (kPaired && kFourBits) {
            float record[2];
            load_shared_pair(at.records, record);
            factor = record[0], sums[0] = record[1];
        } else {
            factor = load_shared_float(at.records);
        }
#pragma unroll
        for (int e = 0; e < kGroups; ++e) {
            const int group = kOfGroup == 1 && halves ? 2 * e + half : e;
            if constexpr (!kPaired) sums[e] = has_sums ? load_shared_float(at.sums + 4 * group) : 0.0f;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                if constexpr (!kScaled) {
                    scales[e][h] = 1, offsets[e][h] = 0;
                } else {
                    const float scale = load_shared_float(at.scales + 64 * group + 32 * h);
                    const bool there = kFourBits || e < groups;
                    scales[e][h] = there ? scale : 0.0f;
                    offsets[e][h] = scale;
                    if (has_offsets) {
                        const float offset = load_shared_float(at.offsets + 64 * group + 32 * h);
                        offsets[e][h] = there ? offset : 0.0f;
                    }
                }
            }
        }
    }
    // `next`: what the second of a lane's columns counts.
    __device__ __forceinline__ void multiply(DecodeCodeSums& to, std::int32_t next, bool has_sums) const {
        float of[2] = {};
#pragma unroll
        for (int e = 0; e < kGroups; ++e) {
            std::int32_t acc[4] = {};
#pragma unroll
            for (int i = 0; i < kOfGroup; ++i) {
                const int u = e * kOfGroup + i;
                const std::uint32_t b0 = word_of(x[u / 2], u % 2 * 2), b1 = word_of(x[u / 2], u % 2 * 2 + 1);
                if constexpr (kFourBits) {
                    const std::uint32_t low = word_of(codes[0], u), high = word_of(codes[1], u);
                    multiply_bytes<true>(acc, low & 0x0f0f0f0fu, high & 0x0f0f0f0fu, low & 0xf0f0f0f0u,
                                         high & 0xf0f0f0f0u, b0, b1);
                } else {
                    const uint4 &low = codes[u / 2 * 2], &high = codes[u / 2 * 2 + 1];
                    multiply_bytes<false>(acc, word_of(low, u % 2 * 2), word_of(high, u % 2 * 2),
                                          word_of(low, u % 2 * 2 + 1), word_of(high, u % 2 * 2 + 1), b0, b1);
                }
            }
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const auto digits = static_cast<float>(acc[2 * h + 1] * next + acc[2 * h]);
                of[h] = kGroups == 1 ? digits : fmaf(digits, scales[e][h], of[h]);
                if (has_sums) to.offsets[h] = fmaf(offsets[e][h], sums[e], to.offsets[h]);
            }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float by = kGroups == 1 && kScaled ? scales[0][h] * factor : factor;
            to.of[h] = fmaf(of[h], by, to.of[h]);
        }
    }
};

// A block's tiles of a matrix of n rows (of a gated one, of gates).
__device__ __forceinline__ DecodeShare share_of_codes(int n, int turn) {
    const int blocks = static_cast<int>(gridDim.x), block = (static_cast<int>(blockIdx.x) + turn) % blocks;
    const EvenParts all((n + kQuantRows - 1) / kQuantRows, blocks);
    DecodeShare share;
    share.first = all.begin(block);
    share.count = share.tiles = all.begin(block + 1) - share.first;
    return share;
}

// By the copying warp. Of a gated matrix the tiles of gates and those of ups come by turns. A slot has the
// codes of `chunk` blocks, their scales and their offsets.
template <DecodeForm kForm>
__device__ __forceinline__ void stream_codes(DecodeStream& stream, const void* data, const DecodeCodes& codes,
                                             const DecodeShare& share, bool gated, int n, int k) {
    const DecodeCodes c = codes_known<kForm>(codes);
    const DecodeCodesShape shape(c, k);
    const int most = c.chunk * shape.block_steps, scale_bytes = shape.scale_bytes / shape.block_steps;
    const std::uint32_t scales_at = c.chunk * shape.block_bytes,
                        offsets_at = scales_at + c.chunk * shape.scale_bytes;
    const bool has_scales = scale_bytes != 0, has_offsets = has_scales && c.offsets != nullptr;
    const int bytes = kQuantTileBytes + (has_offsets ? 2 : 1) * scale_bytes;
#pragma unroll 1
    for (int i = 0; i < (gated ? 2 : 1) * share.count; ++i) {
        const int tile = gated ? share.first + i / 2 + i % 2 * (n / kQuantRows) : share.first + i;
#pragma unroll 1
        for (int step = 0; step < shape.steps; step += most) {
            const auto count = static_cast<std::uint32_t>(min(most, shape.steps - step));
            const std::int64_t first = std::int64_t{tile} * shape.steps + step;
            const DecodeRing::Place place = stream.take();
            if (elect_one()) {
                bulk_expect(place.barrier, count * bytes);
                bulk_load(place.slot, static_cast<const char*>(data) + first * kQuantTileBytes,
                          count * kQuantTileBytes, place.barrier);
                const auto load = [&](const float* from, std::uint32_t to) {
                    bulk_load(place.slot + to, reinterpret_cast<const char*>(from) + first * scale_bytes,
                              count * scale_bytes, place.barrier);
                };
                if (has_scales) load(c.scales, scales_at);
                if (has_offsets) load(c.offsets, offsets_at);
            }
            __syncwarp();
        }
    }
}

// Tiles whose sums are added up at a time, and who has parts of them.
inline constexpr int kDecodeCodesTiles = 8;
using DecodeCodesParts = float[kDecodeCodesTiles][kDecodeStepWarps][kQuantRows];
static_assert(2 * sizeof(DecodeCodesParts) == kDecodeCodesSumBytes);

// Where a warp is.
struct DecodeCodesState {
    std::uint32_t next;         // slot of the ring
    int begin = 0, passed = 0;  // blocks of the tile, and in all, before that slot
    DecodeCodeSums sums[2];
    __device__ __forceinline__ void pass(int blocks, int of_tile) {
        passed += blocks, begin += blocks;
        if (begin == of_tile) begin = 0;
    }
};

// What products with a matrix have in common.
template <DecodeForm kForm>
struct DecodeCodesProduct {
    const DecodeCodes c;
    const DecodeCodesShape shape;
    const DecodeDigits x;
    const std::uint32_t thread = static_cast<std::uint32_t>(thread_index());
    const int lane = static_cast<int>(thread % 32), warp = static_cast<int>(thread / 32);
    const std::uint32_t row, digits;  // where the lane's are: of a group's rows, and of x
    const std::int32_t next_digit;

    __device__ __forceinline__ DecodeCodesProduct(const DecodeCodes& codes, const DecodeDigits& x, int k)
        : c(codes_known<kForm>(codes)),
          shape(c, k),
          x(x),
          row(static_cast<std::uint32_t>(lane) / 4 * 4),
          digits(x.words + min(static_cast<std::uint32_t>(lane) / 4 % 4, 2u) * DecodeDigits::kPart +
                 static_cast<std::uint32_t>(lane) % 4 * 16),
          next_digit(lane % 2 == 0 ? 256 : 0) {}

    // Of block `block` of a slot whose first one is the tile's block `begin`.
    __device__ __forceinline__ DecodeCodesPlace at(std::uint32_t slot, int begin, int block) const {
        const std::uint32_t scales = slot + static_cast<std::uint32_t>(c.chunk * shape.block_bytes) + row;
        const std::uint32_t records = x.records + static_cast<std::uint32_t>(begin) * x.record;
        const DecodeCodesPlace first{slot + static_cast<std::uint32_t>(lane) * 16,
                                     scales,
                                     scales + static_cast<std::uint32_t>(c.chunk * shape.scale_bytes),
                                     digits + static_cast<std::uint32_t>(begin) * DecodeDigits::kBlock,
                                     records,
                                     records + x.sums_at()};
        return first.at(block, shape.block_bytes, shape.scale_bytes, x.record);
    }
    template <bool kFourBits, int kOfGroup, bool kScaled = true>
    __device__ __forceinline__ void multiply_one(DecodeCodeSums& sums, const DecodeCodesPlace& at,
                                                 int groups) const {
        DecodeCodesBlock<kFourBits, kOfGroup, kScaled, false> block;
        block.read(at, x.sums, x.offsets, c.group == 16, groups, lane);
        block.multiply(sums, next_digit, x.sums);
    }
    // A block of any codes; `units` of 32 along k that it has, or more.
    __device__ __forceinline__ void multiply_any(DecodeCodeSums& sums, const DecodeCodesPlace& at,
                                                 int units) const {
        if (x.four_bits) {
            if (c.group == 32) {
                multiply_one<true, 1>(sums, at, units);
            } else if (c.group == 64) {
                multiply_one<true, 2>(sums, at, units);
            } else {
                multiply_one<true, 4>(sums, at, units);
            }
        } else if (c.group == 0) {
            multiply_one<false, 4, false>(sums, at, units);
        } else if (c.group == 64) {
            multiply_one<false, 2>(sums, at, units / 2);
        } else {
            multiply_one<false, 1>(sums, at, units);
        }
    }

    __device__ __forceinline__ int slot_blocks(int begin) const {
        return min(static_cast<int>(c.chunk), shape.blocks - begin);
    }

    // Slots at a time: a warp goes through its instructions one after the other, each some clocks after the
    // one before, so that it should have several blocks in its hands.
    static constexpr int kBlocksOfSlot = kForm == DecodeForm::int4_128 ? 2 : 1;  // that a warp has, at most
    static constexpr int kSlots = kForm == DecodeForm::any ? 1 : 2;
    static_assert(kDecodeCodesSlotBytes / (kQuantTileBytes + 4 * kQuantRows) <= 2 * kDecodeStepWarps &&
                  kDecodeCodesSlotBytes / (2 * kQuantTileBytes) <= kDecodeStepWarps);

    // The next kCount slots; the first half is added to the first sums.
    template <int kCount>
    __device__ __forceinline__ void multiply_slots(DecodeCodesState& state, const DecodeRing& ring) const {
        using Block = DecodeCodesBlock<kForm == DecodeForm::int4_128, 4, kForm == DecodeForm::int4_128, true>;
        constexpr bool kSums = kForm == DecodeForm::int4_128;
        Block blocks[kCount][kBlocksOfSlot];
        DecodeRing::Place places[kCount];
#pragma unroll
        for (int i = 0; i < kCount; ++i) places[i] = ring.at(state.next + i);
        // All are asked for before the first answer is needed.
        bool full = true;
#pragma unroll
        for (int i = 0; i < kCount; ++i) full = bulk_try(places[i].barrier, places[i].parity) && full;
        if (!full) {
#pragma unroll
            for (int i = 0; i < kCount; ++i) bulk_wait(places[i].barrier, places[i].parity);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const int here = slot_blocks(state.begin);
            const int first = (warp - state.passed) & (kDecodeStepWarps - 1);
#pragma unroll
            for (int j = 0; j < kBlocksOfSlot; ++j) {
                // One that is not there is another one, times zero.
                const int block = first + j * kDecodeStepWarps;
                const bool there = block < here;
                blocks[i][j].read(at(places[i].slot, state.begin, there ? block : 0), kSums, false, false, 4,
                                  lane);
                blocks[i][j].factor = there ? blocks[i][j].factor : 0.0f;
                if (kSums) blocks[i][j].sums[0] = there ? blocks[i][j].sums[0] : 0.0f;
            }
            state.pass(here, shape.blocks);
        }
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
#pragma unroll
            for (int j = 0; j < kBlocksOfSlot; ++j)
                blocks[i][j].multiply(state.sums[2 * i >= kCount && kCount > 1], next_digit, kSums);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kCount; ++i) free_slot(ring, places[i], kDecodeStepWarps);
        state.next += kCount;
    }
    // A slot of any codes.
    __device__ __forceinline__ void multiply_slot(DecodeCodesState& state, const DecodeRing& ring) const {
        const DecodeRing::Place place = full_slot(ring, state.next++);
        const int here = slot_blocks(state.begin);
        const int units = (shape.steps - state.begin * shape.block_steps) * (4 / shape.block_steps);
#pragma unroll 1
        for (int block = (warp - state.passed) & (kDecodeStepWarps - 1); block < here;
             block += kDecodeStepWarps)
            multiply_any(state.sums[0], at(place.slot, state.begin, block), units - 4 * block);
        state.pass(here, shape.blocks);
        __syncwarp();
        free_slot(ring, place, kDecodeStepWarps);
    }
    // Whether two tiles go at a time.
    __device__ __forceinline__ bool pairs() const { return 2 * c.chunks <= kSlots; }

    // One tile or two: sums of rows g and g + 8 of the first one to the lanes of t = 0, of the second one to
    // those of t = 1.
    __device__ __forceinline__ float2 multiply_tiles(DecodeCodesState& state, const DecodeRing& ring,
                                                     bool two) const {
        state.sums[0] = state.sums[1] = DecodeCodeSums{};
        int left = two ? 2 * c.chunks : c.chunks;
        if constexpr (kForm == DecodeForm::any) {
#pragma unroll 1
            for (; left > 0; --left) multiply_slot(state, ring);
        } else {
#pragma unroll 1
            for (; left >= kSlots; left -= kSlots) multiply_slots<kSlots>(state, ring);
            if (left > 0) multiply_slots<1>(state, ring);
        }
        float of[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float each[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const DecodeCodeSums& sums = state.sums[i];
                each[i] = lane % 2 == 0 ? sums.of[h] + sums.offsets[h] : sums.of[h] * 65536.0f;
            }
            if (!two) each[0] += each[1];
            each[0] += __shfl_xor_sync(0xffffffffu, each[0], 1);
            if constexpr (kForm == DecodeForm::any) {
                if (c.group == 16) each[0] += __shfl_xor_sync(0xffffffffu, each[0], 2);
                of[h] = each[0];
            } else {
                each[1] += __shfl_xor_sync(0xffffffffu, each[1], 1);
                of[h] = lane % 2 != 0 ? each[1] : each[0];
            }
        }
        return {of[0], of[1]};
    }
};

// Calls rows.store(row, there, extra, sum) once for each row of the block (where `gated` with gate and up
// instead of the sum), on the first four warps, so that a lane has an even row and the next lane the one
// after it; also for rows that are not there. extra = rows.early(row, there) is asked for before the sums are
// known.
template <DecodeForm kForm, bool kMayBeGated, class Rows>
__device__ __forceinline__ void multiply_codes(const DecodeRing& ring, std::uint32_t& next,
                                               DecodeCodesParts* parts, const DecodeDigits& x,
                                               const DecodeCodes& in_shared,
                                               const DecodeShare& share_in_shared, bool is_gated, int n,
                                               int k, const Rows& rows) {
    const bool gated = kMayBeGated && is_gated;
    const int of_unit = gated ? 2 : 1, most_units = kDecodeCodesTiles / of_unit;
    const DecodeCodesProduct<kForm> product(in_shared, x, k);
    const int share_first = share_in_shared.first, share_count = share_in_shared.count;
    const auto thread = static_cast<std::uint32_t>(thread_index());
    const int warp = static_cast<int>(thread / 32), lane = static_cast<int>(thread % 32);
    const int own_tile = static_cast<int>(thread / kQuantRows), own_unit = gated ? own_tile / 2 : own_tile;
    const int own_row = static_cast<int>(thread % kQuantRows);
    DecodeCodesState state{next};
    int buffer = 0;
#pragma unroll 1
    for (int unit = 0; unit < share_count; unit += most_units, buffer ^= 1) {
        const int tiles = min(most_units, share_count - unit) * of_unit;
        const int row = (share_first + unit + own_unit) * kQuantRows + own_row;
        const bool there = own_tile < tiles && row < n && (!gated || own_tile % 2 == 0);
        float of_row = 1;
        if (product.c.group == 0 && own_tile < tiles && row < n)
            of_row = product.c.scales[row + (gated && own_tile % 2 != 0 ? n : 0)];
        const auto extra = rows.early(row, there);
#pragma unroll 1
        for (int tile = 0; tile < tiles;) {
            const bool two = product.pairs() && tile + 1 < tiles;
            const float2 sums = product.multiply_tiles(state, ring, two);
            if (lane % 4 <= two) {
                float* to = parts[buffer][tile + lane % 4][warp] + lane / 4;
                to[0] = sums.x, to[8] = sums.y;
            }
            tile += 1 + two;
        }
        computing_sync();
        if (thread < kQuantRows * kDecodeCodesTiles) {
            float sum = 0;
            if (own_tile < tiles) {
#pragma unroll
                for (int w = 0; w < kDecodeStepWarps; ++w) sum += parts[buffer][own_tile][w][own_row];
            }
            sum *= of_row;
            __syncwarp();
            if (!gated) {
                rows.store(row, there, extra, sum);
            } else if constexpr (kMayBeGated) {
                rows.store(row, there, extra, sum, __shfl_down_sync(0xffffffffu, sum, kQuantRows));
            }
        }
    }
    next = state.next;
}

// A lane has an even row and the next one that after it.
template <class T>
struct PublishCodes {
    DecodeSink<T> sink;
    __device__ __forceinline__ float2 early(int row, bool there) const {
        if (sink.bias == nullptr || !there) return {};
        return {float(sink.bias[row]), sink.ups != 0 ? float(sink.bias[sink.ups + row]) : 0.0f};
    }
    __device__ __forceinline__ void put(int row, bool there, float value) const {
        const float next = __shfl_down_sync(0xffffffffu, value, 1);
        if (there && row % 2 == 0) sink.publish_two(row, value, next);
    }
    __device__ __forceinline__ void store(int row, bool there, float2 extra, float sum) const {
        sum += extra.x;
        if (sink.to != nullptr && there) sum = float(sink.to[row]) + rounded<T>(sum);
        put(row, there, sum);
    }
    __device__ __forceinline__ void store(int row, bool there, float2 extra, float gate, float up) const {
        put(row, there, there ? gated<T>(sink.glu, gate + extra.x, up + extra.y) : 0.0f);
    }
};
template <class Store>
struct StoreLogits {
    const Store& put;
    __device__ __forceinline__ int early(int, bool) const { return 0; }
    __device__ __forceinline__ void store(int row, bool there, int, float sum) const {
        if (there) put(row, sum);
    }
};

// Layers of codes; the head of codes or of T.
template <class T, int D, DecodeForm kForm>
struct DecodeCodesKernel : DecodeStepOrder<T, D, DecodeCodesKernel<T, D, kForm>> {
    using Order = DecodeStepOrder<T, D, DecodeCodesKernel<T, D, kForm>>;
    static constexpr DecodeForm kHeadForm = kForm == DecodeForm::any ? DecodeForm::any : DecodeForm::int8;
    using Order::p, Order::shared, Order::next, Order::x, Order::ring;
    static constexpr int kSlotBytes = kDecodeCodesSlotBytes, kArrivals = kDecodeStepWarps;

    __device__ __forceinline__ const DecodeCodes& codes(int i, DecodePart part) const {
        return this->template at<DecodeLayerCodes>(p.parts.codes)[i].of[static_cast<int>(part)];
    }
    __device__ __forceinline__ DecodeDigits digits(const DecodeCodes& c) const {
        const std::uint32_t words = shared_address(x());
        return {words, words + static_cast<std::uint32_t>(p.parts.records - p.parts.x),
                kForm == DecodeForm::any ? static_cast<std::uint32_t>(decode_record(p.least_group)) : 8, c};
    }
    __device__ __forceinline__ DecodeCodesParts* sums() const {
        return this->template at<DecodeCodesParts>(p.parts.sums);
    }
    __device__ __forceinline__ bool plain_head() const { return p.head_codes.bits == 16; }

    __device__ __forceinline__ void share() {
        switch (kDecodeStepThreads - 1 - thread_index()) {
            case 0: shared.shares[0] = share_of_codes((p.heads + 2 * p.kv_heads) * D, 0); break;
            case 1: shared.shares[1] = share_of_codes(p.hidden, 37); break;
            case 2: shared.shares[2] = share_of_codes(p.intermediate, 74); break;
            case 3: shared.shares[3] = share_of_codes(p.hidden, 111); break;
            case 4:
                shared.head =
                    plain_head() ? DecodeShare::of<StepRows::single>(p.vocab, 0) : share_of_codes(p.vocab, 0);
                break;
        }
    }
    __device__ __forceinline__ void stream_rows(DecodeStream& stream, const void* data, int i,
                                                DecodePart part, int k) const {
        const DecodeCodes& codes =
            this->template known<const DecodeLayerCodes>(p.parts.codes)[i].of[static_cast<int>(part)];
        stream_codes<kForm>(stream, data, codes, shared.share(part), part == DecodePart::gate_up,
                            p.intermediate, k);
    }
    __device__ __forceinline__ void stream_head(DecodeStream& stream) const {
        if (plain_head()) {
            stream.weights(p.head, shared.head, 1, 1, 0, p.hidden);
        } else {
            stream_codes<kHeadForm>(stream, p.head, p.head_codes, shared.head, false, p.vocab, p.hidden);
        }
    }
    __device__ __forceinline__ void norm_for(const DecodeCodes& c, const T* from, float squares) {
        const DecodeDigitsWriter<false> to(digits(c));
        normalize_each<T>(
            ring(), next, shared, reinterpret_cast<const uint4*>(from), squares, p.hidden,
            decode_chunks(p.hidden) * 32, p.norm_eps,
            [&](int i, const uint4& eight) { to.template put<T>(eight, static_cast<std::uint32_t>(i) / 32); },
            [] { computing_sync(); });
        ++next;
    }
    __device__ __forceinline__ void norm(int i, DecodePart part, const T* from, float squares) {
        norm_for(codes_known<kForm>(codes(i, part)), from, squares);
    }
    __device__ __forceinline__ void take_x(int i, DecodePart part, std::int64_t words, std::uint32_t now) {
        const int k = shared.product(part).k;
        const DecodeDigitsWriter<true> to(digits(codes_known<kForm>(codes(i, part))));
        if (thread_index() == 0) shared.waiting = 1;
        receive_eights(opaque_pointer(p.exchange) + words, k / 4, decode_chunks(k), now,
                       [&](const uint4& eight, int chunk) {
                           to.template put<T>(eight, static_cast<std::uint32_t>(chunk));
                       });
        if (thread_index() == 0) shared.waiting = 0;
    }
    __device__ __forceinline__ void finish(int, DecodePart) { computing_sync(); }
    __device__ __forceinline__ void multiply(int i, DecodePart part, std::uint32_t now) {
        const DecodeProduct& m = shared.product(part);
        multiply_codes<kForm, true>(ring(), next, sums(), digits(codes_known<kForm>(codes(i, part))),
                                    codes(i, part), shared.share(part), part == DecodePart::gate_up, m.n, m.k,
                                    PublishCodes<T>{this->sink(i, part, now)});
    }
    template <class Store>
    __device__ __forceinline__ void head(float squares, Store store) {
        if (plain_head()) return multiply_plain_head<T>(*this, squares, store);
        norm_for(codes_known<kHeadForm>(p.head_codes), this->hidden(), squares);
        multiply_codes<kHeadForm, false>(ring(), next, sums(), digits(codes_known<kHeadForm>(p.head_codes)),
                                         p.head_codes, shared.head, false, p.vocab, p.hidden,
                                         StoreLogits<Store>{store});
    }
};

#define GPK_DECODE_CODES_SYMBOL(T, type, d, form)                                        \
    extern "C" __global__ void __launch_bounds__(kDecodeStepThreads, 1)                  \
        decode_step_##form##_##type##_d##d(const __grid_constant__ DecodeStepParams p) { \
        decode_codes_step<T, d, DecodeCodesKernel<T, d, DecodeForm::form>>(p);           \
    }

}  // namespace gpk::kernels
