// Arrays from and to host vectors, and reference values, for the tests of element-wise ops.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "array/array.hpp"
#include "base/error.hpp"
#include "base/float_types.hpp"
#include "kernels/elementwise/elements.hpp"
#include "ops/elementwise.hpp"
#include "support.hpp"

namespace gpk::test {

// Writes and reads single elements through double; exact for all that the tests use it for.
inline void put(DType dtype, void* data, std::int64_t i, double value) {
    kernels::store<double>(dtype, data, i, value);
}
inline double get(DType dtype, const void* data, std::int64_t i) {
    switch (kernels::compute_type(dtype)) {
        case kernels::ComputeType::float32: return kernels::load<float>(dtype, data, i);
        case kernels::ComputeType::float64: return kernels::load<double>(dtype, data, i);
        case kernels::ComputeType::int64:
            return static_cast<double>(kernels::load<std::int64_t>(dtype, data, i));
        default: return static_cast<double>(kernels::load<std::uint64_t>(dtype, data, i));
    }
}

// A contiguous array of these values, converted to the dtype on the host.
inline Array make(const Dims& shape, const std::vector<double>& values, DType dtype = DType::float32) {
    Array array = Array::empty(test_device(), shape, dtype);
    EXPECT_EQ(array.size(), static_cast<std::int64_t>(values.size()));
    std::vector<std::byte> host(array.nbytes() + 1);
    for (std::size_t i = 0; i < values.size(); ++i)
        put(dtype, host.data(), static_cast<std::int64_t>(i), values[i]);
    array.copy_from_host(host.data());
    return array;
}

// The elements of any view in row-major order. A dense copy of the whole storage is read, so that no op
// under test stands between.
inline std::vector<double> values(const Array& array) {
    const std::size_t bytes = array.storage()->bytes();
    const auto items = static_cast<std::int64_t>(bytes / itemsize(array.dtype()));
    const Array whole(array.storage(), array.dtype(), {items}, {1});
    std::vector<std::byte> host(bytes + 1);
    whole.copy_to_host(host.data());
    std::vector<double> out;
    Dims index = Dims::filled(array.rank(), 0);
    for (std::int64_t n = 0; n < array.size(); ++n) {
        std::int64_t at = array.offset();
        for (int d = 0; d < array.rank(); ++d) at += index[d] * array.strides()[d];
        out.push_back(get(array.dtype(), host.data(), at));
        for (int d = array.rank() - 1; d >= 0 && ++index[d] == array.shape()[d]; --d) index[d] = 0;
    }
    return out;
}

inline std::vector<double> random_values(std::int64_t count, double low, double high, unsigned seed = 1) {
    std::mt19937_64 engine(seed);
    std::uniform_real_distribution<double> distribution(low, high);
    std::vector<double> out(static_cast<std::size_t>(count));
    for (double& value : out) value = distribution(engine);
    return out;
}

// The values as the dtype holds them.
inline std::vector<double> rounded(std::vector<double> in, DType dtype) {
    for (double& value : in) {
        std::uint64_t bits = 0;
        put(dtype, &bits, 0, value);
        value = get(dtype, &bits, 0);
    }
    return in;
}

// The values as an op leaves them: integers wrapped to the dtype, floats rounded.
inline std::vector<double> as_result(std::vector<double> in, DType dtype) {
    if (!is_integer(dtype)) return rounded(std::move(in), dtype);
    for (double& value : in) {
        std::uint64_t bits = 0;
        kernels::store<std::int64_t>(dtype, &bits, 0, static_cast<std::int64_t>(value));
        value = get(dtype, &bits, 0);
    }
    return in;
}

inline double tolerance(DType dtype) {
    switch (dtype) {
        case DType::float16: return 1.0 / 1024;
        case DType::bfloat16: return 1.0 / 128;
        case DType::float32: return 1e-6;
        case DType::float64: return 1e-14;
        default: return 0;
    }
}

// Equal up to `relative` times the expected size (at least `floor`); NaN equals NaN.
inline void expect_close(const std::vector<double>& got, const std::vector<double>& expected, double relative,
                         const std::string& what, double floor = 0) {
    ASSERT_EQ(got.size(), expected.size()) << what;
    for (std::size_t i = 0; i < got.size(); ++i) {
        if (std::isnan(expected[i])) {
            ASSERT_TRUE(std::isnan(got[i])) << what << " [" << i << "] " << got[i];
        } else if (std::isinf(expected[i])) {
            ASSERT_EQ(got[i], expected[i]) << what << " [" << i << "]";
        } else {
            ASSERT_LE(std::abs(got[i] - expected[i]), relative * std::max(std::abs(expected[i]), floor))
                << what << " [" << i << "] got " << got[i] << ", expected " << expected[i];
        }
    }
}

inline void expect_error(ErrorKind kind, const std::function<void()>& call) {
    try {
        call();
        ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& thrown) {
        EXPECT_EQ(static_cast<int>(thrown.kind()), static_cast<int>(kind)) << thrown.what();
    }
}

inline const std::vector<DType>& all_dtypes() {
    static const std::vector<DType> list = [] {
        std::vector<DType> out;
        for (int i = 0; i < kDTypeCount; ++i) out.push_back(static_cast<DType>(i));
        return out;
    }();
    return list;
}

}  // namespace gpk::test
