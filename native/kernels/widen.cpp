#include "kernels/widen.hpp"

#include "kernels/host.hpp"

namespace gpk::kernels {

namespace {

// Without branches, so that the loop becomes vectors: sign, exponent and fraction moved to their places
// in a float32 give the value times 2^(15 - 127), subnormals too.
inline float widen_one(std::uint16_t half) {
    const std::int32_t moved = (static_cast<std::int32_t>(static_cast<std::int16_t>(half)) << 13) &
                               static_cast<std::int32_t>(0x8fffe000);
    const float finite = detail::bit_cast<float>(moved) * 0x1p112f;
    const float special = detail::bit_cast<float>(moved | 0x7f800000);
    return (half & 0x7c00) == 0x7c00 ? special : finite;
}

GPK_SIMD void widen_half(const float16* from, float* to, std::int64_t count, float scale) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = widen_one(from[i].bits) * scale;
}

GPK_SIMD void widen_bfloat(const bfloat16* from, float* to, std::int64_t count, float scale) {
    for (std::int64_t i = 0; i < count; ++i) {
        to[i] = detail::bit_cast<float>(static_cast<std::uint32_t>(from[i].bits) << 16) * scale;
    }
}

}  // namespace

void widen(const float16* from, float* to, std::int64_t count, float scale) {
    widen_half(from, to, count, scale);
}
void widen(const bfloat16* from, float* to, std::int64_t count, float scale) {
    widen_bfloat(from, to, count, scale);
}

}  // namespace gpk::kernels
