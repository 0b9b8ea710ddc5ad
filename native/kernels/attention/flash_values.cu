#include "kernels/attention/flash_values.hpp"

#include "kernels/device.cuh"

namespace gpk::kernels {

namespace {

using Piece = Vector<std::uint32_t, 4>;

// Byte i of a word of each of four rows -> the four bytes i of one word each.
__device__ __forceinline__ void transpose4(const std::uint32_t (&rows)[4], std::uint32_t (&columns)[4]) {
    const std::uint32_t low01 = __byte_perm(rows[0], rows[1], 0x5140),
                        low23 = __byte_perm(rows[2], rows[3], 0x5140),
                        high01 = __byte_perm(rows[0], rows[1], 0x7362),
                        high23 = __byte_perm(rows[2], rows[3], 0x7362);
    columns[0] = __byte_perm(low01, low23, 0x5410);
    columns[1] = __byte_perm(low01, low23, 0x7632);
    columns[2] = __byte_perm(high01, high23, 0x5410);
    columns[3] = __byte_perm(high01, high23, 0x7632);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kFlashValueThreads)
    flash_values(const __grid_constant__ FlashValuesParams p) {
    constexpr int kWords = kFlashValueKeys / 4;
    __shared__ __align__(16) std::uint32_t tile[kFlashValueColumns][kWords];
    wait_for_predecessor();
    const int batch = static_cast<int>(blockIdx.z) / p.kv_heads,
              head = static_cast<int>(blockIdx.z) % p.kv_heads;
    const int first_key = static_cast<int>(blockIdx.x) * kFlashValueKeys,
              first_column = static_cast<int>(blockIdx.y) * kFlashValueColumns;
    const auto* from = static_cast<const std::uint8_t*>(p.in) + batch * p.batch_stride + head * p.head_stride;

    // A thread turns 16 columns of the four keys that are a word.
    const int word = static_cast<int>(threadIdx.x) % kWords, part = static_cast<int>(threadIdx.x) / kWords;
    Piece rows[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int key = first_key + key_at(4 * word + i), column = first_column + 16 * part;
        if (key < p.keys && column < p.d) {
            rows[i] = *reinterpret_cast<const Piece*>(from + key * p.token_stride + column);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const std::uint32_t in[4] = {rows[0].values[i], rows[1].values[i], rows[2].values[i],
                                     rows[3].values[i]};
        std::uint32_t out[4];
        transpose4(in, out);
#pragma unroll
        for (int j = 0; j < 4; ++j) tile[16 * part + 4 * i + j][word] = out[j];
    }
    __syncthreads();
    auto* to = static_cast<std::uint8_t*>(p.out) +
               (static_cast<std::int64_t>(blockIdx.z) * p.d + first_column) * p.padded + first_key;
    constexpr int kPieces = kFlashValueKeys / 16;
    for (int i = static_cast<int>(threadIdx.x); i < kFlashValueColumns * kPieces; i += kFlashValueThreads) {
        const int column = i / kPieces, piece = i % kPieces;
        if (first_column + column >= p.d) continue;
        *reinterpret_cast<Piece*>(to + static_cast<std::int64_t>(column) * p.padded + 16 * piece) =
            *reinterpret_cast<const Piece*>(&tile[column][4 * piece]);
    }
}

}  // namespace gpk::kernels
