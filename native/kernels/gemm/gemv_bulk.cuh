// Products of few rows where the copy engine brings the weights (SM 90): one warp of a block keeps it busy,
// 16 KiB at a time into a ring of shared memory, the others multiply. Blocks stay and take tile after tile
// of 16 columns of c, so that the stream of weights never stops while sums are added up.
#pragma once

#include "kernels/gemm/gemv_bulk.hpp"
#include "kernels/gemm/gemv_quantized.cuh"
#include "kernels/hopper.cuh"

namespace gpk::kernels {

namespace {

__device__ __forceinline__ void bulk_load(std::uint32_t to, const void* from, std::uint32_t bytes,
                                          Barrier& barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
        "[%3], "
        "%4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(shared_address(&barrier)),
        "l"(static_cast<std::uint64_t>(CachePolicy::evict_first))
        : "memory");
}
// What the compiler should keep rather than make again in every round.
__device__ __forceinline__ std::uint32_t opaque(std::uint32_t value) {
    asm volatile("mov.b32 %0, %0;" : "+r"(value));
    return value;
}
__device__ __forceinline__ uint4 load_shared(std::uint32_t address) {
    uint4 words;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(address));
    return words;
}
__device__ __forceinline__ std::uint32_t load_shared_word(std::uint32_t address) {
    std::uint32_t word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address));
    return word;
}
__device__ __forceinline__ std::uint32_t load_shared_half(std::uint32_t address) {
    std::uint16_t half;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(address));
    return half;
}
__device__ __forceinline__ std::uint32_t load_shared_byte(std::uint32_t address) {
    std::uint32_t byte;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(byte) : "r"(address));
    return byte;
}
__device__ __forceinline__ void store_shared(std::uint32_t address, const uint4& words) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words.x), "r"(words.y),
                 "r"(words.z), "r"(words.w)
                 : "memory");
}

// Weights of T as they are in an array: whole 64 of k. The map has them as [n][k / 64][64], and its box is a
// stage: 16 rows of 1 KiB.
template <class T>
struct PlainSource {
    static constexpr int kUnits = 1;  // of 32 weights, in a step
    static constexpr int kStageBytes = kBulkPlainStageBytes;
    struct Constants {};

    const TensorMap& weights;
    std::uint32_t k;

    __device__ __forceinline__ std::uint32_t steps() const { return k / 32; }
    // By one thread. What lies outside comes as zeros.
    __device__ __forceinline__ void load(std::uint32_t stage, std::uint32_t tile, std::uint32_t first_step,
                                         std::uint32_t, Barrier& barrier) const {
        barrier_expect(barrier, kStageBytes);
        tma_load(__cvta_shared_to_generic(stage), weights, barrier, CachePolicy::evict_first, 0,
                 first_step / 2, tile * 16);
    }
    // Where in a stage this lane's part of its warp's step lies.
    struct Place {
        std::uint32_t data;
        __device__ __forceinline__ Place(const PlainSource&, int warp, int lane)
            : data(opaque(warp * 64 + lane / 4 * 1024 + lane % 4 * 16)) {}
    };
    template <int kTiles>
    struct Step {
        uint4 low, high;
        __device__ __forceinline__ Step(const Place& place, std::uint32_t stage)
            : low(load_shared(stage + place.data)), high(load_shared(stage + place.data + 8 * 1024)) {}
        __device__ __forceinline__ void multiply(const Constants&, const uint4 (&x)[kUnits][kTiles],
                                                 float (&sums)[kTiles][4]) {
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
                multiply_add<T>(sums[i], low.x, high.x, low.y, high.y, x[0][i].x, x[0][i].y);
                multiply_add<T>(sums[i], low.z, high.z, low.w, high.w, x[0][i].z, x[0][i].w);
            }
        }
    };
    __device__ __forceinline__ float factor(std::uint32_t) const { return 1; }
};

// A quantised weight. kUnitsPerGroup as in gemv_quantized.
template <class Format, class T, int kUnitsPerGroup>
struct QuantizedSource {
    static constexpr bool kGrouped = Format::kFormat == QuantFormat::int4;
    static constexpr bool kBlocked = Format::kFormat == QuantFormat::nvfp4;
    static constexpr int kUnits = quant_step(Format::kFormat) / 32;
    static constexpr int kGroups = kGrouped ? kUnits / kUnitsPerGroup : 1;            // of a row in a step
    static constexpr int kScaleBytes = kGrouped ? 32 * kGroups : kBlocked ? 128 : 0;  // of a step
    static constexpr int kZeroBytes = kGrouped ? 16 * kGroups : 0;
    static constexpr int kScales = kBulkSteps * kQuantTileBytes;
    static constexpr int kZeros = kScales + kBulkSteps * kScaleBytes;
    static constexpr int kStageBytes = kZeros + kBulkSteps * kZeroBytes;
    static_assert(kStageBytes == bulk_stage_bytes(Format::kFormat, 32 * kUnitsPerGroup));

    using Constants = typename Format::template Constants<T>;

    QuantLayout w;

    __device__ __forceinline__ std::uint32_t steps() const {
        return static_cast<std::uint32_t>(quant_steps(Format::kFormat, w.k));
    }
    __device__ __forceinline__ void load(std::uint32_t stage, std::uint32_t tile, std::uint32_t first_step,
                                         std::uint32_t count, Barrier& barrier) const {
        std::uint32_t zero_bytes = 0;
        const std::uint32_t scale_bytes = kScaleBytes * count;
        const std::uint64_t first_scale = (std::uint64_t{tile} * steps() + first_step) * kScaleBytes;
        if constexpr (kGrouped) {
            if (w.zeros != nullptr) zero_bytes = kZeroBytes * count;
        }
        barrier_expect(barrier, kQuantTileBytes * count + scale_bytes + zero_bytes);
        bulk_load(
            stage,
            static_cast<const char*>(w.data) + (std::uint64_t{tile} * steps() + first_step) * kQuantTileBytes,
            kQuantTileBytes * count, barrier);
        if constexpr (kGrouped || kBlocked) {
            bulk_load(stage + kScales, static_cast<const char*>(w.scales) + first_scale, scale_bytes,
                      barrier);
        }
        if constexpr (kGrouped) {
            if (zero_bytes != 0) bulk_load(stage + kZeros, w.zeros + first_scale / 2, zero_bytes, barrier);
        }
    }
    struct Place {
        std::uint32_t data, scales, zeros;
        bool has_zeros;
        __device__ __forceinline__ Place(const QuantizedSource& source, int warp, int lane)
            : data(opaque(warp * kQuantTileBytes + lane * 16)),
              scales(opaque(kScales + (kGrouped ? (warp * kGroups * 16 + lane / 4) * 2
                                                : warp * 128 + lane / 4 * 8 + lane % 4 / 2 * 4))),
              zeros(opaque(kZeros + warp * kGroups * 16 + lane / 4)),
              has_zeros(source.w.zeros != nullptr) {}
    };
    template <int kTiles>
    struct Step {
        uint4 chunks[2];
        std::uint32_t scales[2][kGroups], zeros[2][kGroups];
        __device__ __forceinline__ Step(const Place& place, std::uint32_t stage) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                chunks[h] = load_shared(stage + place.data + h * 512);
                if constexpr (kGrouped) {
#pragma unroll
                    for (int e = 0; e < kGroups; ++e) {
                        scales[h][e] = load_shared_half(stage + place.scales + (16 * e + 8 * h) * 2) << 16;
                        zeros[h][e] = Int4::minus_zero<T>(8);
                    }
                } else if constexpr (kBlocked) {
                    scales[h][0] = load_shared_word(stage + place.scales + 64 * h);
                }
            }
            if constexpr (kGrouped) {
                if (place.has_zeros) {
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
#pragma unroll
                        for (int e = 0; e < kGroups; ++e) {
                            zeros[h][e] =
                                Int4::minus_zero<T>(load_shared_byte(stage + place.zeros + 16 * e + 8 * h));
                        }
                    }
                }
            }
        }
        __device__ __forceinline__ void multiply(const Constants& constants, const uint4 (&x)[kUnits][kTiles],
                                                 float (&sums)[kTiles][4]) {
            // Two chains of sums, so that one need not wait for the other.
            float chains[2][kTiles][4];
#pragma unroll
            for (int u = 0; u < kUnits; ++u) {
                std::uint32_t pairs[2][4];
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    std::uint32_t extra = 0;
                    if constexpr (kGrouped) extra = zeros[h][u / kUnitsPerGroup];
                    if constexpr (kBlocked) extra = Nvfp4::scale<T>(scales[h][0], u);
                    Format::template unpack<T>(constants, chunks[h], u, extra, pairs[h]);
                }
                const bool begins = kGrouped ? u % kUnitsPerGroup == 0 : u == 0;
                const bool ends = kGrouped ? u % kUnitsPerGroup == kUnitsPerGroup - 1 : u == kUnits - 1;
#pragma unroll
                for (int i = 0; i < kTiles; ++i) {
                    const uint4& b = x[u][i];
                    if (begins) {
#pragma unroll
                        for (int e = 0; e < 4; ++e) chains[0][i][e] = chains[1][i][e] = 0;
                    }
                    multiply_add<T>(chains[0][i], pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1], b.x,
                                    b.y);
                    multiply_add<T>(chains[1][i], pairs[0][2], pairs[1][2], pairs[0][3], pairs[1][3], b.z,
                                    b.w);
                    if (ends) {
#pragma unroll
                        for (int e = 0; e < 4; ++e) {
                            const float sum = chains[0][i][e] + chains[1][i][e];
                            if constexpr (kGrouped) {
                                sums[i][e] += sum * __uint_as_float(scales[e / 2][u / kUnitsPerGroup]);
                            } else {
                                sums[i][e] += sum;
                            }
                        }
                    }
                }
            }
        }
    };
    __device__ __forceinline__ float factor(std::uint32_t column) const {
        if constexpr (kGrouped) return 1;
        if constexpr (!kGrouped) return Format::template factor<T>(w, column);
    }
};

// store(row, column, sum) is given each sum once. x: rows x_row elements apart, 16-byte aligned.
//
// Shared memory holds the ring, then x as the tensor cores want it: for each unit of 32 of k, each row, each
// t the 16 bytes at 8 t; then as many zeros as one step has of x, for the rows up to 8 (16) that are not
// there.
template <class Source, class T, int kTiles, class Store>
__device__ __forceinline__ void gemv_bulk(const Source& source, const T* x, std::int64_t x_row,
                                          std::uint32_t m, std::uint32_t n, std::uint32_t k, Store store) {
    constexpr int kUnits = Source::kUnits, kElements = 16 * 8 * kTiles, kThreads = 32 * kBulkWarps;
    static_assert(kBulkSteps == kBulkWarps);
    extern __shared__ __align__(128) unsigned char dynamic[];
    __shared__ float parts[2][kBulkWarps][kElements];
    __shared__ Barrier full[kBulkStages], empty[kBulkStages];
    std::uint32_t shared_bytes, thread;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(shared_bytes));
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));  // once: not in every round

    const std::uint32_t steps = source.steps(), units = steps * kUnits;
    const std::uint32_t ring = shared_address(dynamic);
    const std::uint32_t stages =
        (shared_bytes - static_cast<std::uint32_t>(bulk_x_bytes(m, units, kUnits))) / Source::kStageBytes;
    const std::uint32_t x_begin = ring + stages * Source::kStageBytes, zeros = x_begin + 64 * m * units;
    const std::uint32_t tiles = (n + 15) / 16;
    const int warp = static_cast<int>(thread / 32), lane = static_cast<int>(thread % 32), g = lane / 4,
              t = lane % 4;

    if (thread < stages) {
        barrier_init(full[thread], 1);
        barrier_init(empty[thread], kBulkWarps);
        barrier_init_fence();
    }
    for (std::uint32_t i = thread; i < 4 * m * kUnits; i += kBulkThreads)
        store_shared(zeros + i * 16, uint4{});
    __syncthreads();
    wait_for_predecessor();
    // The next kernel may take its place and wait there.
    asm volatile("griddepcontrol.launch_dependents;");

    std::uint32_t stage = 0, parity = 0;
    const auto next_stage = [&] {
        if (++stage == stages) stage = 0, parity ^= 1;
    };
    if (warp == kBulkWarps) {
        if (lane != 0) return;
        for (std::uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            for (std::uint32_t step = 0; step < steps; step += kBulkSteps) {
                barrier_wait(empty[stage], parity ^ 1);
                source.load(ring + stage * Source::kStageBytes, tile, step,
                            steps - step < kBulkSteps ? steps - step : kBulkSteps, full[stage]);
                next_stage();
            }
        }
        return;
    }

    // Meanwhile x comes, some rows at a time.
    constexpr int kAhead = 4;
    for (std::uint32_t row = 0; row < m; row += kAhead) {
        for (std::uint32_t chunk = thread; chunk < 4 * units; chunk += kThreads) {
            uint4 words[kAhead];
#pragma unroll
            for (int i = 0; i < kAhead; ++i) {
                const T* from = x + (row + i) * x_row + chunk * 8;
                words[i] = uint4{};
                if (row + i >= m || chunk * 8 >= k) continue;
                words[i] = chunk * 8 + 8 <= k ? *reinterpret_cast<const uint4*>(from)
                                              : load_some(from, 1, k - chunk * 8);
            }
#pragma unroll
            for (int i = 0; i < kAhead; ++i) {
                if (row + i < m) {
                    store_shared(x_begin + (chunk / 4 * m + row + i) * 64 + chunk % 4 * 16, words[i]);
                }
            }
        }
    }
    named_barrier_sync(1, kThreads);

    const typename Source::Constants constants;
    const typename Source::Place place(source, warp, lane);
    // This lane's x for the first unit of its warp's step, and how far it is to the next unit.
    std::uint32_t x_from[kTiles], x_unit[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
        const std::uint32_t row = 8 * i + g;
        x_unit[i] = opaque(row < m ? m * 64 : 0);
        x_from[i] = opaque((row < m ? x_begin + row * 64 : zeros) + t * 16 + warp * kUnits * x_unit[i]);
    }
    std::uint32_t stage_begin = ring;
    int buffer = 0;
    for (std::uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x, buffer ^= 1) {
        float sums[kTiles][4] = {};
        std::uint32_t x_at[kTiles];
#pragma unroll
        for (int i = 0; i < kTiles; ++i) x_at[i] = x_from[i];
        for (std::uint32_t step = warp; step < steps + warp; step += kBulkSteps) {
            barrier_wait(full[stage], parity);
            if (step < steps) {
                typename Source::template Step<kTiles> parts_of_step(place, stage_begin);
                uint4 v[kUnits][kTiles];
#pragma unroll
                for (int u = 0; u < kUnits; ++u) {
#pragma unroll
                    for (int i = 0; i < kTiles; ++i) v[u][i] = load_shared(x_at[i] + u * x_unit[i]);
                }
                parts_of_step.multiply(constants, v, sums);
            }
#pragma unroll
            for (int i = 0; i < kTiles; ++i) x_at[i] += kBulkSteps * kUnits * x_unit[i];
            __syncwarp();
            if (lane == 0) barrier_arrive(empty[stage]);
            stage_begin += Source::kStageBytes;
            next_stage();
            if (stage == 0) stage_begin = ring;
        }
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                parts[buffer][warp][(8 * i + 2 * t + e % 2) * 16 + 8 * (e / 2) + g] = sums[i][e];
            }
        }
        named_barrier_sync(1, kThreads);
#pragma unroll 1
        for (std::uint32_t element = thread; element < 16 * m; element += kThreads) {
            float sum = 0;
#pragma unroll
            for (int other = 0; other < kBulkWarps; ++other) sum += parts[buffer][other][element];
            const std::uint32_t column = tile * 16 + element % 16;
            if (column < n) store(element / 16, column, sum * source.factor(column));
        }
    }
}

}  // namespace

#define GPK_GEMV_BULK_SYMBOL(T, type, Out, suffix, tiles)                                                 \
    extern "C" __global__ void __launch_bounds__(kBulkThreads, 1)                                         \
        gemv_bulk_##type##suffix##_tiles##tiles(const __grid_constant__ GemvBulkParams params) {          \
        const GemmProblem& p = params.problem;                                                            \
        const auto k = static_cast<std::uint32_t>(p.k);                                                   \
        gemv_bulk<PlainSource<T>, T, tiles>(                                                              \
            {params.weights, k}, static_cast<const T*>(p.a), p.a_row, static_cast<std::uint32_t>(p.m),    \
            static_cast<std::uint32_t>(p.n), k, [&](std::uint32_t row, std::uint32_t column, float sum) { \
                static_cast<Out*>(p.c)[row * p.c_row + column * p.c_col] = convert<Out>(sum);             \
            });                                                                                           \
    }
#define GPK_GEMV_BULK_QUANTIZED_SYMBOL(T, type, format, Format, units, tiles)                                \
    extern "C" __global__ void __launch_bounds__(kBulkThreads, 1)                                            \
        gemv_bulk_##type##_##format##_tiles##tiles(const __grid_constant__ GemvQuantizedParams p) {          \
        gemv_bulk<QuantizedSource<Format, T, units>, T, tiles>(                                              \
            {p.w}, static_cast<const T*>(p.x), p.x_row, static_cast<std::uint32_t>(p.m),                     \
            static_cast<std::uint32_t>(p.w.n), static_cast<std::uint32_t>(p.w.k),                            \
            [&](std::uint32_t row, std::uint32_t column, float sum) { store_sum<T>(p, row, column, sum); }); \
    }

}  // namespace gpk::kernels
