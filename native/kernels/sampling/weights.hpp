// Numbers that choosing tokens rests on, the same to the bit on the host and on every GPU: keys that order
// logits, weights of probabilities as integers (whose sums no order of addition changes), and random numbers.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/float_types.hpp"

namespace gpk::kernels {

// Larger for larger numbers, and the same for 0 and -0. A NaN has the largest, kNanKey.
inline constexpr std::uint32_t kNanKey = 0xffffffffu;
GPK_HD std::uint32_t order_key(float value) {
    if (value != value) return kNanKey;
    const std::uint32_t bits = detail::bit_cast<std::uint32_t>(value + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
GPK_HD float key_value(std::uint32_t key) {  // of a key other than kNanKey
    return detail::bit_cast<float>(key >> 31 ? key & 0x7fffffffu : ~key);
}

// exp((logit - highest) / temperature) in units of 2^-40, cut to whole ones. `rate` is log2(e) / temperature.
// The sum of 2^23 of them fits 64 bits. 2^f on [0, 1) is a polynomial with a relative error below 7e-8.
inline constexpr std::uint64_t kWeightOne = std::uint64_t{1} << 40;
inline constexpr std::int64_t kMaxWeights = std::int64_t{1} << 23;
GPK_HD std::uint64_t weight_of(float logit, float highest, float rate) {
    const float distance = highest - logit;
    const float y = distance * rate;  // >= 0
    if (!(y < 41.0f)) return logit == highest ? kWeightOne : 0;
    const int whole = static_cast<int>(y) + 1;
    const float f = static_cast<float>(whole) - y;  // in (0, 1]
    float power = fmaf(f, 0x1.c54174p-13f, 0x1.46d64cp-10f);
    power = fmaf(f, power, 0x1.3d0b92p-7f);
    power = fmaf(f, power, 0x1.c68912p-5f);
    power = fmaf(f, power, 0x1.ebfd58p-3f);
    power = fmaf(f, power, 0x1.62e42cp-1f);
    power = fmaf(f, power, 1.0f);
    const float units = power * 0x1p23f;
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(units)) << 17) >> whole;
}

// The weight that the likeliest must reach together: p of `total`, at least 1.
GPK_HD std::uint64_t nucleus_goal(double p, std::uint64_t total) {
    const double goal = p * static_cast<double>(total);
    const auto whole = static_cast<std::uint64_t>(goal);  // p < 1, so it fits
    const std::uint64_t up = static_cast<double>(whole) < goal ? whole + 1 : whole;
    return up < 1 ? 1 : up < total ? up : total;
}

// The upper half of the product.
GPK_HD std::uint64_t multiply_high(std::uint64_t a, std::uint64_t b) {
#ifdef __CUDA_ARCH__
    return __umul64hi(a, b);
#else
    const std::uint64_t al = a & 0xffffffffu, ah = a >> 32, bl = b & 0xffffffffu, bh = b >> 32;
    const std::uint64_t middle = ah * bl + (al * bl >> 32), other = al * bh + (middle & 0xffffffffu);
    return ah * bh + (middle >> 32) + (other >> 32);
#endif
}

// 64 random bits, number `counter` of stream `stream` of a seed: Philox4x32-10 (Salmon et al., SC 2011).
GPK_HD std::uint64_t random_bits(std::uint64_t seed, std::uint64_t counter, std::uint64_t stream) {
    std::uint32_t key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
    std::uint32_t c0 = static_cast<std::uint32_t>(counter), c1 = static_cast<std::uint32_t>(counter >> 32),
                  c2 = static_cast<std::uint32_t>(stream), c3 = static_cast<std::uint32_t>(stream >> 32);
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t a = std::uint64_t{0xD2511F53u} * c0, b = std::uint64_t{0xCD9E8D57u} * c2;
        c0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ key0;
        c1 = static_cast<std::uint32_t>(b);
        c2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ key1;
        c3 = static_cast<std::uint32_t>(a);
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return std::uint64_t{c0} << 32 | c1;
}

}  // namespace gpk::kernels
