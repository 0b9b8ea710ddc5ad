// gemv_bulk for quantised weights.
//
// The codes of int4 become numbers by a shift and one instruction for two of them: bfloat16 by putting them
// into the mantissa of 1, which gives 1 + c / 16, and float16 as the denormals that they are, c * 2^-24. What
// is too much in a group's sum, the one and the zero point, is the group's sum of x times a constant, which
// the sum begins with. Each warp makes these sums of its own steps once, by multiplying x by ones.
#pragma once

#include "kernels/gemm/gemv_bulk.cuh"

namespace gpk::kernels {

namespace {

// kUnitsPerGroup as in gemv_quantized.
template <class Format, class T, int kUnitsPerGroup, int kTiles>
struct QuantizedSource {
    static constexpr bool kGrouped = Format::kFormat == QuantFormat::int4;
    static constexpr bool kBlocked = Format::kFormat == QuantFormat::nvfp4;
    static constexpr int kUnits = quant_step(Format::kFormat) / 32, kColumnGroups = 1;
    static constexpr int kRounds = bulk_rounds(Format::kFormat, 8 * kTiles),
                         kStageSteps = kBulkSteps * kRounds;
    static constexpr int kGroups = kGrouped ? kUnits / kUnitsPerGroup : 1;            // of a row in a step
    static constexpr int kScaleBytes = kGrouped ? 32 * kGroups : kBlocked ? 128 : 0;  // of a step
    static constexpr int kZeroBytes = kGrouped ? 16 * kGroups : 0;
    static constexpr int kScales = kStageSteps * kQuantTileBytes;
    static constexpr int kZeros = kScales + kStageSteps * kScaleBytes;
    static constexpr int kStageBytes = kZeros + kStageSteps * kZeroBytes;
    static constexpr int kGroup = kGrouped ? 32 * kUnitsPerGroup : 0;
    static constexpr int kGroupSumsStep = kGrouped ? 32 * kGroups : 0;  // bytes, of 8 rows
    static_assert(kStageBytes == bulk_stage_bytes(Format::kFormat, 32 * kUnitsPerGroup, 8 * kTiles));
    // A code of int4 becomes kBase + code * kUnit.
    static constexpr float kBase = kIsBfloat<T> ? 1.0f : 0.0f, kUnit = kIsBfloat<T> ? 0.0625f : 0x1p-24f;

    using Constants = typename Format::template Constants<T>;

    const GemvQuantizedParams& p;

    __device__ __forceinline__ std::uint32_t steps() const {
        return static_cast<std::uint32_t>(quant_steps(Format::kFormat, p.w.k));
    }
    __device__ __forceinline__ void load(std::uint32_t stage, std::uint32_t tile, std::uint32_t step,
                                         std::uint32_t barrier) const {
        const std::uint32_t count = steps() - step < kStageSteps ? steps() - step : kStageSteps;
        const std::uint64_t first = std::uint64_t{tile} * steps() + step;
        const bool has_zeros = kGrouped && p.w.zeros != nullptr;
        bulk_expect(barrier, (kQuantTileBytes + kScaleBytes + (has_zeros ? kZeroBytes : 0)) * count);
        bulk_load(stage, static_cast<const char*>(p.w.data) + first * kQuantTileBytes,
                  kQuantTileBytes * count, barrier);
        if constexpr (kScaleBytes != 0) {
            bulk_load(stage + kScales, static_cast<const char*>(p.w.scales) + first * kScaleBytes,
                      kScaleBytes * count, barrier);
        }
        if (has_zeros) bulk_load(stage + kZeros, p.w.zeros + first * kZeroBytes, kZeroBytes * count, barrier);
    }
    __device__ __forceinline__ void prefetch(std::uint32_t, std::uint32_t) const {}
    __device__ __forceinline__ void take_x(const BulkX& to, std::uint32_t thread) const {
        bulk_take_x(to, static_cast<const T*>(p.x), p.x_row, static_cast<std::uint32_t>(p.w.k), thread,
                    [](const uint4& words, std::uint32_t) { return words; });
    }
    // The sums of x of the groups of one step, for the rows 2 t and 2 t + 1.
    template <class X>
    static __device__ __forceinline__ void sum_x(const X& x_of, std::uint32_t group_sums) {
        constexpr std::uint32_t kOnes = kOne<T>;
        float sums[kTiles][4];
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
                if (u % kUnitsPerGroup == 0) sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0;
                const uint4 x = x_of(u, i);
                multiply_add<T>(sums[i], kOnes, kOnes, kOnes, kOnes, x.x, x.y);
                multiply_add<T>(sums[i], kOnes, kOnes, kOnes, kOnes, x.z, x.w);
                if ((u + 1) % kUnitsPerGroup == 0) {
                    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(
                                     group_sums + 32 * (kTiles * (u / kUnitsPerGroup) + i)),
                                 "f"(sums[i][0]), "f"(sums[i][1])
                                 : "memory");
                }
            }
        }
    }
    __device__ __forceinline__ float of_row(std::uint32_t, float sum) const {
        return kGrouped ? sum * (1 / kUnit) : sum;
    }

    struct Place {
        std::uint32_t data, scales, zeros;
        bool has_zeros;
        std::uint32_t one = in_register(kOne<T>);
        Constants constants;
        __device__ __forceinline__ Place(const QuantizedSource& source, int warp, int lane)
            : data(opaque(warp * kQuantTileBytes + lane * 16)),
              scales(opaque(kScales + (kGrouped ? (warp * kGroups * 16 + lane / 4) * 2
                                                : warp * 128 + lane / 4 * 8 + lane % 4 / 2 * 4))),
              zeros(opaque(kZeros + warp * kGroups * 16 + lane / 4)),
              has_zeros(source.p.w.zeros != nullptr) {}
    };
    template <int>
    struct Step {
        const Place& place;
        std::uint32_t data, scales, zeros;
        uint4 chunks[2];
        std::uint32_t block_scales[2];
        __device__ __forceinline__ Step(const Place& place, std::uint32_t stage, int round)
            : place(place),
              data(stage + place.data + round * kBulkSteps * kQuantTileBytes),
              scales(stage + place.scales + round * kBulkSteps * kScaleBytes),
              zeros(stage + place.zeros + round * kBulkSteps * kZeroBytes) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                chunks[h] = load_shared(data + h * 512);
                if constexpr (kBlocked) block_scales[h] = load_shared_word(scales + 64 * h);
            }
        }
        // Four pairs of numbers of unit u and half h.
        __device__ __forceinline__ void unpack(int u, int h, std::uint32_t (&pairs)[4]) const {
            if constexpr (kGrouped) {
                const uint4& c = chunks[h];
                const std::uint32_t w = u == 0 ? c.x : u == 1 ? c.y : u == 2 ? c.z : c.w;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    if constexpr (kIsBfloat<T>) {
                        pairs[i] = and_or(i == 0 ? w << 3 : w >> (4 * i - 3), 0x00780078u, place.one);
                    } else {
                        pairs[i] = w >> 4 * i & 0x000f000fu;
                    }
                }
            } else {
                std::uint32_t extra = 0;
                if constexpr (kBlocked) extra = Nvfp4::scale<T>(block_scales[h], u);
                Format::template unpack<T>(place.constants, chunks[h], u, extra, pairs);
            }
        }
        // What the sums of a group begin with. `group_sums`: where its x has them for the rows 2 t and 2 t
        // + 1.
        __device__ __forceinline__ void begin(int group, std::uint32_t group_sums, float (&sums)[4]) const {
            float of_x[2];
            load_shared_pair(group_sums, of_x);
            constexpr float kSymmetric = -(kBase + 8 * kUnit);
            sums[0] = sums[2] = of_x[0] * kSymmetric;
            sums[1] = sums[3] = of_x[1] * kSymmetric;
            if (!place.has_zeros) return;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const auto zero = static_cast<float>(load_shared_byte(zeros + 16 * group + 8 * (e / 2)));
                sums[e] = of_x[e % 2] * -(kBase + zero * kUnit);
            }
        }
        // `group_sums`: where they are of this step's first group.
        template <class X>
        __device__ __forceinline__ void multiply(const X& x_of, std::uint32_t group_sums,
                                                 float (&sums)[kTiles][4]) {
            // Two chains of sums, so that one need not wait for the other.
            float chains[2][kTiles][4];
#pragma unroll
            for (int u = 0; u < kUnits; ++u) {
                const int group = u / kUnitsPerGroup;
                const bool begins = u % (kGrouped ? kUnitsPerGroup : kUnits) == 0,
                           ends = (u + 1) % (kGrouped ? kUnitsPerGroup : kUnits) == 0;
                std::uint32_t pairs[2][4];
                unpack(u, 0, pairs[0]);
                unpack(u, 1, pairs[1]);
                float scale[2] = {};
                if (kGrouped && ends) {
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        scale[h] = __uint_as_float(load_shared_half(scales + 32 * group + 16 * h) << 16);
                    }
                }
#pragma unroll
                for (int i = 0; i < kTiles; ++i) {
                    const uint4 x = x_of(u, i);
                    if (begins) {
#pragma unroll
                        for (int e = 0; e < 4; ++e) chains[0][i][e] = chains[1][i][e] = 0;
                        if constexpr (kGrouped)
                            begin(group, group_sums + 32 * (kTiles * group + i), chains[0][i]);
                    }
                    multiply_add<T>(chains[0][i], pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1], x.x,
                                    x.y);
                    multiply_add<T>(chains[1][i], pairs[0][2], pairs[1][2], pairs[0][3], pairs[1][3], x.z,
                                    x.w);
                    if (!ends) continue;
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const float sum = chains[0][i][e] + chains[1][i][e];
                        sums[i][e] += kGrouped ? sum * scale[e / 2] : sum;
                    }
                }
            }
        }
    };
    __device__ __forceinline__ float factor(std::uint32_t column) const {
        if constexpr (kGrouped) return 1;
        if constexpr (!kGrouped) return Format::template factor<T>(p.w, column);
    }
};

}  // namespace

#define GPK_GEMV_BULK_QUANTIZED_SYMBOL(T, type, format, Format, units, tiles)                                \
    extern "C" __global__ void __launch_bounds__(kBulkThreads,                                               \
                                                 tiles == 1 && quant_bits(Format::kFormat) == 8 ? 2 : 1)     \
        gemv_bulk_##type##_##format##_tiles##tiles(const __grid_constant__ GemvQuantizedParams p) {          \
        gemv_bulk<QuantizedSource<Format, T, units, tiles>, tiles>(                                          \
            {p}, static_cast<std::uint32_t>(p.m), static_cast<std::uint32_t>(p.w.n), 0,                      \
            [&](std::uint32_t row, std::uint32_t column, float sum) { store_sum<T>(p, row, column, sum); }); \
    }

}  // namespace gpk::kernels
