// One warp of a block keeps a ring of stages filled; the others turn codes into numbers, eight along k of two
// rows at a time, while the tensor cores multiply those before. Blocks of a cluster share k: each has a part
// of the rows of what all of them have summed.
#pragma once

#include "kernels/gemm/gemm_codes.hpp"
#include "kernels/gemm/gemv_bulk_copies.cuh"
#include "kernels/pairs.cuh"
#include "kernels/wgmma.cuh"

namespace gpk::kernels {

namespace {

template <class T>
__device__ __forceinline__ void arrange_rows(const ArrangeRowsParams& p) {
    wait_for_predecessor();
    launch_dependents();
    const auto m = static_cast<std::uint32_t>(p.m), k = static_cast<std::uint32_t>(p.k);
    const auto stages = static_cast<std::uint32_t>(codes_stages(p.k)), units = stages * (kCodesDepth / 32);
    const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, row = i / units, unit = i % units;
    if (row >= (m + kCodesRows - 1) / kCodesRows * kCodesRows) return;
    std::uint32_t pairs[4][4] = {};  // of t
#pragma unroll
    for (std::uint32_t t = 0; t < 4; ++t) {
        const std::uint32_t column = 32 * unit + 8 * t;
        if (row >= m || column >= k) continue;
        const T* from = static_cast<const T*>(p.x) + row * p.x_row + column;
        const uint4 words = p.wide && column + 8 <= k ? *reinterpret_cast<const uint4*>(from)
                                                      : load_some(from, 1, k - column);
        pairs[t][0] = words.x, pairs[t][1] = words.y, pairs[t][2] = words.z, pairs[t][3] = words.w;
    }
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
        T* to = static_cast<T*>(p.out) + arranged_place(row, 32 * unit + 2 * pair, stages);
        *reinterpret_cast<uint4*>(to) = {pairs[0][pair], pairs[1][pair], pairs[2][pair], pairs[3][pair]};
    }
}

// What the blocks of a cluster share.
struct CodesPlace {
    std::uint32_t row, column;  // the first of c
    std::uint32_t begin, end;   // stages of k
    __device__ __forceinline__ CodesPlace(const GemmCodesParams& p) {
        const std::uint32_t shares = cluster_blocks(), share = cluster_rank(), place = blockIdx.x / shares;
        const auto down = static_cast<std::uint32_t>((p.m + kCodesRows - 1) / kCodesRows);
        const auto stages = static_cast<std::uint32_t>(codes_stages(p.w.k));
        row = place % down * kCodesRows;
        column = place / down * kCodesColumns;
        begin = stages * share / shares;
        end = stages * (share + 1) / shares;
    }
};

template <class Format, class T, bool kGrouped>
struct GemmCodes {
    static constexpr bool kBlocked = Format::kFormat == QuantFormat::nvfp4;
    static constexpr int kSteps = kCodesDepth / quant_step(Format::kFormat);  // of a stage
    static constexpr int kUnits = kCodesDepth / 32, kUnitsOfStep = kUnits / kSteps;
    static constexpr int kCodesAt = kCodesXBytes,
                         kScalesAt = kCodesAt + kCodesTiles * kSteps * kQuantTileBytes;

    const GemmCodesParams& p;
    const CodesPlace& at;
    unsigned char* shared;
    Barrier *full, *empty;

    // By one thread. What lies past the end of the weight comes as zeros.
    __device__ __forceinline__ void bring_codes(std::uint32_t i, int slot) const {
        unsigned char* const stage = shared + slot * p.stage_pitch;
        const int tile = static_cast<int>(at.column / kQuantRows);
        // Others read them, too, where there are more rows.
        const CachePolicy policy = p.m > kCodesRows ? CachePolicy::normal : CachePolicy::evict_first;
        barrier_expect(full[slot], p.stage_bytes);
        tma_load(stage + kCodesAt, p.codes, full[slot], policy, 0, i * kSteps, tile);
        if constexpr (kGrouped || kBlocked) {
            tma_load(stage + kScalesAt, p.scales, full[slot], policy, i * p.stage_scales, tile);
        }
        if (kGrouped && p.w.offsets != nullptr) {
            tma_load(stage + kScalesAt + kCodesTiles * 4 * p.stage_scales, p.offsets, full[slot], policy,
                     i * p.stage_scales, tile);
        }
    }
    __device__ __forceinline__ void bring_x(std::uint32_t i, int slot) const {
        const std::uint64_t part = std::uint64_t{at.row / kCodesRows} * codes_stages(p.w.k) + i;
        bulk_load(shared_address(shared + slot * p.stage_pitch),
                  static_cast<const char*>(p.x) + part * kCodesXBytes, kCodesXBytes,
                  shared_address(&full[slot]), CachePolicy::normal);
    }
    __device__ __forceinline__ void feed() const {
        tma_prefetch(p.codes);
        const std::uint32_t early = min(at.end, at.begin + p.stages);
        for (std::uint32_t i = at.begin; i < early; ++i) bring_codes(i, static_cast<int>(i - at.begin));
        wait_for_predecessor();
        for (std::uint32_t i = at.begin; i < early; ++i) bring_x(i, static_cast<int>(i - at.begin));
        std::uint32_t slot = 0, phase = 0;
        for (std::uint32_t i = early; i < at.end; ++i) {
            barrier_wait(empty[slot], phase);
            bring_codes(i, static_cast<int>(slot));
            bring_x(i, static_cast<int>(slot));
            if (++slot == static_cast<std::uint32_t>(p.stages)) slot = 0, phase ^= 1;
        }
    }

    // A unit's numbers of two rows: pairs along k.
    struct Chunk {
        uint4 codes[2];
        std::uint32_t block_scales[2];
    };
    using Number = std::conditional_t<kGrouped, bfloat16, T>;  // exact
    __device__ __forceinline__ void unpack(const typename Format::template Constants<Number>& constants,
                                           const Chunk& chunk, int unit, std::uint32_t scales, int lane,
                                           int shift, std::uint32_t (&pairs)[2][4]) const {
        const bool has_offsets = kGrouped && p.w.offsets != nullptr;
        const std::uint32_t group =
            scales + ((32 * unit + 8 * (lane % 4)) >> shift) * (4 * kQuantRows) + lane / 4 * 4;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            std::uint32_t extra = 0;
            if constexpr (Format::kFormat == QuantFormat::int4) {
                extra = Int4::minus_zero<Number>(has_offsets ? 0 : 8);
            } else if constexpr (kBlocked) {
                extra = Nvfp4::scale<T>(chunk.block_scales[h], unit);
            }
            Format::template unpack<Number>(constants, chunk.codes[h], unit % kUnitsOfStep, extra, pairs[h]);
            if constexpr (kGrouped) {
                const float scale = __uint_as_float(load_shared_word(group + 32 * h));
                const float offset =
                    has_offsets
                        ? __uint_as_float(load_shared_word(group + 32 * h + kCodesTiles * 4 * p.stage_scales))
                        : 0.0f;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float2 two = unpack_pair<bfloat16>(pairs[h][i]);
                    pairs[h][i] = pack_pair<T>(fmaf(two.x, scale, offset), fmaf(two.y, scale, offset));
                }
            }
        }
    }

    __device__ __forceinline__ static Chunk chunk_of(std::uint32_t codes, std::uint32_t scales, int step,
                                                     int lane) {
        Chunk chunk;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            chunk.codes[h] = load_shared(codes + step * kQuantTileBytes + h * 512);
            if constexpr (kBlocked) {
                chunk.block_scales[h] = load_shared_word(scales + (8 * h + lane / 4) * 8 + lane % 4 / 2 * 4);
            }
        }
        return chunk;
    }

    __device__ __forceinline__ void multiply(int warp, int lane, float (&sums)[kCodesRows / 2]) const {
        const typename Format::template Constants<Number> constants;
        const int shift = kGrouped ? 31 - __clz(static_cast<int>(p.w.group)) : 0;
        // Rows of 128 bytes, k along them.
        const std::uint64_t first = wgmma_matrix(nullptr, 16, 1024);
        std::uint32_t turns[2][kUnits][4];  // of half a stage, one unpacked while the other is multiplied
        std::uint32_t slot = 0, phase = 0, last = 0;
        for (std::uint32_t i = at.begin; i < at.end; ++i) {
            const std::uint32_t stage = shared_address(shared) + slot * p.stage_pitch;
            const std::uint32_t codes = stage + kCodesAt + warp * kSteps * kQuantTileBytes + lane * 16;
            const std::uint32_t scales = stage + kScalesAt + warp * 4 * p.stage_scales;
            barrier_wait(full[slot], phase);
            Chunk chunk;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                std::uint32_t (&numbers)[kUnits][4] = turns[half];  // of an instruction each
#pragma unroll
                for (int u = half * kUnits / 2; u < (half + 1) * kUnits / 2; ++u) {
                    if (u % kUnitsOfStep == 0) chunk = chunk_of(codes, scales, u / kUnitsOfStep, lane);
                    std::uint32_t pairs[2][4];
                    unpack(constants, chunk, u, scales, lane, shift, pairs);
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        std::uint32_t (&a)[4] = numbers[u % 2 * 2 + j];
                        a[0] = pairs[0][2 * j], a[1] = pairs[1][2 * j];
                        a[2] = pairs[0][2 * j + 1], a[3] = pairs[1][2 * j + 1];
                    }
                }
                wgmma_fence();
#pragma unroll
                for (int j = 0; j < kUnits; ++j) {
                    const std::uint32_t by = stage + half * (kCodesRows * 128) + j * 32;
                    wgmma<T, kCodesRows>(sums, numbers[j], first | (by & 0x3ffff) >> 4,
                                         i > at.begin || half + j > 0);
                }
                wgmma_commit();
                wgmma_wait<1>();
                if (half == 0 && i > at.begin && lane == 0) barrier_arrive(empty[last]);
            }
            last = slot;
            if (++slot == static_cast<std::uint32_t>(p.stages)) slot = 0, phase ^= 1;
        }
        wgmma_wait<0>();
        wgmma_hold(sums);
    }
};

__device__ __forceinline__ float4 load_four_of(std::uint32_t address, std::uint32_t block) {
    float4 four;
    asm volatile(
        "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %4, %5;\n"
        "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n}\n"
        : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
        : "r"(address), "r"(block)
        : "memory");
    return four;
}

template <class Out>
__device__ __forceinline__ void store_four(const GemmCodesParams& p, std::int64_t row, std::int64_t column,
                                           const float4& sums) {
    Out* c = static_cast<Out*>(p.c) + row * p.c_row + column;
    const Vector<Out, 4> four = {convert<Out>(sums.x), convert<Out>(sums.y), convert<Out>(sums.z),
                                 convert<Out>(sums.w)};
    if (p.wide && column + 4 <= p.w.n) {
        *reinterpret_cast<Vector<Out, 4>*>(c) = four;
    } else {
        for (int i = 0; i < 4 && column + i < p.w.n; ++i) c[i] = four.values[i];
    }
}

template <class Format, class T, bool kGrouped>
__device__ __forceinline__ void gemm_codes(const GemmCodesParams& p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    auto* full = reinterpret_cast<Barrier*>(shared + p.stages * p.stage_pitch);
    Barrier* empty = full + p.stages;
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = threadIdx.x % 32;
    const std::uint32_t shares = cluster_blocks(), share = cluster_rank();
    const CodesPlace at(p);
    if (threadIdx.x == 0) {
        for (int i = 0; i < p.stages; ++i) {
            barrier_init(full[i], 1);
            barrier_init(empty[i], kCodesTiles);
        }
        barrier_init_fence();
    }
    __syncthreads();
    const GemmCodes<Format, T, kGrouped> work{p, at, shared, full, empty};
    float* const staging = reinterpret_cast<float*>(shared);
    if (warp == kCodesTiles) {
        if (lane == 0) work.feed();
        __syncwarp();
    } else {
        float sums[kCodesRows / 2];
        work.multiply(warp, lane, sums);
        named_barrier_sync(1, 32 * kCodesTiles);  // all of the ring has been read
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int column = warp * kQuantRows + lane / 4 + 8 * i;
            float factor = 1;
            if constexpr (!kGrouped) {
                factor = at.column + column < p.w.n ? Format::template factor<T>(p.w, at.column + column) : 0;
            }
#pragma unroll
            for (int j = 0; j < kCodesRows / 8; ++j) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int row = 8 * j + 2 * (lane % 4) + e;
                    staging[row * kCodesPitch + column] = sums[4 * j + 2 * i + e] * factor;
                }
            }
        }
    }
    if (shares > 1) {
        cluster_sync_threads();
    } else {
        __syncthreads();
    }
    // In the order of k.
    constexpr int kFours = kCodesColumns / 4;
    const int begin = kCodesRows * share / shares, end = kCodesRows * (share + 1) / shares;
    for (int i = begin * kFours + threadIdx.x; i < end * kFours; i += kCodesThreads) {
        const int row = i / kFours, column = i % kFours * 4;
        const std::uint32_t from = shared_address(staging + row * kCodesPitch + column);
        float4 sum = load_four_of(from, 0);
        for (std::uint32_t other = 1; other < shares; ++other) {
            const float4 add = load_four_of(from, other);
            sum.x += add.x, sum.y += add.y, sum.z += add.z, sum.w += add.w;
        }
        if (at.row + row >= p.m) break;
        if (p.float32_out) {
            store_four<float>(p, at.row + row, at.column + column, sum);
        } else {
            store_four<T>(p, at.row + row, at.column + column, sum);
        }
    }
    if (shares > 1) cluster_sync_threads();  // others may still read this block's sums
}

}  // namespace

// One block a multiprocessor: two came to one place while others had none.
#define GPK_GEMM_CODES_SYMBOL(T, type, format, Format, grouped)                   \
    extern "C" __global__ void __launch_bounds__(kCodesThreads, 1)                \
        gemm_codes_##type##_##format(const __grid_constant__ GemmCodesParams p) { \
        gemm_codes<Format, T, grouped>(p);                                        \
    }
#define GPK_ARRANGE_ROWS_SYMBOL(T, type)                                   \
    extern "C" __global__ void __launch_bounds__(256)                      \
        arrange_rows_##type(const __grid_constant__ ArrangeRowsParams p) { \
        arrange_rows<T>(p);                                                \
    }

}  // namespace gpk::kernels
