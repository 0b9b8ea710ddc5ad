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

// A format gives, for a unit of a lane's 16 bytes (8 weights of one row), four pairs of numbers, smaller than
// they should be by number(). factor(): what a row's sum is multiplied by where the row shares one scale.
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
    __device__ static constexpr float number() {
        return 1;
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
            } else {                                                             // times 2^(7 - 15)
                pairs[i] = (codes & 0x80008000u) | ((codes >> 1) & 0x3f803f80u);
            }
        }
    }
    template <class T>
    __device__ static constexpr float number() {
        return kIsBfloat<T> ? 1.0f : 256.0f;
    }
    template <class T>
    __device__ static float factor(const QuantLayout& w, std::int64_t row) {
        return static_cast<const float*>(w.scales)[row] * number<T>();
    }
};

// `zero`: minus (the constant that the code is added to, plus the code of 0), twice.
struct Int4 {
    static constexpr QuantFormat kFormat = QuantFormat::int4;
    template <class T>
    __device__ static constexpr float number() {
        return 1;
    }
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
        // times 2^(7 - 127) or 2^(7 - 15); then by 2^119 * 2^119 * 2^(127 - 1) is 2^-8 too small in all.
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
    __device__ static constexpr float number() {
        return 256;
    }
    template <class T>
    __device__ static float factor(const QuantLayout& w, std::int64_t) {
        return *w.global * number<T>();
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

// x where `mine`, else zeros.
__device__ __forceinline__ uint4 masked(const uint4& x, bool mine) {
    return {mine ? x.x : 0, mine ? x.y : 0, mine ? x.z : 0, mine ? x.w : 0};
}

// A block takes 16 rows of w. Its warps, and those of its cluster, take the steps of k in turn. kGroup:
// weights along k that share a scale; 0: the row. (A group of 16 is half a unit, the lanes of two t.) p.m: at
// most 8 * kTiles.
template <class Format, class T, int kTiles, int kGroup>
__device__ __forceinline__ void gemv_quantized(const GemvQuantizedParams& p) {
    constexpr bool kGrouped = kGroup != 0, kBlocked = Format::kFormat == QuantFormat::nvfp4;
    constexpr int kStep = quant_step(Format::kFormat), kUnits = kStep / 32;
    constexpr int kScales = kGrouped ? kStep / kGroup : 1;  // of a row in a step
    constexpr int kParts = kGroup == 16 ? 2 : 1;            // groups of a unit
    constexpr int kElements = 8 * kTiles * kQuantRows;
    __shared__ float parts[kGemvMmaWarps][kElements];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const std::uint32_t blocks = team_blocks(), tile = blockIdx.x / blocks;
    const std::uint32_t share = team_rank() * kGemvMmaWarps + warp, shares = blocks * kGemvMmaWarps;
    const auto k = static_cast<std::uint32_t>(p.w.k), m = static_cast<std::uint32_t>(p.m);
    const std::uint32_t steps = (k + kStep - 1) / kStep;
    const bool has_offsets = kGrouped && p.w.offsets != nullptr;

    const T* x[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
        x[i] = static_cast<const T*>(p.x) + (8 * i + g < m ? 8 * i + g : m - 1) * p.x_row + 8 * t;
    }
    const std::uint64_t first = std::uint64_t{tile} * steps;  // step of the tile
    const std::uint8_t* data =
        static_cast<const std::uint8_t*>(p.w.data) + first * kQuantTileBytes + lane * 16;
    const typename Format::template Constants<T> constants;
    float sums[kTiles][4] = {};
    for (std::uint32_t step = share; step < steps; step += shares) {
        uint4 w[2], v[kUnits][kTiles];
        float scale[2][kScales], offset[2][kScales];
        std::uint32_t block_scales[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            w[h] = load_once(data + static_cast<std::size_t>(step) * kQuantTileBytes + h * 512);
            if constexpr (kGrouped) {
#pragma unroll
                for (int e = 0; e < kScales; ++e) {
                    const std::uint64_t at = ((first + step) * kScales + e) * kQuantRows + 8 * h + g;
                    scale[h][e] = static_cast<const float*>(p.w.scales)[at] * Format::template number<T>();
                    offset[h][e] = has_offsets ? p.w.offsets[at] : 0;
                }
            } else if constexpr (kBlocked) {
                block_scales[h] = static_cast<const std::uint32_t*>(
                    p.w.scales)[(first + step) * 32 + (8 * h + g) * 2 + t / 2];
            }
        }
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
            const std::uint32_t column = step * kStep + 32 * u;
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
                v[u][i] = uint4{};
                if (8 * i + g < m && column + 8 * t < k) {
                    if (column + 8 * t + 8 <= k) {
                        v[u][i] = *reinterpret_cast<const uint4*>(x[i] + column);
                    } else {
                        v[u][i] = load_some(x[i] + column, 1, k - (column + 8 * t));
                    }
                }
            }
        }
        float group_sums[kParts][kTiles][4], x_sums[kParts][kTiles][4];
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
            std::uint32_t pairs[2][4];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                std::uint32_t extra = 0;
                if constexpr (Format::kFormat == QuantFormat::int4) {
                    extra = Int4::minus_zero<T>(has_offsets ? 0 : 8);
                } else if constexpr (kBlocked) {
                    extra = Nvfp4::scale<T>(block_scales[h], u);
                }
                Format::template unpack<T>(constants, w[h], u, extra, pairs[h]);
            }
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
                if constexpr (!kGrouped) {
                    const uint4& b = v[u][i];
                    multiply_add<T>(sums[i], pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1], b.x, b.y);
                    multiply_add<T>(sums[i], pairs[0][2], pairs[1][2], pairs[0][3], pairs[1][3], b.z, b.w);
                } else {
#pragma unroll
                    for (int part = 0; part < kParts; ++part) {
                        const uint4 b = kParts == 1 ? v[u][i] : masked(v[u][i], t / 2 == part);
                        float (&of_group)[4] = group_sums[part][i], (&of_x)[4] = x_sums[part][i];
                        if (kParts == 2 || 32 * u % kGroup == 0) {
#pragma unroll
                            for (int e = 0; e < 4; ++e) of_group[e] = of_x[e] = 0;
                        }
                        multiply_add<T>(of_group, pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1], b.x,
                                        b.y);
                        multiply_add<T>(of_group, pairs[0][2], pairs[1][2], pairs[0][3], pairs[1][3], b.z,
                                        b.w);
                        if (has_offsets) {
                            multiply_add<T>(of_x, kOne<T>, kOne<T>, kOne<T>, kOne<T>, b.x, b.y);
                            multiply_add<T>(of_x, kOne<T>, kOne<T>, kOne<T>, kOne<T>, b.z, b.w);
                        }
                        if (kParts == 1 && 32 * (u + 1) % kGroup != 0) continue;
                        const int group = kParts * (32 * u / (kParts == 2 ? 32 : kGroup)) + part;
#pragma unroll
                        for (int e = 0; e < 4; ++e) {
                            sums[i][e] += of_group[e] * scale[e / 2][group];
                            if (has_offsets) sums[i][e] += of_x[e] * offset[e / 2][group];
                        }
                    }
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            parts[warp][(8 * i + 2 * t + e % 2) * kQuantRows + 8 * (e / 2) + g] = sums[i][e];
        }
    }
    add_parts(parts, [&](int element, float sum) {
        const std::int64_t row = element / kQuantRows,
                           column = std::int64_t{tile} * kQuantRows + element % kQuantRows;
        if (row >= p.m || column >= p.w.n) return;
        if constexpr (!kGrouped) sum *= Format::template factor<T>(p.w, column);
        store_sum<T>(p, row, column, sum);
    });
}

// The rows of the block's expert, 8 * kTiles at a time.
template <class Format, class T, int kTiles, int kGroup>
__device__ __forceinline__ void gemv_quantized_experts(const GemvQuantizedParams& p) {
    const ExpertRows rows = expert_rows(p, blockIdx.y);
    GemvQuantizedParams part = p;
    part.w = expert_layout(p.w, blockIdx.y);
    for (std::int64_t row = rows.begin; row < rows.end; row += 8 * kTiles) {
        part.m = rows.end - row < 8 * kTiles ? rows.end - row : 8 * kTiles;
        part.x = static_cast<const T*>(p.x) + row * p.x_row;
        part.c = static_cast<char*>(p.c) + row * p.c_row * (p.float32_out ? 4 : 2);
        gemv_quantized<Format, T, kTiles, kGroup>(part);
        __syncthreads();  // the sums of the warps are read until here
    }
}

}  // namespace

#define GPK_GEMV_QUANTIZED_SYMBOL(T, type, format, Format, group, tiles)                                 \
    extern "C" __global__ void __launch_bounds__(kGemvMmaThreads)                                        \
        gemv_quantized_##type##_##format##_tiles##tiles(const __grid_constant__ GemvQuantizedParams p) { \
        wait_for_predecessor();                                                                          \
        if (p.offsets == nullptr) return gemv_quantized<Format, T, tiles, group>(p);                     \
        gemv_quantized_experts<Format, T, tiles, group>(p);                                              \
    }

}  // namespace gpk::kernels
