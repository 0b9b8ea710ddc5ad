// Arrays from and to float64 values on the host, for any dtype, and random ones.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "array/array.hpp"
#include "base/float_types.hpp"
#include "ops/elementwise.hpp"
#include "support.hpp"

namespace values {

template <class Body>
auto with_type(gpk::DType dtype, Body body) {
    using gpk::DType;
    switch (dtype) {
        case DType::bool_: return body(bool{});
        case DType::int8: return body(std::int8_t{});
        case DType::int16: return body(std::int16_t{});
        case DType::int32: return body(std::int32_t{});
        case DType::int64: return body(std::int64_t{});
        case DType::uint8: return body(std::uint8_t{});
        case DType::uint16: return body(std::uint16_t{});
        case DType::uint32: return body(std::uint32_t{});
        case DType::uint64: return body(std::uint64_t{});
        case DType::float16: return body(gpk::float16{});
        case DType::bfloat16: return body(gpk::bfloat16{});
        case DType::float32: return body(float{});
        case DType::float64: return body(double{});
        case DType::float8_e4m3: return body(gpk::float8_e4m3{});
        case DType::float8_e5m2: return body(gpk::float8_e5m2{});
    }
    return body(double{});
}

inline gpk::Array upload(const std::vector<double>& values, const gpk::Dims& shape, gpk::DType dtype) {
    std::vector<unsigned char> bytes(values.size() * gpk::itemsize(dtype));
    with_type(dtype, [&](auto zero) {
        using T = decltype(zero);
        for (std::size_t i = 0; i < values.size(); ++i) {
            const T value = std::is_same_v<T, bool> ? T(values[i] != 0) : gpk::convert<T>(values[i]);
            std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
        }
    });
    gpk::Array array = gpk::Array::empty(test_device(), shape, dtype);
    if (!values.empty()) array.copy_from_host(bytes.data());
    return array;
}

inline std::vector<double> download(const gpk::Array& view) {
    const gpk::Array array = gpk::ops::contiguous(view);
    std::vector<unsigned char> bytes(array.nbytes());
    if (!bytes.empty()) array.copy_to_host(bytes.data());
    std::vector<double> values(static_cast<std::size_t>(array.size()));
    with_type(array.dtype(), [&](auto zero) {
        using T = decltype(zero);
        for (std::size_t i = 0; i < values.size(); ++i) {
            T value;
            std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
            values[i] = gpk::convert<double>(value);
        }
    });
    return values;
}

// Normals for floats, small integers (negative too where the type has them) otherwise.
inline std::vector<double> random(std::int64_t count, gpk::DType dtype, unsigned seed) {
    std::mt19937_64 engine(seed);
    std::normal_distribution<double> normal;
    std::vector<double> values(static_cast<std::size_t>(count));
    const bool is_signed = gpk::info(dtype).kind == gpk::DTypeKind::signed_integer;
    for (double& value : values) {
        if (dtype == gpk::DType::bool_) {
            value = engine() % 8 == 0;
        } else if (gpk::is_floating(dtype)) {
            value = normal(engine);
        } else {
            value = static_cast<double>(engine() % 100) - (is_signed ? 50 : 0);
        }
    }
    return values;
}

inline gpk::Array random_array(const gpk::Dims& shape, gpk::DType dtype, unsigned seed) {
    return upload(random(gpk::element_count(shape), dtype, seed), shape, dtype);
}

// |got - expected| / |expected| in the Euclidean norm; |got| where nothing was expected.
inline double relative_error(const std::vector<double>& got, const std::vector<double>& expected) {
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        difference += (got[i] - expected[i]) * (got[i] - expected[i]);
        norm += expected[i] * expected[i];
    }
    return std::sqrt(norm > 0 ? difference / norm : difference);
}

}  // namespace values
