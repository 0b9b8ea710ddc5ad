// decode_step's products with quantised weights (kernels/gemm/quantized.hpp), tiles of 16 rows.
//
// Codes are bytes, and the tensor cores multiply bytes: what has to be made of bytes is x. Of each block of
// 128 elements the largest sets a power of two, by which they become whole numbers of up to 29 bits: four
// signed digits, that are four of the eight columns of mma.sync's second operand. Their sums are whole
// numbers, exact; a block's (or a group's) are multiplied by its scale and added up in float32. So a code
// costs no instruction in 8 bits, and in 4 a quarter of one: the low nibbles of a word are four codes, and so
// are the high ones, times 16, for which their x is made 16 times smaller. Offsets, and the 8 that codes of
// four bits have too much, are multiplied by the sums of x of their groups.
//
// What 27 bits beside the largest of 128 elements leave out is less than what float32 sums do.
#pragma once

#include "kernels/decode/decode_codes_order.cuh"
#include "kernels/gemm/quantized.hpp"

namespace gpk::kernels {

// What a kernel knows of the codes before it runs, so that it is shorter and branches less.
template <DecodeForm kForm>
__device__ __forceinline__ DecodeCodes codes_known(DecodeCodes codes) {
    if constexpr (kForm != DecodeForm::any) {
        codes.bits = kForm == DecodeForm::int4_128 ? 4 : 8;
        codes.group = kForm == DecodeForm::int4_128 ? 128 : 0;
        codes.offsets = nullptr;
    }
    return codes;
}

// Where a product's x lies in shared memory, as digits: of blocks of 128 elements [2 pairs of units of 32][4
// digits][4 t][2 units][2 words]; and of groups what a sum of digits is multiplied by, and the sum of x.
struct DecodeDigits {
    std::uint32_t words, groups;
    bool four_bits, sums;  // whether the codes are, and whether sums of x are needed
    std::uint32_t quads;   // fours of elements that a group has
    __device__ __forceinline__ DecodeDigits(std::uint32_t words, std::uint32_t groups, const DecodeCodes& c)
        : words(words),
          groups(groups),
          four_bits(c.bits == 4),
          sums(four_bits || c.offsets != nullptr),
          quads(c.group == 0 ? 32 : static_cast<std::uint32_t>(c.group) / 4) {}
};
// What a thread writes of them.
struct DecodeDigitsWriter {
    DecodeDigits to;
    bool odd, of_group;  // whether it is an odd lane, and whether it writes a group's two numbers
    __device__ __forceinline__ explicit DecodeDigitsWriter(const DecodeDigits& digits) : to(digits) {
        const auto thread = static_cast<std::uint32_t>(thread_index()), lane = thread % 32;
        odd = lane % 2 != 0;
        of_group = lane % to.quads == 0;
        to.words += thread / 32 * 512 + lane / 16 * 256 + lane / 2 % 4 * 16 + lane / 8 % 2 * 8 + lane % 2 * 4;
        to.groups += thread / to.quads * 8;
    }
    template <class T>
    __device__ __forceinline__ void put(uint2 four, int index) const;
};

__device__ __forceinline__ std::uint32_t larger_halves(std::uint32_t a, std::uint32_t b) {
    std::uint32_t larger;
    asm("max.u16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    return larger;
}
template <int kBytes>
__device__ __forceinline__ std::uint32_t permuted(float a, float b) {
    return __byte_perm(__float_as_uint(a), __float_as_uint(b), kBytes);
}

// Four elements of x, from 4 * index on; on all lanes of a warp, index being the thread's plus a multiple of
// kComputing.
template <class T>
__device__ __forceinline__ void DecodeDigitsWriter::put(uint2 four, int index) const {
    const std::uint32_t round = static_cast<std::uint32_t>(index) / kComputing;
    if (to.four_bits) {  // of eight elements the even lane takes 0, 1, 4, 5, which are low nibbles
        const std::uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? four.x : four.y, 1);
        (odd ? four.x : four.y) = other;
    }
    const float2 first = unpack_two<T>(four.x), second = unpack_two<T>(four.y);
    const std::uint32_t largest_of = larger_halves(four.x & 0x7fff7fffu, four.y & 0x7fff7fffu);
    const std::uint32_t largest = __reduce_max_sync(0xffffffffu, max(largest_of & 0xffffu, largest_of >> 16));
    const std::uint32_t exponent = max(29u, __float_as_uint(unpack_two<T>(largest).x) >> 23);
    // 2^13 over the largest one's power of two; so x is below 2^14, then its rest below 2^14 of 2^-15.
    const float scale = __uint_as_float((267 - exponent - (to.four_bits && odd ? 4 : 0)) << 23);
    // Numbers this large have neighbours 1 apart; the low byte comes out 128 too large, so that the next one
    // is what is left with a signed low byte.
    constexpr float kRound = 12582912.0f + 128.0f;
    const float x[4] = {first.x, first.y, second.x, second.y};
    float high[4], low[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        high[e] = fmaf(x[e], scale, kRound);
        low[e] = fmaf(fmaf(x[e], scale, kRound - high[e]), 32768.0f, kRound);
    }
    const std::uint32_t at = to.words + round * (kComputing / 32 * 512);
#pragma unroll
    for (int part = 0; part < 2; ++part) {  // bytes of elements 0, 2, 1, 3, as those of a word of codes
        const float (&of)[4] = part == 0 ? low : high;
        const std::uint32_t even = permuted<0x5140>(of[0], of[2]), uneven = permuted<0x5140>(of[1], of[3]);
        const std::uint32_t digits = __byte_perm(even, uneven, 0x5410) ^ 0x80808080u;
        const std::uint32_t next = __byte_perm(even, uneven, 0x7632);
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(at + 128 * part), "r"(digits) : "memory");
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(at + 128 * part + 64), "r"(next) : "memory");
    }
    float sum = 0;
    if (to.sums) {
        sum = (x[0] + x[1]) + (x[2] + x[3]);
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, sum, step);
            sum += step < to.quads ? other : 0.0f;
        }
    }
    if (of_group) {
        const float factor = exponent == 255 ? NAN : __uint_as_float((exponent - 28) << 23);
        asm volatile(
            "st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to.groups + round * (kComputing / to.quads * 8)),
            "f"(factor), "f"(sum)
            : "memory");
    }
}

// Sums of a lane: of rows g and g + 8 the columns 2 t and 2 t + 1, and what comes of offsets.
struct DecodeCodeSums {
    float of[4] = {}, offsets[2] = {};
};

// d = a b + c
template <bool kFourBits>
__device__ __forceinline__ void multiply_bytes(std::uint32_t (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                               std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                               std::uint32_t b1, const std::uint32_t (&c)[4]) {
    if constexpr (kFourBits) {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%10, %11, %12, %13};"
            : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]),
              "r"(c[3]));
    } else {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%10, %11, %12, %13};"
            : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]),
              "r"(c[3]));
    }
}
__device__ __forceinline__ std::uint32_t word_of(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
__device__ __forceinline__ float load_shared_float(std::uint32_t address) {
    return __uint_as_float(load_shared_word(address));
}

// What a lane reads of the blocks of 128 along k of a tile, and how groups of kOfGroup units of 32 share a
// scale; of a whole row, none is applied here.
template <bool kFourBits, int kOfGroup>
struct DecodeCodesReader {
    static constexpr int kGroups = 4 / kOfGroup, kPieces = kFourBits ? 2 : 4;
    bool scaled, offsets, halves;  // halves: two groups in a unit

    struct Block {
        uint4 codes[kPieces], x[2];
        float of_x[kGroups][2], scales[kGroups][2], offsets[kGroups][2];
    };
    // Addresses of the lane; `here` whether the block counts. `groups`: of it, less where k ends.
    __device__ __forceinline__ Block read(std::uint32_t codes, std::uint32_t scales_at,
                                          std::uint32_t offsets_at, std::uint32_t x, std::uint32_t of_x,
                                          int lane, bool here, int groups) const {
        Block block;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) block.codes[i] = load_shared(codes + 512 * i);
#pragma unroll
        for (int i = 0; i < 2; ++i) block.x[i] = load_shared(x + 256 * i);
        const int half = lane % 4 / 2;
        if (kOfGroup == 1 && halves && lane / 16 != half) block.x[0] = block.x[1] = uint4{};
#pragma unroll
        for (int e = 0; e < kGroups; ++e) {
            const int group = kOfGroup == 1 && halves ? 2 * e + half : e;
            const bool there = here && (kOfGroup == 4 || e < groups);
            load_shared_pair(of_x + 8 * group, block.of_x[e]);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float scale = 1, offset = 0;
                if (scaled) scale = load_shared_float(scales_at + 64 * group + 32 * h);
                if (kFourBits) offset = scale * -8.0f;
                if (offsets) offset = load_shared_float(offsets_at + 64 * group + 32 * h);
                block.scales[e][h] = there ? scale : 0.0f;
                block.offsets[e][h] = there ? offset : 0.0f;
            }
        }
        return block;
    }
    __device__ __forceinline__ static void multiply(DecodeCodeSums& sums, const Block& block) {
        // The whole number 0 where floats are whole numbers; sums stay below 2^22.
        constexpr std::uint32_t kZero[4] = {0x4b400000u, 0x4b400000u, 0x4b400000u, 0x4b400000u},
                                kNone[4] = {};
        constexpr float kZeroFloat = 12582912.0f;
#pragma unroll
        for (int e = 0; e < kGroups; ++e) {
            std::uint32_t acc[4], other[4];
#pragma unroll
            for (int i = 0; i < kOfGroup; ++i) {
                const int u = e * kOfGroup + i;
                const std::uint32_t b0 = word_of(block.x[u / 2], u % 2 * 2),
                                    b1 = word_of(block.x[u / 2], u % 2 * 2 + 1);
                std::uint32_t a[4];
                if constexpr (kFourBits) {
                    const std::uint32_t low = word_of(block.codes[0], u), high = word_of(block.codes[1], u);
                    a[0] = low & 0x0f0f0f0fu, a[1] = high & 0x0f0f0f0fu;
                    a[2] = low & 0xf0f0f0f0u, a[3] = high & 0xf0f0f0f0u;
                } else {
                    const uint4 &low = block.codes[u / 2 * 2], &high = block.codes[u / 2 * 2 + 1];
                    a[0] = word_of(low, u % 2 * 2), a[1] = word_of(high, u % 2 * 2);
                    a[2] = word_of(low, u % 2 * 2 + 1), a[3] = word_of(high, u % 2 * 2 + 1);
                }
                // Two chains, so that one need not wait for the other.
                std::uint32_t (&to)[4] = i % 2 == 0 ? acc : other;
                if (i < 2) {
                    multiply_bytes<kFourBits>(to, a[0], a[1], a[2], a[3], b0, b1, i == 0 ? kZero : kNone);
                } else {
                    multiply_bytes<kFourBits>(to, a[0], a[1], a[2], a[3], b0, b1, to);
                }
            }
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float factor = block.scales[e][h] * block.of_x[e][0];
#pragma unroll
                for (int j = 2 * h; j < 2 * h + 2; ++j) {
                    const std::uint32_t sum = kOfGroup == 1 ? acc[j] : acc[j] + other[j];
                    sums.of[j] += (__uint_as_float(sum) - kZeroFloat) * factor;
                }
                sums.offsets[h] += block.offsets[e][h] * block.of_x[e][1];
            }
        }
    }
};

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

// A chunk of a tile: the blocks from `block` on that a warp has, every kDecodeStepWarps-th. Returns the first
// that lies behind the chunk.
struct DecodeCodesChunk {
    std::uint32_t codes, scales, offsets, x, of_x;  // addresses of block 0, of the lane
    int block_bytes, scale_bytes, group_bytes;      // from one block to the next
    int blocks, units;                              // units: of k from block 0 on
};
template <bool kFourBits, int kOfGroup>
__device__ __forceinline__ auto read_block(const DecodeCodes& c, const DecodeCodesChunk& at, int i, int lane,
                                           bool counts) {
    const DecodeCodesReader<kFourBits, kOfGroup> reader{c.group != 0, c.offsets != nullptr, c.group == 16};
    return reader.read(at.codes + i * at.block_bytes, at.scales + i * at.scale_bytes,
                       at.offsets + i * at.scale_bytes, at.x + i * 512, at.of_x + i * at.group_bytes, lane,
                       counts, (at.units - 4 * i) / kOfGroup);
}
template <bool kFourBits, int kOfGroup>
__device__ __forceinline__ int multiply_chunk(DecodeCodeSums& sums, const DecodeCodes& c,
                                              const DecodeCodesChunk& at, int block, int lane) {
    using Reader = DecodeCodesReader<kFourBits, kOfGroup>;
    const auto read = [&](int i, bool counts) {
        return read_block<kFourBits, kOfGroup>(c, at, i, lane, counts);
    };
#pragma unroll 1
    while (block < at.blocks) {
        if constexpr (kFourBits && kOfGroup == 4) {  // two at a time
            const bool two = block + kDecodeStepWarps < at.blocks;
            const auto first = read(block, true), second = read(two ? block + kDecodeStepWarps : block, two);
            Reader::multiply(sums, first);
            Reader::multiply(sums, second);
            block += two ? 2 * kDecodeStepWarps : kDecodeStepWarps;
        } else {
            Reader::multiply(sums, read(block, true));
            block += kDecodeStepWarps;
        }
    }
    return block;
}

// A block's tiles of a matrix of n rows (of a gated one, of gates).
__device__ __forceinline__ DecodeShare share_of_codes(int n, int turn) {
    const int blocks = static_cast<int>(gridDim.x), block = (static_cast<int>(blockIdx.x) + turn) % blocks;
    const EvenParts all((n + kQuantRows - 1) / kQuantRows, blocks);
    DecodeShare share;
    share.first = all.begin(block);
    share.count = share.tiles = all.begin(block + 1) - share.first;
    return share;
}

// By the copying warp. Of a gated matrix the tiles of gates and those of ups come by turns.
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

// Calls rows.store(row, there, extra, sum) once for each row of the block (where `gated` with gate and up
// instead of the sum), on the first four warps, so that a lane has an even row and the next lane the one
// after it; also for rows that are not there. extra = rows.early(row, there) is asked for before the sums are
// known.
template <DecodeForm kForm, bool kMayBeGated, class Rows>
__device__ __forceinline__ void multiply_codes(const DecodeRing& ring, std::uint32_t& next,
                                               DecodeCodesParts* parts, std::uint32_t words,
                                               std::uint32_t groups, const DecodeCodes& in_shared,
                                               const DecodeShare& share_in_shared, bool is_gated, int n,
                                               int k, const Rows& rows) {
    const bool gated = kMayBeGated && is_gated;
    const int of_unit = gated ? 2 : 1, most_units = kDecodeCodesTiles / of_unit;
    const DecodeCodes c = codes_known<kForm>(in_shared);
    const DecodeCodesShape shape(c, k);
    const int share_first = share_in_shared.first, share_count = share_in_shared.count;
    const int thread = thread_index();
    const auto unsigned_thread = static_cast<std::uint32_t>(thread);
    const int warp = static_cast<int>(unsigned_thread / 32), lane = static_cast<int>(unsigned_thread % 32);
    const int g = static_cast<int>(unsigned_thread % 32 / 4), t = static_cast<int>(unsigned_thread % 4);
    const int own_tile = thread / kQuantRows;
    const std::uint32_t x_at = words + g % 4 * 64 + t * 16;
    const int of_group = c.group == 0 || c.group == 128 ? 4 : c.group == 64 ? 2 : 1;
    const int groups_of_block = c.group == 0 ? 1 : kDecodeCodesBlock / c.group;
    int buffer = 0;
#pragma unroll 1
    for (int unit = 0; unit < share_count; unit += most_units, buffer ^= 1) {
        const int tiles = min(most_units, share_count - unit) * of_unit;
        const int row = (share_first + unit + own_tile / of_unit) * kQuantRows + thread % kQuantRows;
        const bool is_row = own_tile < tiles && row < n;
        const bool there = is_row && (!gated || own_tile % 2 == 0);
        float of_row = 1;
        if (c.group == 0 && is_row) of_row = c.scales[row + (gated && own_tile % 2 != 0 ? n : 0)];
        const auto extra = rows.early(row, there);
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile) {
            DecodeCodeSums sums;
            int block = (warp - tile * shape.blocks) & (kDecodeStepWarps - 1);  // of the chunk
            int begin = 0;
            const auto chunk_at = [&](const DecodeRing::Place& place, int here) {
                const std::uint32_t scales = place.slot + c.chunk * shape.block_bytes + 4 * g;
                return DecodeCodesChunk{place.slot + lane * 16,
                                        scales,
                                        scales + c.chunk * shape.scale_bytes,
                                        x_at + (here > 0 ? begin : 0) * 512,
                                        groups + (here > 0 ? begin : 0) * groups_of_block * 8,
                                        shape.block_bytes,
                                        shape.scale_bytes,
                                        groups_of_block * 8,
                                        here,
                                        (shape.steps - begin * shape.block_steps) * (4 / shape.block_steps)};
            };
            if constexpr (kForm == DecodeForm::int8) {
                // A slot has one block for a warp: two slots at a time.
#pragma unroll 1
                for (int chunk = 0; chunk < c.chunks; chunk += 2) {
                    const bool two = chunk + 1 < c.chunks;
                    const auto read = [&](const DecodeRing::Place& place, int here) {
                        const bool has = block < here;
                        const auto read =
                            read_block<false, 4>(c, chunk_at(place, here), has ? block : 0, lane, has);
                        block += (has ? kDecodeStepWarps : 0) - here;
                        begin += here;
                        return read;
                    };
                    const auto first =
                        read(full_slot(ring, next), min(static_cast<int>(c.chunk), shape.blocks - begin));
                    const auto second = read(full_slot(ring, next + two),
                                             two ? min(static_cast<int>(c.chunk), shape.blocks - begin) : 0);
                    DecodeCodesReader<false, 4>::multiply(sums, first);
                    DecodeCodesReader<false, 4>::multiply(sums, second);
                    __syncwarp();
                    free_slot(ring, ring.at(next), kDecodeStepWarps);
                    if (two) free_slot(ring, ring.at(next + 1), kDecodeStepWarps);
                    next += 1 + two;
                }
            } else {
#pragma unroll 1
                for (int chunk = 0; chunk < c.chunks; ++chunk) {
                    const int here = min(static_cast<int>(c.chunk), shape.blocks - begin);
                    const DecodeRing::Place place = full_slot(ring, next++);
                    const DecodeCodesChunk at = chunk_at(place, here);
                    if (c.bits == 4) {
                        block = of_group == 4   ? multiply_chunk<true, 4>(sums, c, at, block, lane)
                                : of_group == 2 ? multiply_chunk<true, 2>(sums, c, at, block, lane)
                                                : multiply_chunk<true, 1>(sums, c, at, block, lane);
                    } else {
                        block = of_group == 4   ? multiply_chunk<false, 4>(sums, c, at, block, lane)
                                : of_group == 2 ? multiply_chunk<false, 2>(sums, c, at, block, lane)
                                                : multiply_chunk<false, 1>(sums, c, at, block, lane);
                    }
                    block -= here;
                    begin += here;
                    __syncwarp();
                    free_slot(ring, place, kDecodeStepWarps);
                }
            }
            // Digits of a lane's columns; those of t 2 and 3 are others' copies, or the second halves'
            // groups.
            const bool counts = t < 2 || c.group == 16;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float sum = fmaf(sums.of[2 * h + 1], 256.0f, sums.of[2 * h]);
                sum = t % 2 == 0 ? sum + sums.offsets[h] : sum * 32768.0f;
                if (!counts) sum = 0;
                sum += __shfl_xor_sync(0xffffffffu, sum, 1);
                sum += __shfl_xor_sync(0xffffffffu, sum, 2);
                if (t == 0) parts[buffer][tile][warp][g + 8 * h] = sum;
            }
        }
        computing_sync();
        if (thread < kQuantRows * kDecodeCodesTiles) {
            float sum = 0;
            if (own_tile < tiles) {
#pragma unroll
                for (int w = 0; w < kDecodeStepWarps; ++w)
                    sum += parts[buffer][own_tile][w][thread % kQuantRows];
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
        return {words, words + static_cast<std::uint32_t>(p.parts.groups - p.parts.x), c};
    }
    __device__ __forceinline__ DecodeCodesParts* sums() const {
        return this->template at<DecodeCodesParts>(p.parts.sums);
    }
    __device__ __forceinline__ static int padded(int k) {
        return (k + kDecodeCodesBlock - 1) / kDecodeCodesBlock * (kDecodeCodesBlock / 4);
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
    __device__ __forceinline__ void norm_for(const DecodeCodes& c, const T* from) {
        const DecodeDigitsWriter to(digits(c));
        normalize_each<T>(
            ring(), next, shared, reinterpret_cast<const uint2*>(from), p.hidden, padded(p.hidden),
            p.norm_eps, [&](int i, const uint2& four) { to.template put<T>(four, i); },
            [] { computing_sync(); });
        ++next;
    }
    __device__ __forceinline__ void norm(int i, DecodePart part, const T* from) {
        norm_for(codes_known<kForm>(codes(i, part)), from);
    }
    __device__ __forceinline__ void take_x(int i, DecodePart part, std::int64_t words, std::uint32_t now) {
        const int k = shared.product(part).k;
        const DecodeDigitsWriter to(digits(codes_known<kForm>(codes(i, part))));
        if (thread_index() == 0) shared.waiting = 1;
        receive_each(opaque_pointer(p.exchange) + words, k / 4, padded(k), now,
                     [&](int index, const uint2& four) { to.template put<T>(four, index); });
        if (thread_index() == 0) shared.waiting = 0;
    }
    __device__ __forceinline__ void finish(int, DecodePart) { computing_sync(); }
    __device__ __forceinline__ void multiply(int i, DecodePart part, std::uint32_t now) {
        const DecodeProduct& m = shared.product(part);
        const DecodeDigits x = digits(codes_known<kForm>(codes(i, part)));
        multiply_codes<kForm, true>(ring(), next, sums(), x.words, x.groups, codes(i, part),
                                    shared.share(part), part == DecodePart::gate_up, m.n, m.k,
                                    PublishCodes<T>{this->sink(i, part, now)});
    }
    template <class Store>
    __device__ __forceinline__ void head(Store store) {
        if (plain_head()) return multiply_plain_head<T>(*this, store);
        norm_for(codes_known<kHeadForm>(p.head_codes), this->hidden());
        const DecodeDigits x = digits(codes_known<kHeadForm>(p.head_codes));
        multiply_codes<kHeadForm, false>(ring(), next, sums(), x.words, x.groups, p.head_codes, shared.head,
                                         false, p.vocab, p.hidden, StoreLogits<Store>{store});
    }
};

#define GPK_DECODE_CODES_SYMBOL(T, type, d, form)                                        \
    extern "C" __global__ void __launch_bounds__(kDecodeStepThreads, 1)                  \
        decode_step_##form##_##type##_d##d(const __grid_constant__ DecodeStepParams p) { \
        decode_codes_step<T, d, DecodeCodesKernel<T, d, DecodeForm::form>>(p);           \
    }

}  // namespace gpk::kernels
