// What the tests of model layers share: arrays from and to float vectors, and random ones.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "array/array.hpp"
#include "base/float_types.hpp"
#include "support.hpp"

inline constexpr gpk::DType kModelFloats[] = {gpk::DType::float32, gpk::DType::float16, gpk::DType::bfloat16};

// Half a unit in the last place of 1, for comparing results that were rounded once.
inline double rounding(gpk::DType dtype) {
    switch (dtype) {
        case gpk::DType::float16: return 0x1p-11;
        case gpk::DType::bfloat16: return 0x1p-8;
        default: return 1e-6;
    }
}

inline std::vector<float> random_floats(std::int64_t count, std::uint32_t seed, float scale = 1.0f) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = normal(generator);
    return values;
}

// What the values become when they are stored.
inline std::vector<float> rounded(std::vector<float> values, gpk::DType dtype) {
    for (float& value : values) {
        if (dtype == gpk::DType::float16) value = float(gpk::float16(value));
        if (dtype == gpk::DType::bfloat16) value = float(gpk::bfloat16(value));
    }
    return values;
}

inline void write_floats(const gpk::Array& array, const std::vector<float>& values) {
    if (array.dtype() == gpk::DType::float32) return array.copy_from_host(values.data());
    std::vector<std::uint16_t> bits;
    for (const float value : values) {
        bits.push_back(array.dtype() == gpk::DType::float16 ? gpk::float16(value).bits
                                                            : gpk::bfloat16(value).bits);
    }
    array.copy_from_host(bits.data());
}

inline gpk::Array upload(const std::vector<float>& values, const gpk::Dims& shape,
                         gpk::DType dtype = gpk::DType::float32) {
    const gpk::Array array = gpk::Array::empty(test_device(), shape, dtype);
    write_floats(array, values);
    return array;
}

inline gpk::Array upload_ints(const std::vector<std::int32_t>& values) {
    const gpk::Array array =
        gpk::Array::empty(test_device(), {static_cast<std::int64_t>(values.size())}, gpk::DType::int32);
    array.copy_from_host(values.data());
    return array;
}

inline std::vector<float> download(const gpk::Array& array) {
    std::vector<float> values(static_cast<std::size_t>(array.size()));
    if (array.dtype() == gpk::DType::float32) {
        array.copy_to_host(values.data());
        return values;
    }
    std::vector<std::uint16_t> bits(values.size());
    array.copy_to_host(bits.data());
    for (std::size_t i = 0; i < bits.size(); ++i) {
        if (array.dtype() == gpk::DType::float16) {
            gpk::float16 value;
            value.bits = bits[i];
            values[i] = float(value);
        } else {
            gpk::bfloat16 value;
            value.bits = bits[i];
            values[i] = float(value);
        }
    }
    return values;
}

// The largest |a - b| / (1 + |b|); infinite where one is NaN or the lengths differ.
inline double worst_error(const std::vector<float>& a, const std::vector<double>& b) {
    if (a.size() != b.size()) return INFINITY;
    double worst = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double here = std::abs(a[i] - b[i]) / (1 + std::abs(b[i]));
        if (!(here <= worst)) worst = std::isnan(here) ? INFINITY : here;
    }
    return worst;
}
