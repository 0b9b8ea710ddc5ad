#include "kernels/device.cuh"
#include "kernels/gemm/gemv_quantized.hpp"

namespace gpk::kernels {

namespace {

// A warp takes a step of k at a time: of each row of a half, four lanes with 16 bytes each.
template <QuantFormat kFormat>
__device__ __forceinline__ void product(const GemvQuantizedParams& p, const QuantLayout& w,
                                        std::int64_t first_row, std::int64_t end) {
    constexpr int kStep = quant_step(kFormat), kUnits = kStep / 32, kRows = kGemvQuantizedFloatRows;
    constexpr int kBits = quant_bits(kFormat), kWords = kBits / 4;  // of a unit
    __shared__ float parts[kGemvMmaWarps][kRows][kQuantRows];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const std::int64_t tile = blockIdx.x;
    const std::int64_t rows = end - first_row < kRows ? end - first_row : kRows;
    const std::int64_t steps = quant_steps(kFormat, w.k);
    const float* x = static_cast<const float*>(p.x) + first_row * p.x_row;
    const int zero = w.offsets == nullptr ? 8 : 0;
    float sums[2][kRows] = {};
    for (std::int64_t step = warp; step < steps; step += kGemvMmaWarps) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const std::int64_t row = tile * kQuantRows + 8 * h + g;
            const uint4 chunk = *reinterpret_cast<const uint4*>(static_cast<const char*>(w.data) +
                                                                quant_chunk(row, step, t, steps));
            const std::uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
            for (int u = 0; u < kUnits; ++u) {
                const std::int64_t column = step * kStep + 32 * u + 8 * t;
                if (column >= w.k) continue;
                const float scale = quant_scale(w, row, column), offset = quant_offset(w, row, column);
                float numbers[8];
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    const int bit = quant_bit(kBits, 0, i);
                    const std::uint32_t code =
                        words[u * kWords + bit / 32] >> (bit % 32) & ((1u << kBits) - 1);
                    numbers[i] = quant_number(kFormat, code, zero);
                }
#pragma unroll
                for (int r = 0; r < kRows; ++r) {
                    if (r >= rows) continue;
                    float sum = 0, of_x = 0;
#pragma unroll
                    for (int i = 0; i < 8; ++i) {
                        const float value = column + i < w.k ? x[r * p.x_row + column + i] : 0;
                        sum += numbers[i] * value;
                        of_x += value;
                    }
                    sums[h][r] += sum * scale + of_x * offset;
                }
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            float sum = sums[h][r];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            if (t == 0) parts[warp][r][8 * h + g] = sum;
        }
    }
    __syncthreads();
    const int r = threadIdx.x / kQuantRows, j = threadIdx.x % kQuantRows;
    const std::int64_t column = tile * kQuantRows + j;
    if (r >= rows || column >= w.n) return;
    float sum = 0;
    for (const auto& part : parts) sum += part[r][j];
    static_cast<float*>(p.c)[(first_row + r) * p.c_row + column] = sum;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kGemvMmaThreads)
    gemv_quantized_float32(const __grid_constant__ GemvQuantizedParams p) {
    wait_for_predecessor();
    const ExpertRows rows = expert_rows(p, blockIdx.y);
    const QuantLayout w = expert_layout(p.w, blockIdx.y);
    for (std::int64_t row = rows.begin; row < rows.end; row += kGemvQuantizedFloatRows) {
        switch (w.format) {
            case QuantFormat::int8: product<QuantFormat::int8>(p, w, row, rows.end); break;
            case QuantFormat::int4: product<QuantFormat::int4>(p, w, row, rows.end); break;
            case QuantFormat::fp8: product<QuantFormat::fp8>(p, w, row, rows.end); break;
            case QuantFormat::nvfp4: product<QuantFormat::nvfp4>(p, w, row, rows.end); break;
        }
        __syncthreads();  // the sums of the warps are read until here
    }
}

}  // namespace gpk::kernels
