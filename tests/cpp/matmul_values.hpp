// What the tests of matrix products share: bounds, a reference in float64, and matrices of several layouts.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "values.hpp"

namespace matmul_values {

// The largest relative error in the Euclidean norm for random normals: the rounding of the result (half
// a unit in the last place, spread evenly) and of the sums in float32; for tf32 also the inputs'.
struct Bound {
    gpk::DType dtype;
    double exact, tf32;
};
inline constexpr Bound kBounds[] = {
    {gpk::DType::float64, 1e-14, 0}, {gpk::DType::float32, 2e-6, 1e-3}, {gpk::DType::float16, 5e-4, 0},
    {gpk::DType::bfloat16, 4e-3, 0}, {gpk::DType::bool_, 0, 0},         {gpk::DType::int8, 0, 0},
    {gpk::DType::int16, 0, 0},       {gpk::DType::int32, 0, 0},         {gpk::DType::int64, 0, 0},
    {gpk::DType::uint8, 0, 0},       {gpk::DType::uint16, 0, 0},        {gpk::DType::uint32, 0, 0},
    {gpk::DType::uint64, 0, 0},
};

// An integer as its type holds it.
inline double wrap(double value, gpk::DType dtype) {
    return values::with_type(dtype, [&](auto zero) {
        using T = decltype(zero);
        if constexpr (std::is_same_v<T, bool>) return value != 0 ? 1.0 : 0.0;
        if constexpr (std::is_integral_v<T>) {
            return static_cast<double>(static_cast<T>(static_cast<std::int64_t>(value)));
        } else {
            return value;
        }
    });
}

// a: (m, k) and b: (k, n), row-major values.
inline std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b, std::int64_t m,
                                   std::int64_t n, std::int64_t k, gpk::DType dtype) {
    std::vector<double> c(static_cast<std::size_t>(m * n), 0.0);
    for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t l = 0; l < k; ++l) {
            const double factor = a[static_cast<std::size_t>(i * k + l)];
            const double* row = b.data() + l * n;
            double* sums = c.data() + i * n;
            for (std::int64_t j = 0; j < n; ++j) sums[j] += factor * row[j];
        }
    }
    for (double& value : c) value = wrap(value, dtype);
    return c;
}

// A matrix of this shape whose memory is transposed, padded to a pitch, or both.
inline gpk::Array matrix(std::int64_t rows, std::int64_t columns, gpk::DType dtype, bool is_transposed,
                         std::int64_t pad, unsigned seed) {
    if (is_transposed) return matrix(columns, rows, dtype, false, pad, seed).transpose({1, 0});
    return values::random_array({rows, columns + pad}, dtype, seed).slice(1, 0, 1, columns);
}

struct Size {
    std::int64_t m, n, k;
};

}  // namespace matmul_values
