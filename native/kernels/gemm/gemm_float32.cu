#include "kernels/gemm/gemm_float32.hpp"

#include "kernels/device.cuh"
#include "kernels/gemm/tiles.cuh"

namespace gpk::kernels {

namespace {

constexpr int kDepth = kGemmFloat32Depth, kStages = kGemmFloat32Stages, kThreads = kGemmFloat32Threads;

// Copies 16 (or 4) bytes past the registers, of which `bytes` are read and the rest are zeros.
template <int kBytes>
__device__ __forceinline__ void copy_async(float* to, const float* from, int bytes) {
    const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
    if constexpr (kBytes == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(bytes));
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(from), "r"(bytes));
    }
}

// A thread's share of the parts of an operand, kDepth of k each, on their way to shared memory, where a part
// is [kDepth][kPitch]: k by k, whatever it was. begin() starts a part, end() finishes it; the part after the
// next barrier may be read.
template <Float32Operand kOperand, int kExtent, int kPitch>
struct Parts;

// The rows (columns) follow one another: copied as they are.
template <int kExtent, int kPitch>
struct Parts<Float32Operand::across, kExtent, kPitch> {
    static constexpr int kWide = kExtent / 4, kRows = kThreads / kWide, kCount = kDepth / kRows;
    const float* next;
    std::int64_t k_stride;
    int k, index, bytes;

    __device__ __forceinline__ Parts(const float* tile, std::int64_t, std::int64_t k_stride_, int count)
        : k_stride(k_stride_), k(threadIdx.x / kWide), index(threadIdx.x % kWide * 4) {
        bytes = count - index <= 0 ? 0 : (count - index < 4 ? (count - index) * 4 : 16);
        next = bytes == 0 ? tile : tile + k * k_stride + index;
    }
    __device__ __forceinline__ void begin(float* to, std::int64_t left) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const bool inside = k + i * kRows < left;
            copy_async<16>(to + (k + i * kRows) * kPitch + index, inside ? next + i * kRows * k_stride : next,
                           inside ? bytes : 0);
        }
        next += kDepth * k_stride;
    }
    __device__ __forceinline__ void end(float*) const {}
};

// k by k: four at a time through registers. Two neighbouring threads share a row, so that 32 bytes are read
// together and the stores of a warp meet each bank once.
template <int kExtent, int kPitch>
struct Parts<Float32Operand::along_k, kExtent, kPitch> {
    static constexpr int kRows = kThreads / 2, kTurns = kExtent / kRows, kPairs = kDepth / 8;
    const float* rows[kTurns];
    Vector<float, 4> values[kTurns][kPairs];
    int k, index;

    __device__ __forceinline__ Parts(const float* tile, std::int64_t stride, std::int64_t, int count)
        : k(threadIdx.x % 2 * 4), index(threadIdx.x / 2) {
#pragma unroll
        for (int i = 0; i < kTurns; ++i) {
            const int row = index + i * kRows < count ? index + i * kRows : count - 1;  // nobody stores it
            rows[i] = tile + row * stride + k;
        }
    }
    __device__ __forceinline__ void begin(float*, std::int64_t left) {
#pragma unroll
        for (int i = 0; i < kTurns; ++i) {
#pragma unroll
            for (int j = 0; j < kPairs; ++j) {
                if (k + j * 8 + 4 <= left) {
                    values[i][j] = *reinterpret_cast<const Vector<float, 4>*>(rows[i] + j * 8);
                } else {
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        values[i][j].values[e] = k + j * 8 + e < left ? rows[i][j * 8 + e] : 0.0f;
                    }
                }
            }
            rows[i] += kDepth;
        }
    }
    __device__ __forceinline__ void end(float* to) const {
#pragma unroll
        for (int i = 0; i < kTurns; ++i) {
#pragma unroll
            for (int j = 0; j < kPairs; ++j) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    to[(k + j * 8 + e) * kPitch + index + i * kRows] = values[i][j].values[e];
                }
            }
        }
    }
};

// Any strides: element by element, neighbouring threads along k where that is contiguous.
template <int kExtent, int kPitch>
struct Parts<Float32Operand::any, kExtent, kPitch> {
    static constexpr int kCount = kExtent * kDepth / kThreads;
    const float* next;
    std::int64_t step, part_step;
    int k, index, k_step, index_step, count;

    __device__ __forceinline__ Parts(const float* tile, std::int64_t stride, std::int64_t k_stride,
                                     int count_)
        : part_step(kDepth * k_stride), count(count_) {
        const bool along_k = k_stride == 1;
        const int t = threadIdx.x;
        k = along_k ? t % kDepth : t / kExtent;
        index = along_k ? t / kDepth : t % kExtent;
        k_step = along_k ? 0 : kThreads / kExtent;
        index_step = along_k ? kThreads / kDepth : 0;
        step = index_step * stride + k_step * k_stride;
        next = tile + index * stride + k * k_stride;
    }
    __device__ __forceinline__ void begin(float* to, std::int64_t left) {
        const float* from = next;
#pragma unroll
        for (int i = 0; i < kCount; ++i, from += step) {
            const int at_k = k + i * k_step, at = index + i * index_step;
            const bool inside = at < count && at_k < left;
            copy_async<4>(to + at_k * kPitch + at, inside ? from : next, inside ? 4 : 0);
        }
        next += part_step;
    }
    __device__ __forceinline__ void end(float*) const {}
};

// A thread's rows are 4 * lane_row + 0..3, and the next 16, 32 and 48 further on of its warp's 64; its
// columns 4 * lane_column + 0..3 and the next 32 further on. So each read of shared memory is 16 bytes, and
// what a warp reads lies together.
template <Float32Operand kA, Float32Operand kB>
__device__ __forceinline__ void gemm_float32(const GemmProblem& p) {
    constexpr int kRows = kGemmFloat32Rows, kColumns = kGemmFloat32Columns;
    constexpr int kAPitch = kRows + 4, kBPitch = kColumns + 4;
    constexpr int kAPart = kDepth * kAPitch, kBPart = kDepth * kBPitch;
    extern __shared__ __align__(16) float shared[];
    float* const a_parts = shared;
    float* const b_parts = shared + kStages * kAPart;

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp % 2 * 64 + lane / 8 * 4, column = warp / 2 * 64 + lane % 8 * 4;
    const Tile tile = tile_of_block(blockIdx.x, (p.m + kRows - 1) / kRows, (p.n + kColumns - 1) / kColumns);
    const std::int64_t row0 = tile.row * kRows, column0 = tile.column * kColumns;
    const int rows = p.m - row0 < kRows ? static_cast<int>(p.m - row0) : kRows;
    const int columns = p.n - column0 < kColumns ? static_cast<int>(p.n - column0) : kColumns;

    for (std::int64_t batch = blockIdx.y; batch < p.batches; batch += gridDim.y) {
        const BatchOffsets offsets = batch_offsets(p, batch);
        Parts<kA, kRows, kAPitch> a(static_cast<const float*>(p.a) + offsets.a + row0 * p.a_row, p.a_row,
                                    p.a_col, rows);
        Parts<kB, kColumns, kBPitch> b(static_cast<const float*>(p.b) + offsets.b + column0 * p.b_col,
                                       p.b_col, p.b_row, columns);
        std::int64_t left = p.k;  // that no begin() has asked for
#pragma unroll
        for (int stage = 0; stage < kStages - 1; ++stage) {
            if (left > 0) {
                a.begin(a_parts + stage * kAPart, left);
                b.begin(b_parts + stage * kBPart, left);
                a.end(a_parts + stage * kAPart);
                b.end(b_parts + stage * kBPart);
            }
            left -= kDepth;
            asm volatile("cp.async.commit_group;");
        }
        float sums[16][8] = {};
        int now = 0, later = kStages - 1;
        for (std::int64_t k0 = 0; k0 < p.k; k0 += kDepth) {
            asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
            __syncthreads();
            const bool more = left > 0;
            if (more) {
                a.begin(a_parts + later * kAPart, left);
                b.begin(b_parts + later * kBPart, left);
            }
            asm volatile("cp.async.commit_group;");
            const float* a_now = a_parts + now * kAPart + row;
            const float* b_now = b_parts + now * kBPart + column;
            Vector<float, 4> x[2][4], y[2][2];
            const auto fetch = [&](int l) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    x[l % 2][i] = *reinterpret_cast<const Vector<float, 4>*>(a_now + l * kAPitch + i * 16);
                }
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    y[l % 2][j] = *reinterpret_cast<const Vector<float, 4>*>(b_now + l * kBPitch + j * 32);
                }
            };
            fetch(0);
#pragma unroll
            for (int l = 0; l < kDepth; ++l) {
                if (l + 1 < kDepth) fetch(l + 1);
#pragma unroll
                for (int i = 0; i < 16; ++i) {
#pragma unroll
                    for (int j = 0; j < 8; ++j) {
                        sums[i][j] =
                            fmaf(x[l % 2][i / 4].values[i % 4], y[l % 2][j / 4].values[j % 4], sums[i][j]);
                    }
                }
            }
            if (more) {
                a.end(a_parts + later * kAPart);
                b.end(b_parts + later * kBPart);
            }
            left -= kDepth;
            now = now + 1 == kStages ? 0 : now + 1;
            later = later + 1 == kStages ? 0 : later + 1;
        }

        float* c =
            static_cast<float*>(p.c) + offsets.c + (row0 + row) * p.c_row + (column0 + column) * p.c_col;
        const bool wide = p.c_col == 1 && p.c_row % 4 == 0 && reinterpret_cast<std::uintptr_t>(c) % 16 == 0;
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const int down = i / 4 * 16 + i % 4;
            if (row + down >= rows) continue;
            float* line = c + down * p.c_row;
#pragma unroll
            for (int j = 0; j < 8; j += 4) {
                const int across = j / 4 * 32;
                if (wide && column + across + 4 <= columns) {
                    *reinterpret_cast<Vector<float, 4>*>(line + across) = {
                        {sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]}};
                    continue;
                }
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    if (column + across + e < columns) line[(across + e) * p.c_col] = sums[i][j + e];
                }
            }
        }
        __syncthreads();  // the next batch overwrites the parts
    }
}

}  // namespace

#define GPK_X(symbol, a, b)                                    \
    extern "C" __global__ void __launch_bounds__(kThreads, 1)  \
        symbol(const __grid_constant__ GemmProblem p) {        \
        wait_for_predecessor();                                \
        gemm_float32<Float32Operand::a, Float32Operand::b>(p); \
    }
GPK_GEMM_FLOAT32_KERNELS(GPK_X)
#undef GPK_X

}  // namespace gpk::kernels
