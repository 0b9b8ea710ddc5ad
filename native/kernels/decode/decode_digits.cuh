// What decode_step makes of x for products with codes (decode_codes.cuh): whole numbers in digits of a byte.
//
// Of 256 elements the largest sets a power of two, by which they become whole numbers of up to 22 bits: three
// signed digits, that are columns of mma.sync's second operand. What is left out is less than 2^-22 of the
// largest, as in float32 sums of so many.
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

// Where a product's x lies in shared memory: the digits of blocks of 128 elements, [2 pairs of units of 32][3
// digits][4 t][2 units][2 words]; and records of as many bytes as DecodeStepShared says: what a block's sums
// of digits are multiplied by, then of each group the sum of x (of codes of four bits without offsets, times
// the -8 that their zero is at).
struct DecodeDigits {
    static constexpr std::uint32_t kPart = 64, kPair = 3 * kPart, kBlock = 2 * kPair;
    std::uint32_t words, records, record;
    bool four_bits, sums, offsets;  // of the codes; whether sums of x are needed
    std::uint32_t group;
    __device__ __forceinline__ DecodeDigits(std::uint32_t words, std::uint32_t records, std::uint32_t record,
                                            const DecodeCodes& c)
        : words(words),
          records(records),
          record(record),
          four_bits(c.bits == 4),
          sums(four_bits || c.offsets != nullptr),
          offsets(c.offsets != nullptr),
          group(c.group == 0 ? 128 : static_cast<std::uint32_t>(c.group)) {}
    // Of a record, where the sums begin.
    __device__ __forceinline__ std::uint32_t sums_at() const { return record == 8 ? 4 : 16; }
};

__device__ __forceinline__ std::uint32_t larger_halves(std::uint32_t a, std::uint32_t b) {
    std::uint32_t larger;
    asm("max.u16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    return larger;
}
template <int kBytes>
__device__ __forceinline__ std::uint32_t permuted(std::uint32_t a, std::uint32_t b) {
    return __byte_perm(a, b, kBytes);
}
__device__ __forceinline__ void store_shared_two(std::uint32_t address, std::uint32_t a, std::uint32_t b) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}
__device__ __forceinline__ void store_shared_float(std::uint32_t address, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

// A lane has eight elements at a time, a warp 256: a lane's are those of its half of the warp, or where
// kPaired of the even or the odd lanes.
template <bool kPaired>
struct DecodeDigitsWriter {
    DecodeDigits to;
    __device__ __forceinline__ explicit DecodeDigitsWriter(const DecodeDigits& digits) : to(digits) {}

    // Elements 256 chunk on; by all lanes of a warp.
    template <class T>
    __device__ __forceinline__ void put(uint4 eight, std::uint32_t chunk) const {
        const auto lane = static_cast<std::uint32_t>(thread_index()) % 32;
        const std::uint32_t second = kPaired ? lane % 2 : lane / 16, place = kPaired ? lane / 2 : lane % 16;
        if (to.four_bits) {  // elements 0, 1, 4, 5 are low nibbles
            const std::uint32_t middle = eight.y;
            eight.y = eight.z, eight.z = middle;
        }
        constexpr std::uint32_t kAbsolute = 0x7fff7fffu;
        const std::uint32_t two = larger_halves(larger_halves(eight.x & kAbsolute, eight.y & kAbsolute),
                                                larger_halves(eight.z & kAbsolute, eight.w & kAbsolute));
        const std::uint32_t largest = __reduce_max_sync(0xffffffffu, max(two & 0xffffu, two >> 16));
        const std::uint32_t exponent = max(29u, __float_as_uint(unpack_pair<T>(largest).x) >> 23);
        // 2^20 over the largest one's power of two: so x is below 2^21.
        const float scale = __uint_as_float((274 - exponent) << 23);
        const float high_scale = to.four_bits ? scale * 0.0625f : scale;
        // Numbers this large have neighbours 1 apart; the two lower bytes come out 128 too large, so that
        // the next one is what is left with a signed byte, and the third 64 too large.
        constexpr float kRound = 12582912.0f + 32896.0f;
        const std::uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
        std::uint32_t x[8];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 both = unpack_pair<T>(pairs[i]);
            const float by = i < 2 ? scale : high_scale;
            x[2 * i] = __float_as_uint(fmaf(both.x, by, kRound));
            x[2 * i + 1] = __float_as_uint(fmaf(both.y, by, kRound));
        }
        const std::uint32_t block = 2 * chunk + second;
        const std::uint32_t at = to.words + block * DecodeDigits::kBlock + place / 8 * DecodeDigits::kPair +
                                 place % 4 * 16 + place / 4 % 2 * 8;
        std::uint32_t digits[3][2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // bytes of elements 0, 2, 1, 3, as those of a word of codes
            const std::uint32_t* of = x + 4 * half;
            const std::uint32_t even = permuted<0x5140>(of[0], of[2]), odd = permuted<0x5140>(of[1], of[3]);
            digits[0][half] = permuted<0x5410>(even, odd) ^ 0x80808080u;
            digits[1][half] = permuted<0x7632>(even, odd) ^ 0x80808080u;
            const std::uint32_t top =
                permuted<0x5410>(permuted<0x0062>(of[0], of[2]), permuted<0x0062>(of[1], of[3]));
            digits[2][half] = (top + 0x40404040u) ^ 0x80808080u;
        }
#pragma unroll
        for (int part = 0; part < 3; ++part)
            store_shared_two(at + DecodeDigits::kPart * part, digits[part][0], digits[part][1]);

        const float factor = exponent == 255 ? NAN : __uint_as_float((exponent - 20) << 23);
        const std::uint32_t record = to.records + block * to.record;
        if (place == 0) store_shared_float(record, factor);
        if (!to.sums) return;
        constexpr std::uint32_t kZero = 0x4b400000u + 32896u;
        const std::uint32_t low = x[0] + x[1] + x[2] + x[3] - 4 * kZero,
                            high = x[4] + x[5] + x[6] + x[7] - 4 * kZero;
        auto sum = static_cast<std::int32_t>(low + (to.four_bits ? high << 4 : high));
        if (to.group == 128) {
            const std::int32_t all = __reduce_add_sync(0xffffffffu, sum);
            const std::int32_t first = __reduce_add_sync(0xffffffffu, second != 0 ? 0 : sum);
            sum = second != 0 ? all - first : first;
        } else {
#pragma unroll
            for (std::uint32_t step = 1; step < 8; step *= 2) {
                const std::int32_t other =
                    __shfl_xor_sync(0xffffffffu, sum, static_cast<int>(kPaired ? 2 * step : step));
                sum += 8 * step < to.group ? other : 0;
            }
        }
        const std::uint32_t lanes = to.group / 8;
        if (place % lanes == 0) {
            const float by = to.offsets ? factor : factor * -8.0f;
            store_shared_float(record + to.sums_at() + 4 * (place / lanes), static_cast<float>(sum) * by);
        }
    }
};

}  // namespace gpk::kernels
