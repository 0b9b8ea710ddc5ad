// N stored elements moved as one access.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/device.cuh"
#include "kernels/elementwise/elements.hpp"

namespace gpk::kernels {

// The word that moves 1, 2, 4, 8 or 16 bytes at once.
template <int bytes>
struct Word;
template <>
struct Word<1> {
    using type = std::uint8_t;
};
template <>
struct Word<2> {
    using type = std::uint16_t;
};
template <>
struct Word<4> {
    using type = std::uint32_t;
};
template <>
struct Word<8> {
    using type = uint2;
};
template <>
struct Word<16> {
    using type = uint4;
};

template <class S, int N>
struct Pack {
    using WordType = typename Word<sizeof(S) * N>::type;
    S values[N];

    __device__ __forceinline__ static Pack load(const void* data, std::int64_t i) {
        return gpk::detail::bit_cast<Pack>(static_cast<const WordType*>(data)[i]);
    }
    __device__ __forceinline__ void store(void* data, std::int64_t i) const {
        static_cast<WordType*>(data)[i] = gpk::detail::bit_cast<WordType>(*this);
    }
};

// What a functor's result is stored as: bool for a truth value, else the operands' own type.
template <class T, class Result>
using result_t = std::conditional_t<std::is_same_v<Result, bool>, bool, T>;

}  // namespace gpk::kernels
