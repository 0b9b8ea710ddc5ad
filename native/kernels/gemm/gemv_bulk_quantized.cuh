// gemv_bulk for quantised weights.
//
// The codes of int4 become numbers by a shift and one instruction for two of them: bfloat16 by putting them
// into the mantissa of 1, which gives 1 + c / 16, and float16 as the denormals that they are, c * 2^-24. What
// is too much in a group's sum is the group's sum of x times a constant, which the sum begins with. Offsets
// are multiplied by the same sums of x. Each warp makes these of its own steps once, by multiplying x by
// ones.
#pragma once

#include "kernels/gemm/gemv_bulk.cuh"

namespace gpk::kernels {

namespace {

// kGroup as in gemv_quantized.
template <class Format, class T, int kOfGroup, int kTiles>
struct QuantizedSource {
    static constexpr bool kInt4 = Format::kFormat == QuantFormat::int4;
    static constexpr bool kBlocked = Format::kFormat == QuantFormat::nvfp4;
    static constexpr int kGroup = kOfGroup;
    static constexpr bool kGrouped = kGroup != 0;
    static constexpr int kUnits = quant_step(Format::kFormat) / 32, kColumnGroups = 1;
    static constexpr bool kTurns = false;
    static constexpr int kRounds = bulk_rounds(Format::kFormat, 8 * kTiles),
                         kStageSteps = kBulkSteps * kRounds;
    static constexpr int kGroups = kGrouped ? 32 * kUnits / kGroup : 1;  // of a row in a step
    static constexpr int kParts = kGroup == 16 ? 2 : 1;                  // groups of a unit
    static constexpr int kScaleBytes = kGrouped ? 4 * kQuantRows * kGroups : kBlocked ? 128 : 0;  // of a step
    static constexpr int kScales = kStageSteps * kQuantTileBytes;
    static constexpr int kOffsets = kScales + kStageSteps * kScaleBytes;
    static constexpr int kStageBytes = kOffsets + (kGrouped ? kStageSteps * kScaleBytes : 0);
    static constexpr int kGroupSumsStep = kGrouped ? 32 * kGroups : 0;  // bytes, of 8 rows
    static constexpr int kHeld = 0;
    static constexpr BulkInput kInput = BulkInput::shared;
    static_assert(kStageBytes == bulk_stage_bytes(Format::kFormat, kGroup, 8 * kTiles));
    // A code of int4 becomes kBase + code * kUnit.
    static constexpr float kBase = kInt4 && kIsBfloat<T> ? 1.0f : 0.0f;
    static constexpr float kUnit =
        kInt4 ? kIsBfloat<T> ? 0.0625f : 0x1p-24f : 1 / Format::template number<T>();

    using Constants = typename Format::template Constants<T>;

    const GemvQuantizedParams& p;

    __device__ __forceinline__ std::uint32_t steps() const {
        return static_cast<std::uint32_t>(quant_steps(Format::kFormat, p.w.k));
    }
    __device__ __forceinline__ bool wants_group_sums() const { return kInt4 || p.w.offsets != nullptr; }
    __device__ __forceinline__ void load_weights(std::uint32_t stage, std::uint32_t tile, std::uint32_t step,
                                                 std::uint32_t barrier) const {
        const std::uint32_t count = steps() - step < kStageSteps ? steps() - step : kStageSteps;
        const std::uint64_t first = std::uint64_t{tile} * steps() + step;
        const bool has_offsets = kGrouped && p.w.offsets != nullptr;
        bulk_expect(barrier, (kQuantTileBytes + (has_offsets ? 2 : 1) * kScaleBytes) * count);
        bulk_load(stage, static_cast<const char*>(p.w.data) + first * kQuantTileBytes,
                  kQuantTileBytes * count, barrier);
        if constexpr (kScaleBytes != 0) {
            bulk_load(stage + kScales, static_cast<const char*>(p.w.scales) + first * kScaleBytes,
                      kScaleBytes * count, barrier);
        }
        if (has_offsets) {
            bulk_load(stage + kOffsets, reinterpret_cast<const char*>(p.w.offsets) + first * kScaleBytes,
                      kScaleBytes * count, barrier);
        }
    }
    __device__ __forceinline__ void prefetch(std::uint32_t, std::uint32_t) const {}
    __device__ __forceinline__ void take_x(const BulkX& to, std::uint32_t thread) const {
        bulk_take_x(to, static_cast<const T*>(p.x), p.x_row, static_cast<std::uint32_t>(p.w.k), thread,
                    [](const uint4& words, std::uint32_t) { return words; });
    }
    static __device__ __forceinline__ bool in_part(int part) {
        return kParts == 1 || static_cast<int>(threadIdx.x % 4 / 2) == part;
    }
    // The sums of x of the groups of one step, for the rows 2 t and 2 t + 1.
    template <class X>
    static __device__ __forceinline__ void sum_x(const X& x_of, std::uint32_t group_sums) {
        constexpr std::uint32_t kOnes = kOne<T>;
        float sums[kParts][kTiles][4];
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
                const uint4 whole = x_of(u, i);
#pragma unroll
                for (int part = 0; part < kParts; ++part) {
                    const uint4 x = kParts == 1 ? whole : masked(whole, in_part(part));
                    float (&sum)[4] = sums[part][i];
                    if (begins(u)) sum[0] = sum[1] = sum[2] = sum[3] = 0;
                    multiply_add<T>(sum, kOnes, kOnes, kOnes, kOnes, x.x, x.y);
                    multiply_add<T>(sum, kOnes, kOnes, kOnes, kOnes, x.z, x.w);
                    if (!ends(u)) continue;
                    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(
                                     group_sums + 32 * (kTiles * group_of(u, part) + i)),
                                 "f"(sum[0]), "f"(sum[1])
                                 : "memory");
                }
            }
        }
    }
    // Whether a group begins or ends with unit u, and which one of the step it is.
    static __device__ constexpr bool begins(int u) {
        return kParts == 2 || u % (kGrouped ? kGroup / 32 : kUnits) == 0;
    }
    static __device__ constexpr bool ends(int u) {
        return kParts == 2 || (u + 1) % (kGrouped ? kGroup / 32 : kUnits) == 0;
    }
    static __device__ constexpr int group_of(int u, int part) {
        return kParts == 2 ? 2 * u + part : kGrouped ? 32 * u / kGroup : 0;
    }
    __device__ __forceinline__ float of_row(std::uint32_t, float sum) const {
        return kGrouped ? sum * (1 / kUnit) : sum;
    }

    struct Place {
        std::uint32_t data, scales;
        bool has_offsets;
        std::uint32_t one = in_register(kOne<T>);
        Constants constants;
        __device__ __forceinline__ Place(const QuantizedSource& source, int warp, int lane)
            : data(opaque(warp * kQuantTileBytes + lane * 16)),
              scales(opaque(kScales + (kGrouped ? (warp * kGroups * kQuantRows + lane / 4) * 4
                                                : warp * 128 + lane / 4 * 8 + lane % 4 / 2 * 4))),
              has_offsets(kGrouped && source.p.w.offsets != nullptr) {}
    };
    template <int>
    struct Step {
        const Place& place;
        std::uint32_t data, scales;
        uint4 chunks[2];
        std::uint32_t block_scales[2];
        __device__ __forceinline__ Step(const Place& place, std::uint32_t stage, int round)
            : place(place),
              data(stage + place.data + round * kBulkSteps * kQuantTileBytes),
              scales(stage + place.scales + round * kBulkSteps * kScaleBytes) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                chunks[h] = load_shared(data + h * 512);
                if constexpr (kBlocked) block_scales[h] = load_shared_word(scales + 64 * h);
            }
        }
        // Four pairs of numbers of unit u and half h.
        __device__ __forceinline__ void unpack(int u, int h, std::uint32_t (&pairs)[4]) const {
            if constexpr (kInt4) {
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
        // `of_x`: the group's sums of x of the rows 2 t and 2 t + 1. What the group's own begin with.
        __device__ __forceinline__ void begin(const float (&of_x)[2], float (&sums)[4]) const {
            const float constant = place.has_offsets ? -kBase : -(kBase + 8 * kUnit);
            sums[0] = sums[2] = of_x[0] * constant;
            sums[1] = sums[3] = of_x[1] * constant;
        }
        // `group_sums`: where they are of this step's first group.
        template <class X>
        __device__ __forceinline__ void multiply(const X& x_of, std::uint32_t group_sums,
                                                 float (&sums)[kTiles][4]) {
            // Two chains of sums, so that one need not wait for the other; or one for each part of a unit.
            float chains[2][kTiles][4], of_x[2][kTiles][2];
#pragma unroll
            for (int u = 0; u < kUnits; ++u) {
                std::uint32_t pairs[2][4];
                unpack(u, 0, pairs[0]);
                unpack(u, 1, pairs[1]);
#pragma unroll
                for (int i = 0; i < kTiles; ++i) {
                    const uint4 x = x_of(u, i);
                    if (begins(u)) {
#pragma unroll
                        for (int e = 0; e < 4; ++e) chains[0][i][e] = chains[1][i][e] = 0;
#pragma unroll
                        for (int part = 0; kGrouped && part < kParts; ++part) {
                            if (!kInt4 && !place.has_offsets) continue;
                            load_shared_pair(group_sums + 32 * (kTiles * group_of(u, part) + i),
                                             of_x[part][i]);
                            if constexpr (kInt4) begin(of_x[part][i], chains[part][i]);
                        }
                    }
                    if constexpr (kParts == 1) {
                        multiply_add<T>(chains[0][i], pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1], x.x,
                                        x.y);
                        multiply_add<T>(chains[1][i], pairs[0][2], pairs[1][2], pairs[0][3], pairs[1][3], x.z,
                                        x.w);
                    } else {
#pragma unroll
                        for (int part = 0; part < 2; ++part) {
                            const uint4 b = masked(x, in_part(part));
                            multiply_add<T>(chains[part][i], pairs[0][0], pairs[1][0], pairs[0][1],
                                            pairs[1][1], b.x, b.y);
                            multiply_add<T>(chains[part][i], pairs[0][2], pairs[1][2], pairs[0][3],
                                            pairs[1][3], b.z, b.w);
                        }
                    }
                    if (ends(u)) add_group(u, i, chains, of_x, sums[i]);
                }
            }
        }
        // What the group, or the two groups, that end with unit u have, times their scales.
        __device__ __forceinline__ void add_group(int u, int i, const float (&chains)[2][kTiles][4],
                                                  const float (&of_x)[2][kTiles][2], float (&sums)[4]) const {
            if constexpr (!kGrouped) {
#pragma unroll
                for (int e = 0; e < 4; ++e) sums[e] += chains[0][i][e] + chains[1][i][e];
            }
#pragma unroll
            for (int part = 0; kGrouped && part < kParts; ++part) {
                float scale[2], offset[2] = {};
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const std::uint32_t at = scales + 4 * kQuantRows * group_of(u, part) + 32 * h;
                    scale[h] = __uint_as_float(load_shared_word(at));
                    if (place.has_offsets) {
                        offset[h] = kUnit * __uint_as_float(load_shared_word(at + kOffsets - kScales));
                    }
                }
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const float sum = kParts == 1 ? chains[0][i][e] + chains[1][i][e] : chains[part][i][e];
                    sums[e] += sum * scale[e / 2];
                    if (place.has_offsets) sums[e] += of_x[part][i][e % 2] * offset[e / 2];
                }
            }
        }
    };
    __device__ __forceinline__ static constexpr std::uint32_t columns() { return 16 * kColumnGroups; }
    __device__ __forceinline__ float factor(std::uint32_t column) const {
        if constexpr (kGrouped) return 1;
        if constexpr (!kGrouped) return Format::template factor<T>(p.w, column);
    }
};

}  // namespace

#define GPK_GEMV_BULK_QUANTIZED_SYMBOL(T, type, format, Format, group, tiles)                            \
    extern "C" __global__ void __launch_bounds__(kBulkThreads,                                           \
                                                 tiles == 1 && quant_bits(Format::kFormat) == 8 ? 2 : 1) \
        gemv_bulk_##type##_##format##_tiles##tiles(const __grid_constant__ GemvQuantizedParams p) {      \
        gemv_bulk<QuantizedSource<Format, T, group, tiles>, tiles>(                                      \
            {p}, static_cast<std::uint32_t>(p.m), static_cast<std::uint32_t>(p.w.n), BulkStart{},        \
            [](std::uint32_t, std::uint32_t) { return 0.0f; },                                           \
            [&](std::uint32_t row, std::uint32_t column, float sum, float) {                             \
                store_sum<T>(p, row, column, sum);                                                       \
            });                                                                                          \
    }

}  // namespace gpk::kernels
