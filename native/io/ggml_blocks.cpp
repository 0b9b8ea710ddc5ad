#include "io/ggml_blocks.hpp"

#include "kernels/host.hpp"

namespace gpk::io {

GPK_SIMD void decode_q4_0(const std::byte* from, std::int64_t blocks, float* to) {
    for (std::int64_t i = 0; i < blocks; ++i, to += 32) {
        const auto block = block_at<BlockQ4_0>(from, i);
        const float d = half_of(block.d);
        for (int l = 0; l < 16; ++l) to[l] = d * static_cast<float>((block.qs[l] & 15) - 8);
        for (int l = 0; l < 16; ++l) to[l + 16] = d * static_cast<float>((block.qs[l] >> 4) - 8);
    }
}

GPK_SIMD void decode_q4_1(const std::byte* from, std::int64_t blocks, float* to) {
    for (std::int64_t i = 0; i < blocks; ++i, to += 32) {
        const auto block = block_at<BlockQ4_1>(from, i);
        const float d = half_of(block.d), m = half_of(block.m);
        for (int l = 0; l < 16; ++l) to[l] = d * static_cast<float>(block.qs[l] & 15) + m;
        for (int l = 0; l < 16; ++l) to[l + 16] = d * static_cast<float>(block.qs[l] >> 4) + m;
    }
}

GPK_SIMD void decode_q5_0(const std::byte* from, std::int64_t blocks, float* to) {
    for (std::int64_t i = 0; i < blocks; ++i, to += 32) {
        const auto block = block_at<BlockQ5_0>(from, i);
        const float d = half_of(block.d);
        const std::uint32_t high = word_of(block.qh);
        for (int l = 0; l < 16; ++l) {
            const int low = static_cast<int>((block.qs[l] & 15u) | ((high >> l) & 1) << 4);
            const int up = static_cast<int>((block.qs[l] >> 4) | ((high >> (l + 16)) & 1) << 4);
            to[l] = d * static_cast<float>(low - 16);
            to[l + 16] = d * static_cast<float>(up - 16);
        }
    }
}

GPK_SIMD void decode_q5_1(const std::byte* from, std::int64_t blocks, float* to) {
    for (std::int64_t i = 0; i < blocks; ++i, to += 32) {
        const auto block = block_at<BlockQ5_1>(from, i);
        const float d = half_of(block.d), m = half_of(block.m);
        const std::uint32_t high = word_of(block.qh);
        for (int l = 0; l < 16; ++l) {
            const int low = static_cast<int>((block.qs[l] & 15u) | ((high >> l) & 1) << 4);
            const int up = static_cast<int>((block.qs[l] >> 4) | ((high >> (l + 16)) & 1) << 4);
            to[l] = d * static_cast<float>(low) + m;
            to[l + 16] = d * static_cast<float>(up) + m;
        }
    }
}

GPK_SIMD void decode_q8_0(const std::byte* from, std::int64_t blocks, float* to) {
    for (std::int64_t i = 0; i < blocks; ++i, to += 32) {
        const auto block = block_at<BlockQ8_0>(from, i);
        const float d = half_of(block.d);
        for (int l = 0; l < 32; ++l) to[l] = d * static_cast<float>(block.qs[l]);
    }
}

GPK_SIMD void decode_q2_k(const std::byte* from, std::int64_t blocks, float* to) {
    for (std::int64_t i = 0; i < blocks; ++i) {
        const auto block = block_at<BlockQ2_K>(from, i);
        const float d = half_of(block.d), dmin = half_of(block.dmin);
        for (int group = 0; group < 16; ++group, to += 16) {
            const float scale = d * static_cast<float>(block.scales[group] & 15);
            const float min = dmin * static_cast<float>(block.scales[group] >> 4);
            const std::uint8_t* const qs = block.qs + group / 8 * 32 + group % 2 * 16;
            const int shift = group % 8 / 2 * 2;
            for (int l = 0; l < 16; ++l) to[l] = scale * static_cast<float>((qs[l] >> shift) & 3) - min;
        }
    }
}

GPK_SIMD void decode_q3_k(const std::byte* from, std::int64_t blocks, float* to) {
    for (std::int64_t i = 0; i < blocks; ++i) {
        const auto block = block_at<BlockQ3_K>(from, i);
        const float d = half_of(block.d);
        for (int group = 0; group < 16; ++group, to += 16) {
            const int low = block.scales[group % 8] >> (group / 8 * 4) & 15;
            const int up = block.scales[8 + group % 4] >> (group / 4 * 2) & 3;
            const float scale = d * static_cast<float>((low | up << 4) - 32);
            const std::uint8_t* const qs = block.qs + group / 8 * 32 + group % 2 * 16;
            const std::uint8_t* const high = block.hmask + group % 2 * 16;
            const int shift = group % 8 / 2 * 2;
            const int bit = group / 2;
            for (int l = 0; l < 16; ++l) {
                const int q = ((qs[l] >> shift) & 3) | ((high[l] >> bit) & 1) << 2;
                to[l] = scale * static_cast<float>(q - 4);
            }
        }
    }
}

GPK_SIMD void decode_q4_k(const std::byte* from, std::int64_t blocks, float* to) {
    for (std::int64_t i = 0; i < blocks; ++i) {
        const auto block = block_at<BlockQ4_K>(from, i);
        const float d = half_of(block.d), dmin = half_of(block.dmin);
        for (int k = 0; k < 8; ++k, to += 32) {
            const GroupOfK group = group_of(block.scales, k);
            const float scale = d * static_cast<float>(group.scale);
            const float min = dmin * static_cast<float>(group.min);
            const std::uint8_t* const qs = block.qs + k / 2 * 32;
            const int shift = k % 2 * 4;
            for (int l = 0; l < 32; ++l) to[l] = scale * static_cast<float>((qs[l] >> shift) & 15) - min;
        }
    }
}

GPK_SIMD void decode_q5_k(const std::byte* from, std::int64_t blocks, float* to) {
    for (std::int64_t i = 0; i < blocks; ++i) {
        const auto block = block_at<BlockQ5_K>(from, i);
        const float d = half_of(block.d), dmin = half_of(block.dmin);
        for (int k = 0; k < 8; ++k, to += 32) {
            const GroupOfK group = group_of(block.scales, k);
            const float scale = d * static_cast<float>(group.scale);
            const float min = dmin * static_cast<float>(group.min);
            const std::uint8_t* const qs = block.qs + k / 2 * 32;
            const int shift = k % 2 * 4;
            for (int l = 0; l < 32; ++l) {
                const int q = ((qs[l] >> shift) & 15) | ((block.qh[l] >> k) & 1) << 4;
                to[l] = scale * static_cast<float>(q) - min;
            }
        }
    }
}

GPK_SIMD void decode_q6_k(const std::byte* from, std::int64_t blocks, float* to) {
    for (std::int64_t i = 0; i < blocks; ++i) {
        const auto block = block_at<BlockQ6_K>(from, i);
        const float d = half_of(block.d);
        for (int group = 0; group < 16; ++group, to += 16) {
            const float scale = d * static_cast<float>(block.scales[group]);
            const int quarter = group % 8 / 2;  // of the 128 elements that share bytes
            const std::uint8_t* const low = block.ql + group / 8 * 64 + quarter % 2 * 32 + group % 2 * 16;
            const std::uint8_t* const high = block.qh + group / 8 * 32 + group % 2 * 16;
            for (int l = 0; l < 16; ++l) {
                const int q = ((low[l] >> (quarter / 2 * 4)) & 15) | ((high[l] >> (quarter * 2)) & 3) << 4;
                to[l] = scale * static_cast<float>(q - 32);
            }
        }
    }
}

}  // namespace gpk::io
