// Codes to 16-bit numbers, two at a time, and the product made of them. A number is put together from a code
// and the bits of a constant, so that the code is its mantissa (or, of the small floats, its exponent and
// mantissa), and one multiply-add moves it to its place; all of them exactly.
#pragma once

#include "kernels/gemm/gemv_mma.cuh"
#include "kernels/gemm/gemv_quantized.hpp"

namespace gpk::kernels {

namespace {

// a * b + c on two halves of a word.
template <class T>
__device__ __forceinline__ std::uint32_t multiply_add_pair(std::uint32_t a, std::uint32_t b,
                                                           std::uint32_t c) {
    std::uint32_t result;
    if constexpr (std::is_same_v<T, bfloat16>) {
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    } else {
        asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    }
    return result;
}
// (a & mask) | bits, and (a & mask) ^ bits, in one instruction: it takes one immediate, so `bits` is a
// register.
__device__ __forceinline__ std::uint32_t and_or(std::uint32_t a, std::uint32_t mask, std::uint32_t bits) {
    std::uint32_t result;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(a), "r"(mask), "r"(bits));
    return result;
}
__device__ __forceinline__ std::uint32_t and_xor(std::uint32_t a, std::uint32_t mask, std::uint32_t bits) {
    std::uint32_t result;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(a), "r"(mask), "r"(bits));
    return result;
}
// A constant that stays in a register.
__device__ __forceinline__ std::uint32_t in_register(std::uint32_t value) {
    asm volatile("mov.b32 %0, %0;" : "+r"(value));
    return value;
}

template <class T>
inline constexpr bool kIsBfloat = std::is_same_v<T, bfloat16>;
template <class T>  // 1, twice
inline constexpr std::uint32_t kOne = kIsBfloat<T> ? 0x3f803f80u : 0x3c003c00u;
inline constexpr std::uint32_t kMinusZero = 0x80008000u;  // x + -0 is x, also of -0

// A format gives, for a unit of a lane's 16 bytes (8 weights of one row), four pairs of numbers; what they
// are to be multiplied by otherwise is its scale(), once a row. (int4's is once a group: see below.)
struct Int8 {
    static constexpr QuantFormat kFormat = QuantFormat::int8;
    template <class T>
    struct Constants {
        std::uint32_t bits = in_register(kIsBfloat<T> ? 0x43004300u : 0x64806480u);
        std::uint32_t sign_bits = in_register(0xc300c300u);  // of bfloat16
    };
    template <class T>
    __device__ static void unpack(const Constants<T>& constants, const uint4& chunk, int u, std::uint32_t,
                                  std::uint32_t (&pairs)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const std::uint32_t w = (u == 0 ? i < 2 ? chunk.x : chunk.y : i < 2 ? chunk.z : chunk.w);
            const std::uint32_t codes = i % 2 == 0 ? w : w >> 8;
            if constexpr (kIsBfloat<T>) {
                // 128 + the low 7 bits, less 128, or 256 where the sign is set.
                pairs[i] = multiply_add_pair<T>(and_or(codes, 0x007f007fu, constants.bits), kOne<T>,
                                                and_or(codes, 0x00800080u, constants.sign_bits));
            } else {  // 1024 + 128 + the code, less that
                pairs[i] =
                    multiply_add_pair<T>(and_xor(codes, 0x00ff00ffu, constants.bits), kOne<T>, 0xe480e480u);
            }
        }
    }
    template <class T>
    __device__ static float factor(const QuantLayout& w, std::int64_t row) {
        return static_cast<const float*>(w.scales)[row];
    }
};

struct Fp8 {
    static constexpr QuantFormat kFormat = QuantFormat::fp8;
    template <class T>
    struct Constants {};
    template <class T>
    __device__ static void unpack(const Constants<T>&, const uint4& chunk, int u, std::uint32_t,
                                  std::uint32_t (&pairs)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const std::uint32_t w = (u == 0 ? i < 2 ? chunk.x : chunk.y : i < 2 ? chunk.z : chunk.w);
            const std::uint32_t codes = i % 2 == 0 ? w << 8 : w;
            if constexpr (kIsBfloat<T>) {  // times 2^(7 - 127), which is put right here
                const std::uint32_t tiny = (codes & 0x80008000u) | ((codes >> 4) & 0x07f007f0u);
                pairs[i] = multiply_add_pair<T>(tiny, 0x7b807b80u, kMinusZero);  // 2^120
            } else {  // times 2^(7 - 15): see factor()
                pairs[i] = (codes & 0x80008000u) | ((codes >> 1) & 0x3f803f80u);
            }
        }
    }
    template <class T>
    __device__ static float factor(const QuantLayout& w, std::int64_t row) {
        return static_cast<const float*>(w.scales)[row] * (kIsBfloat<T> ? 1.0f : 256.0f);
    }
};

// `zero`: minus (the constant that the code is added to, plus the zero point), twice.
struct Int4 {
    static constexpr QuantFormat kFormat = QuantFormat::int4;
    template <class T>
    struct Constants {
        std::uint32_t bits = in_register(kIsBfloat<T> ? 0x43004300u : 0x64006400u);
    };
    template <class T>
    __device__ static std::uint32_t minus_zero(std::uint32_t zero) {
        return zero * 0x00010001u + (kIsBfloat<T> ? 0xc300c300u : 0xe400e400u);
    }
    template <class T>
    __device__ static void unpack(const Constants<T>& constants, const uint4& chunk, int u,
                                  std::uint32_t zero, std::uint32_t (&pairs)[4]) {
        const std::uint32_t w = u == 0 ? chunk.x : u == 1 ? chunk.y : u == 2 ? chunk.z : chunk.w;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            pairs[i] = multiply_add_pair<T>(and_or(w >> (4 * i), 0x000f000fu, constants.bits), kOne<T>, zero);
        }
    }
};

// `scale`: the block's times 2^(8 + what the number wants), as two factors of bfloat16, or one of float16.
struct Nvfp4 {
    static constexpr QuantFormat kFormat = QuantFormat::nvfp4;
    template <class T>
    struct Constants {};
    // From the word with the scales of a lane's four units.
    template <class T>
    __device__ static std::uint32_t scale(std::uint32_t four, int u) {
        const std::uint32_t twice = __byte_perm(four, 0, 0x0404 | u << 4 | u << 12);  // as high bytes
        // times 2^(7 - 127) or 2^(7 - 15); then by 2^119 * 2^119 * 2^(127 - 1) is 2^-8 too small in all:
        // factor() has the rest.
        if constexpr (kIsBfloat<T>) {
            const std::uint32_t tiny = (twice >> 4) & 0x07f007f0u;
            const std::uint32_t half = multiply_add_pair<T>(tiny, 0x7b007b00u, kMinusZero);  // 2^119
            return multiply_add_pair<T>(half, 0x7b007b00u, kMinusZero);
        } else {
            return multiply_add_pair<T>((twice >> 1) & 0x3f803f80u, 0x74007400u, kMinusZero);  // 2^14
        }
    }
    template <class T>
    __device__ static void unpack(const Constants<T>&, const uint4& chunk, int u, std::uint32_t scale,
                                  std::uint32_t (&pairs)[4]) {
        const std::uint32_t w = u == 0 ? chunk.x : u == 1 ? chunk.y : u == 2 ? chunk.z : chunk.w;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const std::uint32_t codes = w << (12 - 4 * i);
            const std::uint32_t number = (codes & 0x80008000u) | (kIsBfloat<T> ? (codes >> 6) & 0x01c001c0u
                                                                               : (codes >> 3) & 0x0e000e00u);
            pairs[i] = multiply_add_pair<T>(number, scale, kMinusZero);
        }
    }
    template <class T>
    __device__ static float factor(const QuantLayout& w, std::int64_t) {
        return *w.global * 256.0f;
    }
};

template <class T>
__device__ __forceinline__ void store_sum(const GemvQuantizedParams& p, std::int64_t row, std::int64_t column,
                                          float sum) {
    if (p.float32_out) {
        static_cast<float*>(p.c)[row * p.c_row + column] = sum;
    } else {
        static_cast<T*>(p.c)[row * p.c_row + column] = convert<T>(sum);
    }
}

// A block takes 16 * kGroups rows of w. Its warps, and those of its cluster, take the steps of k in turn,
// kAhead steps at a time. kUnitsPerGroup: of int4, units of 32 weights that share a scale.
template <class Format, class T, int kGroups, int kTiles, int kAhead, int kUnitsPerGroup = 4>
__device__ __forceinline__ void gemv_quantized(const GemvQuantizedParams& p) {
    constexpr bool kGrouped = Format::kFormat == QuantFormat::int4;
    constexpr bool kBlocked = Format::kFormat == QuantFormat::nvfp4;
    constexpr int kStep = quant_step(Format::kFormat), kUnits = kStep / 32;
    constexpr int kScales = kGrouped ? kUnits / kUnitsPerGroup : 1;  // of a row in a step
    constexpr int kColumns = kQuantRows * kGroups, kElements = 8 * kTiles * kColumns;
    __shared__ float parts[kGemvMmaWarps][kElements];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const std::uint32_t blocks = team_blocks();
    const std::uint32_t tile0 = blockIdx.x / blocks * kGroups;
    const std::uint32_t share = team_rank() * kGemvMmaWarps + warp, shares = blocks * kGemvMmaWarps;
    const auto k = static_cast<std::uint32_t>(p.w.k), m = static_cast<std::uint32_t>(p.m);
    const auto tiles = static_cast<std::uint32_t>(quant_tiles(p.w.n));
    const std::uint32_t steps = (k + kStep - 1) / kStep;

    const T* x[kTiles];
    const std::uint8_t* data[kGroups];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
        x[i] = static_cast<const T*>(p.x) + (8 * i + g < m ? 8 * i + g : m - 1) * p.x_row + 8 * t;
    }
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {  // past the end: the last one, which nobody stores
        const std::uint32_t tile = tile0 + j < tiles ? tile0 + j : tiles - 1;
        data[j] = static_cast<const std::uint8_t*>(p.w.data) +
                  static_cast<std::int64_t>(tile) * steps * kQuantTileBytes + lane * 16;
    }
    const typename Format::template Constants<T> constants;
    float sums[kGroups][kTiles][4] = {};
    for (std::uint32_t step0 = share; step0 < steps; step0 += kAhead * shares) {
        uint4 w[kAhead][kGroups][2], v[kAhead][kUnits][kTiles];
        std::uint32_t scale[kAhead][kGroups][2][kScales];  // as they are stored; int4: scale and zero point
#pragma unroll
        for (int s = 0; s < kAhead; ++s) {
            const std::uint32_t step = step0 + s * shares;
            const bool inside = step < steps;
#pragma unroll
            for (int j = 0; j < kGroups; ++j) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    w[s][j][h] =
                        inside
                            ? load_once(data[j] + static_cast<std::size_t>(step) * kQuantTileBytes + h * 512)
                            : uint4{};
                    const std::uint32_t tile = tile0 + j < tiles ? tile0 + j : tiles - 1;
                    if constexpr (kGrouped) {
#pragma unroll
                        for (int e = 0; e < kScales; ++e) {
                            const std::uint32_t group = (step * kUnits + e * kUnitsPerGroup) / kUnitsPerGroup;
                            const std::int64_t at = int4_scale(std::int64_t{tile} * kQuantRows + 8 * h + g,
                                                               group, quant_groups(k, p.w.group));
                            const bool there = inside && group * (32 * kUnitsPerGroup) < k;
                            scale[s][j][h][e] = 0;
                            if (there) {
                                scale[s][j][h][e] = static_cast<std::uint32_t>(
                                    static_cast<const std::uint16_t*>(p.w.scales)[at]);
                                scale[s][j][h][e] |=
                                    static_cast<std::uint32_t>(p.w.zeros != nullptr ? p.w.zeros[at] : 8)
                                    << 16;
                            }
                        }
                    } else if constexpr (kBlocked) {
                        scale[s][j][h][0] =
                            inside ? static_cast<const std::uint32_t*>(
                                         p.w.scales)[(static_cast<std::int64_t>(tile) * steps + step) * 32 +
                                                     (8 * h + g) * 2 + t / 2]
                                   : 0;
                    }
                }
            }
#pragma unroll
            for (int u = 0; u < kUnits; ++u) {
                const std::uint32_t column = step * kStep + 32 * u;
#pragma unroll
                for (int i = 0; i < kTiles; ++i) {
                    v[s][u][i] = uint4{};
                    if (8 * i + g < m && column + 8 * t < k) {
                        if (column + 8 * t + 8 <= k) {
                            v[s][u][i] = *reinterpret_cast<const uint4*>(x[i] + column);
                        } else {
                            v[s][u][i] = load_some(x[i] + column, 1, k - (column + 8 * t));
                        }
                    }
                }
            }
        }
#pragma unroll
        for (int s = 0; s < kAhead; ++s) {
#pragma unroll
            for (int j = 0; j < kGroups; ++j) {
                float group_sums[kTiles][4];
#pragma unroll
                for (int u = 0; u < kUnits; ++u) {
                    std::uint32_t pairs[2][4];
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        std::uint32_t extra = 0;
                        if constexpr (kGrouped) {
                            extra = Int4::minus_zero<T>(scale[s][j][h][u / kUnitsPerGroup] >> 16);
                        } else if constexpr (kBlocked) {
                            extra = Nvfp4::scale<T>(scale[s][j][h][0], u);
                        }
                        Format::template unpack<T>(constants, w[s][j][h], u, extra, pairs[h]);
                    }
#pragma unroll
                    for (int i = 0; i < kTiles; ++i) {
                        const uint4& b = v[s][u][i];
                        if constexpr (kGrouped) {
                            if (u % kUnitsPerGroup == 0) {
#pragma unroll
                                for (int e = 0; e < 4; ++e) group_sums[i][e] = 0;
                            }
                        }
                        float (&to)[4] = kGrouped ? group_sums[i] : sums[j][i];
                        multiply_add<T>(to, pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1], b.x, b.y);
                        multiply_add<T>(to, pairs[0][2], pairs[1][2], pairs[0][3], pairs[1][3], b.z, b.w);
                        if constexpr (kGrouped) {
                            if (u % kUnitsPerGroup == kUnitsPerGroup - 1) {
#pragma unroll
                                for (int e = 0; e < 4; ++e) {
                                    sums[j][i][e] +=
                                        group_sums[i][e] *
                                        __uint_as_float(scale[s][j][e / 2][u / kUnitsPerGroup] << 16);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                parts[warp][(8 * i + 2 * t + e % 2) * kColumns + 16 * j + 8 * (e / 2) + g] = sums[j][i][e];
            }
        }
    }
    add_parts(parts, [&](int element, float sum) {
        const std::int64_t row = element / kColumns, column = tile0 * kQuantRows + element % kColumns;
        if (row >= p.m || column >= p.w.n) return;
        if constexpr (!kGrouped) sum *= Format::template factor<T>(p.w, column);
        store_sum<T>(p, row, column, sum);
    });
}

}  // namespace

#define GPK_GEMV_QUANTIZED_SYMBOL(T, type, format, Format, units, tiles)                                 \
    extern "C" __global__ void __launch_bounds__(kGemvMmaThreads)                                        \
        gemv_quantized_##type##_##format##_tiles##tiles(const __grid_constant__ GemvQuantizedParams p) { \
        wait_for_predecessor();                                                                          \
        gemv_quantized<Format, T, kGemvQuantizedGroups, tiles, 1, units>(p);                             \
    }

}  // namespace gpk::kernels
