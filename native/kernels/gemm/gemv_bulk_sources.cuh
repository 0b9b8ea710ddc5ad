// Where gemv_bulk has weights of 16 bits from, and their x.
#pragma once

#include "kernels/gemm/gemv_bulk_copies.cuh"

namespace gpk::kernels {

namespace {

// Where x is: in shared memory; in registers, of up to 8 rows, as each lane multiplies with it; or it comes
// in each stage with the weights.
enum class BulkInput : int { shared, held, streamed };

// Weights of T that are contiguous along k: whole 64 of k. The map has them as [n][k / 64][64], and its box
// is a stage: a tile's columns, up to 16, as rows of 1 KiB.
template <class T, int kHeldUnits = 0>
struct RowsSource {
    static constexpr int kUnits = 1;         // of 32 weights, in a step
    static constexpr int kColumnGroups = 1;  // of 16, in a stage: a warp has one of them
    static constexpr int kRounds = 1;        // steps of it that a warp has
    static constexpr int kStageBytes = kBulkPlainStageBytes;
    static constexpr int kGroup = 0, kGroupSumsStep = 0;
    static constexpr bool kTurns = true;
    static constexpr int kHeld = kHeldUnits;  // of each warp
    static constexpr BulkInput kInput = kHeld > 0 ? BulkInput::held : BulkInput::shared;

    const TensorMap& weights;
    const T* x;  // rows x_row elements apart, 16-byte aligned
    std::int64_t x_row;
    std::uint32_t k;
    const GemmRowNorm& norm;
    std::uint32_t tile_columns;

    template <class Params>
    __device__ __forceinline__ static RowsSource of(const Params& params) {
        const GemmProblem& p = params.problem;
        return {params.weights, static_cast<const T*>(p.a), p.a_row, static_cast<std::uint32_t>(p.k), p.norm,
                params.columns};
    }
    __device__ __forceinline__ std::uint32_t columns() const { return tile_columns; }
    __device__ __forceinline__ std::uint32_t steps() const { return k / 32; }
    __device__ __forceinline__ void take_x(const BulkX& to, std::uint32_t thread) const {
        bulk_take_x(to, x, x_row, k, thread, [](const uint4& words, std::uint32_t) { return words; });
    }
    // Each unit's 16 bytes at t of row g, where they are held; normalised where there is a norm: a row's sum
    // has one order whatever m is. `squares`: [warps][8].
    template <int kCount>
    __device__ __forceinline__ void take_x(uint4 (&held)[kCount], std::uint32_t m, int warp, int lane,
                                           float* squares) const {
        const std::uint32_t row = lane / 4, first = warp * 32 + lane % 4 * 8;
        constexpr std::uint32_t kStep = 32 * kBulkWarps;
        const auto inside = [&](int i) { return first + i * kStep < k; };
        const T* from = x + row * x_row + first;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            held[i] = uint4{};
            if (row < m && inside(i)) held[i] = *reinterpret_cast<const uint4*>(from + i * kStep);
        }
        if (norm.weight == nullptr) return;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            float value[8];
            numbers(held[i], value);
#pragma unroll
            for (int j = 0; j < 8; ++j) sum = fmaf(value[j], value[j], sum);
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (lane % 4 == 0) squares[warp * 8 + row] = sum;
        named_barrier_sync(1, 32 * kBulkWarps);
        sum = 0;
#pragma unroll
        for (int w = 0; w < kBulkWarps; ++w) sum += squares[w * 8 + row];
        const float scale = rsqrtf(sum * (1.0f / static_cast<float>(k)) + norm.eps);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            float value[8], by[8];
            uint4 weights = {};
            if (inside(i)) {
                weights =
                    *reinterpret_cast<const uint4*>(static_cast<const T*>(norm.weight) + first + i * kStep);
            }
            numbers(held[i], value);
            numbers(weights, by);
#pragma unroll
            for (int j = 0; j < 8; ++j) value[j] = value[j] * scale * by[j];
            held[i] = packed(value);
        }
    }
    __device__ __forceinline__ static void numbers(const uint4& words, float (&to)[8]) {
        const std::uint32_t word[] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            T number;
            number.bits = static_cast<std::uint16_t>(word[j / 2] >> 16 * (j % 2));
            to[j] = float(number);
        }
    }
    __device__ __forceinline__ static uint4 packed(const float (&from)[8]) {
        std::uint32_t word[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            word[j] = T(from[2 * j]).bits | static_cast<std::uint32_t>(T(from[2 * j + 1]).bits) << 16;
        }
        return {word[0], word[1], word[2], word[3]};
    }
    __device__ __forceinline__ float of_row(std::uint32_t, float sum) const { return sum; }
    // By one thread. What lies outside comes as zeros.
    __device__ __forceinline__ void load_weights(std::uint32_t stage, std::uint32_t tile, std::uint32_t step,
                                                 std::uint32_t barrier) const {
        bulk_expect(barrier, tile_columns * (kStageBytes / 16));
        bulk_load_box(stage, weights, barrier, 0, step / 2, tile * tile_columns);
    }
    __device__ __forceinline__ void prefetch(std::uint32_t tile, std::uint32_t step) const {
        bulk_prefetch_box(weights, 0, step / 2, tile * tile_columns);
    }
    // Where in a stage this lane's part of its warp's step lies.
    struct Place {
        std::uint32_t data;
        __device__ __forceinline__ Place(const RowsSource&, int warp, int lane)
            : data(opaque(warp * 64 + lane / 4 * 1024 + lane % 4 * 16)) {}
    };
    template <int kTiles>
    struct Step {
        uint4 low, high;
        __device__ __forceinline__ Step(const Place& place, std::uint32_t stage, int)
            : low(load_shared(stage + place.data)), high(load_shared(stage + place.data + 8 * 1024)) {}
        // x_of(u, i): of unit u this lane's x of the rows 8 i to 8 i + 7.
        template <class X>
        __device__ __forceinline__ void multiply(const X& x_of, std::uint32_t, float (&sums)[kTiles][4]) {
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
                const uint4 x = x_of(0, i);
                multiply_add<T>(sums[i], low.x, high.x, low.y, high.y, x.x, x.y);
                multiply_add<T>(sums[i], low.z, high.z, low.w, high.w, x.z, x.w);
            }
        }
    };
    __device__ __forceinline__ float factor(std::uint32_t) const { return 1; }
};

// The same where x comes in parts beside them: a stage is up to 32 rows of 512 bytes, then of 256 of x the
// units of 32, eight rows each. The map of x has it as [k / 32][m][32].
template <class T, int>
struct StreamedSource {
    static constexpr int kUnits = 1, kColumnGroups = 2, kRounds = 1;
    static constexpr int kStageBytes = kBulkStreamedStageBytes;
    static constexpr int kGroup = 0, kGroupSumsStep = 0;
    static constexpr bool kTurns = true;
    static constexpr int kHeld = 0;
    static constexpr BulkInput kInput = BulkInput::streamed;

    const TensorMap& weights;
    const TensorMap& x;
    std::uint32_t k, tile_columns;

    __device__ __forceinline__ static StreamedSource of(const GemvBulkParams& params) {
        return {params.weights, params.x, static_cast<std::uint32_t>(params.problem.k), params.columns};
    }
    __device__ __forceinline__ std::uint32_t columns() const { return tile_columns; }
    __device__ __forceinline__ std::uint32_t steps() const { return k / 32; }
    __device__ __forceinline__ float of_row(std::uint32_t, float sum) const { return sum; }
    __device__ __forceinline__ float factor(std::uint32_t) const { return 1; }
    __device__ __forceinline__ void load_weights(std::uint32_t stage, std::uint32_t tile, std::uint32_t step,
                                                 std::uint32_t barrier) const {
        bulk_expect(barrier, 2 * kBulkStreamedDepth * (tile_columns + kBulkStreamedRows));
        bulk_load_box(stage, weights, barrier, 0, step / 2, tile * tile_columns);
    }
    __device__ __forceinline__ void load_x(std::uint32_t stage, std::uint32_t step,
                                           std::uint32_t barrier) const {
        bulk_load_box(stage + kBulkPlainStageBytes, x, barrier, 0, 0, step);
    }
    __device__ __forceinline__ void prefetch(std::uint32_t tile, std::uint32_t step) const {
        bulk_prefetch_box(weights, 0, step / 2, tile * tile_columns);
    }
    struct Place {
        std::uint32_t data;
        __device__ __forceinline__ Place(const StreamedSource&, int warp, int lane)
            : data(opaque((warp % kColumnGroups * 16 + lane / 4) * 512 + warp / kColumnGroups * 64 +
                          lane % 4 * 16)) {}
    };
    template <int kTiles>
    struct Step {
        uint4 low, high;
        __device__ __forceinline__ Step(const Place& place, std::uint32_t stage, int)
            : low(load_shared(stage + place.data)), high(load_shared(stage + place.data + 8 * 512)) {}
        template <class X>
        __device__ __forceinline__ void multiply(const X& x_of, std::uint32_t, float (&sums)[kTiles][4]) {
            static_assert(kTiles == 1);
            const uint4 x = x_of(0, 0);
            multiply_add<T>(sums[0], low.x, high.x, low.y, high.y, x.x, x.y);
            multiply_add<T>(sums[0], low.z, high.z, low.w, high.w, x.z, x.w);
        }
    };
};

// Weights of T that are contiguous along n. The map has them as [1][k][n], its box is a stage: 128 of k by 64
// columns, swizzled. ldmatrix turns 8 x 8 of them; which 8 of k is free, and chosen so that their places
// differ by the swizzle: of a unit of 32, in turn j = 0 to 3, 8 t + 2 ((t + j) % 4) and the one after it, of
// t = 0 to 3. So x's chunks are turned by their t.
template <class T, int>
struct ColumnsSource {
    static constexpr int kUnits = 1, kColumnGroups = 4, kRounds = 1;
    static constexpr int kStageBytes = kBulkPlainStageBytes;
    static constexpr int kGroup = 0, kGroupSumsStep = 0;
    static constexpr bool kTurns = true;
    static constexpr int kHeld = 0;
    static constexpr BulkInput kInput = BulkInput::shared;

    const TensorMap& weights;
    const T* x;
    std::int64_t x_row;
    std::uint32_t k;

    __device__ __forceinline__ static ColumnsSource of(const GemvBulkParams& params) {
        const GemmProblem& p = params.problem;
        return {params.weights, static_cast<const T*>(p.a), p.a_row, static_cast<std::uint32_t>(p.k)};
    }
    __device__ __forceinline__ std::uint32_t steps() const { return (k + 31) / 32; }
    __device__ __forceinline__ void take_x(const BulkX& to, std::uint32_t thread) const {
        bulk_take_x(to, x, x_row, k, thread, [](const uint4& w, std::uint32_t chunk) {
            const std::uint32_t t = chunk % 4;
            return t == 0   ? w
                   : t == 1 ? uint4{w.y, w.z, w.w, w.x}
                   : t == 2 ? uint4{w.z, w.w, w.x, w.y}
                            : uint4{w.w, w.x, w.y, w.z};
        });
    }
    __device__ __forceinline__ static constexpr std::uint32_t columns() { return 16 * kColumnGroups; }
    __device__ __forceinline__ float of_row(std::uint32_t, float sum) const { return sum; }
    __device__ __forceinline__ float factor(std::uint32_t) const { return 1; }
    __device__ __forceinline__ void load_weights(std::uint32_t stage, std::uint32_t tile, std::uint32_t step,
                                                 std::uint32_t barrier) const {
        bulk_expect(barrier, kStageBytes);
        bulk_load_box(stage, weights, barrier, tile * 64, step * 32, 0);
    }
    __device__ __forceinline__ void prefetch(std::uint32_t tile, std::uint32_t step) const {
        bulk_prefetch_box(weights, tile * 64, step * 32, 0);
    }
    // Of the lane's row of each of two times four matrices: j 0 and 1, then 2 and 3; of each, columns 0 to 7
    // and 8 to 15.
    struct Place {
        std::uint32_t data[2];
        __device__ __forceinline__ Place(const ColumnsSource&, int warp, int lane) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int t = lane % 8 / 2, j = 2 * i + lane / 16;
                const int row = warp / kColumnGroups * 32 + 8 * t + 2 * ((t + j) % 4) + lane % 2;
                const int chunk = warp % kColumnGroups * 2 + lane / 8 % 2;
                data[i] = opaque(row * 128 + (chunk ^ row % 8) * 16);
            }
        }
    };
    template <int kTiles>
    struct Step {
        std::uint32_t a[2][4];
        __device__ __forceinline__ Step(const Place& place, std::uint32_t stage, int) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                             : "=r"(a[i][0]), "=r"(a[i][1]), "=r"(a[i][2]), "=r"(a[i][3])
                             : "r"(stage + place.data[i]));
            }
        }
        template <class X>
        __device__ __forceinline__ void multiply(const X& x_of, std::uint32_t, float (&sums)[kTiles][4]) {
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
                const uint4 x = x_of(0, i);
                multiply_add<T>(sums[i], a[0][0], a[0][1], a[0][2], a[0][3], x.x, x.y);
                multiply_add<T>(sums[i], a[1][0], a[1][1], a[1][2], a[1][3], x.z, x.w);
            }
        }
    };
};

}  // namespace

}  // namespace gpk::kernels
