#include "kernels/gemm/gemm_float64.hpp"

#include "kernels/device.cuh"
#include "kernels/gemm/tiles.cuh"

namespace gpk::kernels {

namespace {

constexpr int kTile = kGemmFloat64Tile, kDepth = kGemmFloat64Depth, kStages = kGemmFloat64Stages;
constexpr int kPitch = kGemmFloat64Pitch, kThreads = kGemmFloat64Threads;
constexpr int kPart = kDepth * kPitch;

// Copies 8 bytes past the registers, or writes zeros.
__device__ __forceinline__ void copy_async(double* to, const double* from, bool inside) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(
                     static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
                 "l"(from), "r"(inside ? 8 : 0));
}

// A thread's share of the parts of an operand, on their way to shared memory, where a part is
// [kDepth][kPitch], k by k. Where k is contiguous, four neighbouring threads read 32 bytes of it.
struct Parts {
    static constexpr int kCount = kTile * kDepth / kThreads;
    const double* next;
    std::int64_t k_stride, k_step, row_step;  // to the next turn along k; to the first one of the next rows
    bool along_k;
    int k, index, count;

    __device__ __forceinline__ Parts(const double* tile, std::int64_t stride, std::int64_t k_stride_,
                                     int count_)
        : k_stride(k_stride_), along_k(k_stride_ == 1), count(count_) {
        const int t = threadIdx.x;
        k = along_k ? t % 4 : t / kTile;
        index = along_k ? t / 4 : t % kTile;
        k_step = along_k ? 4 : kThreads / kTile * k_stride;
        row_step = kThreads / 4 * stride - 12;
        next = tile + index * stride + k * k_stride;
    }
    __device__ __forceinline__ void begin(double* to, std::int64_t left) {
        const double* from = next;
        to += k * kPitch + index;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const int k_turn = along_k ? i % 4 * 4 : i * (kThreads / kTile);
            const int index_turn = along_k ? i / 4 * (kThreads / 4) : 0;
            const bool inside = index + index_turn < count && k + k_turn < left;
            copy_async(to + k_turn * kPitch + index_turn, inside ? from : next, inside);
            from += along_k && i % 4 == 3 ? row_step : k_step;
        }
        next += kDepth * k_stride;
    }
};
static_assert(kDepth == 16, "Parts::begin() covers 16 of k in four turns of four");

// d (16 x 8) += a (16 x 8) * b (8 x 8). Thread t holds a[2 * j + i] of row t / 4 + 8 * i, column t % 4 + 4 *
// j; b[j] of row t % 4 + 4 * j, column t / 4; d[2 * i + e] of row t / 4 + 8 * i, column 2 * (t % 4) + e.
__device__ __forceinline__ void multiply(double (&d)[4], const double (&a)[4], const double (&b)[2]) {
#if __CUDA_ARCH__ >= 900  // twice the rate of m8n8k4 there
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                         : "+d"(d[2 * i]), "+d"(d[2 * i + 1])
                         : "d"(a[2 * j + i]), "d"(b[j]));
        }
    }
#endif
}

}  // namespace

// Eight warps, two by four: each makes 64 x 32 of the tile.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    gemm_float64(const __grid_constant__ GemmProblem p) {
    wait_for_predecessor();
    constexpr int kRowTurns = 4, kColumnTurns = 4;
    extern __shared__ __align__(16) double shared[];
    double* const a_parts = shared;
    double* const b_parts = shared + kStages * kPart;

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp % 2 * 64 + lane / 4, column = warp / 2 * 32 + lane / 4, depth = lane % 4;
    const Tile tile = tile_of_block(blockIdx.x, (p.m + kTile - 1) / kTile, (p.n + kTile - 1) / kTile);
    const std::int64_t row0 = tile.row * kTile, column0 = tile.column * kTile;
    const int rows = p.m - row0 < kTile ? static_cast<int>(p.m - row0) : kTile;
    const int columns = p.n - column0 < kTile ? static_cast<int>(p.n - column0) : kTile;

    for (std::int64_t batch = blockIdx.y; batch < p.batches; batch += gridDim.y) {
        const BatchOffsets offsets = batch_offsets(p, batch);
        Parts a(static_cast<const double*>(p.a) + offsets.a + row0 * p.a_row, p.a_row, p.a_col, rows);
        Parts b(static_cast<const double*>(p.b) + offsets.b + column0 * p.b_col, p.b_col, p.b_row, columns);
        std::int64_t left = p.k;  // that no begin() has asked for
        const auto begin = [&](int stage) {
            if (left > 0) {
                a.begin(a_parts + stage * kPart, left);
                b.begin(b_parts + stage * kPart, left);
            }
            left -= kDepth;
            asm volatile("cp.async.commit_group;");
        };
#pragma unroll
        for (int stage = 0; stage < kStages - 1; ++stage) begin(stage);
        double sums[kRowTurns][kColumnTurns][4] = {};
        int now = 0, later = kStages - 1;
        for (std::int64_t k0 = 0; k0 < p.k; k0 += kDepth) {
            asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
            __syncthreads();
            begin(later);
            const double* a_now = a_parts + now * kPart;
            const double* b_now = b_parts + now * kPart;
#pragma unroll
            for (int l0 = 0; l0 < kDepth; l0 += 8) {
                double x[kRowTurns][4], y[kColumnTurns][2];
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const double* a_line = a_now + (l0 + 4 * j + depth) * kPitch + row;
                    const double* b_line = b_now + (l0 + 4 * j + depth) * kPitch + column;
#pragma unroll
                    for (int turn = 0; turn < kRowTurns; ++turn) {
                        x[turn][2 * j] = a_line[turn * 16];
                        x[turn][2 * j + 1] = a_line[turn * 16 + 8];
                    }
#pragma unroll
                    for (int turn = 0; turn < kColumnTurns; ++turn) y[turn][j] = b_line[turn * 8];
                }
#pragma unroll
                for (int i = 0; i < kRowTurns; ++i) {
#pragma unroll
                    for (int j = 0; j < kColumnTurns; ++j) multiply(sums[i][j], x[i], y[j]);
                }
            }
            now = now + 1 == kStages ? 0 : now + 1;
            later = later + 1 == kStages ? 0 : later + 1;
        }

        double* c = static_cast<double*>(p.c) + offsets.c + row0 * p.c_row + column0 * p.c_col;
        const int column_first = warp / 2 * 32 + depth * 2;
#pragma unroll
        for (int i = 0; i < 2 * kRowTurns; ++i) {
            if (row + i * 8 >= rows) continue;
            double* line = c + (row + i * 8) * p.c_row;
#pragma unroll
            for (int j = 0; j < kColumnTurns; ++j) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int at = column_first + j * 8 + e;
                    if (at < columns) line[at * p.c_col] = sums[i / 2][j][i % 2 * 2 + e];
                }
            }
        }
        __syncthreads();  // the next batch overwrites the parts
    }
}

}  // namespace gpk::kernels
