// Ops that make arrays from nothing.
#include "ops/creation.hpp"

#include <limits>

#include "elementwise_support.hpp"

namespace gpk {
namespace {

using namespace test;

TEST(Creation, FullAndZerosOfEveryDtype) {
    for (const DType dtype : all_dtypes()) {
        EXPECT_EQ(values(ops::zeros(test_device(), {2, 3}, dtype)), std::vector<double>(6, 0));
        EXPECT_EQ(values(ops::full(test_device(), {3}, Scalar(1), dtype)), std::vector<double>(3, 1));
        EXPECT_EQ(values(ops::full(test_device(), {}, Scalar(3.0), dtype)), rounded({3}, dtype));
        EXPECT_EQ(ops::full(test_device(), {0, 2}, Scalar(1), dtype).size(), 0);
    }
    EXPECT_EQ(values(ops::full(test_device(), {2}, Scalar(3.9), DType::int8)), (std::vector<double>{3, 3}));
    expect_error(ErrorKind::value, [] { ops::full(test_device(), {1}, Scalar(300), DType::uint8); });
    expect_error(ErrorKind::value, [] { ops::zeros(test_device(), {-1}, DType::uint8); });
}

TEST(Creation, Arange) {
    for (const DType dtype : all_dtypes()) {
        std::vector<double> expected;
        for (int i = 0; i < 9; ++i) expected.push_back(i);
        EXPECT_EQ(values(ops::arange_integer(test_device(), 0, 1, 9, dtype)), rounded(expected, dtype))
            << name(dtype);
        EXPECT_EQ(values(ops::arange(test_device(), 0, 1, 9, dtype)), rounded(expected, dtype))
            << name(dtype);
    }
    EXPECT_EQ(values(ops::arange_integer(test_device(), 5, -3, 4, DType::int32)),
              (std::vector<double>{5, 2, -1, -4}));
    const Array steps = ops::arange(test_device(), 0.1, 0.1, 100000, DType::float64);
    const auto got = values(steps);
    for (int i = 0; i < 100000; ++i) {
        const volatile double product = i * 0.1;
        ASSERT_EQ(got[static_cast<std::size_t>(i)], 0.1 + product);
    }
    std::uint64_t host[2];
    const auto start = std::int64_t{-2};  // uint64's second largest, as bits
    ops::arange_integer(test_device(), start, 1, 2, DType::uint64).copy_to_host(host);
    EXPECT_EQ(host[1], std::numeric_limits<std::uint64_t>::max());
    EXPECT_EQ(ops::arange(test_device(), 0, 1, 0, DType::float32).shape(), (Dims{0}));
}

TEST(Creation, Linspace) {
    EXPECT_EQ(values(ops::linspace(test_device(), 0, 1, 5, true, DType::float32)),
              (std::vector<double>{0, 0.25, 0.5, 0.75, 1}));
    EXPECT_EQ(values(ops::linspace(test_device(), 0, 1, 4, false, DType::float32)),
              (std::vector<double>{0, 0.25, 0.5, 0.75}));
    EXPECT_EQ(values(ops::linspace(test_device(), 0, 10, 4, true, DType::int32)),
              (std::vector<double>{0, 3, 6, 10}));
    EXPECT_EQ(values(ops::linspace(test_device(), 0, -10, 4, true, DType::int32)),
              (std::vector<double>{0, -4, -7, -10}));
    EXPECT_EQ(values(ops::linspace(test_device(), 2, 9, 1, true, DType::float64)), (std::vector<double>{2}));
    const auto got = values(ops::linspace(test_device(), 0.1, 0.7, 77, true, DType::float64));
    EXPECT_EQ(got.back(), 0.7);
    for (std::size_t i = 0; i + 1 < got.size(); ++i) {
        const volatile double product = static_cast<double>(i) * ((0.7 - 0.1) / 76);
        ASSERT_EQ(got[i], 0.1 + product);
    }
}

TEST(Creation, Eye) {
    EXPECT_EQ(values(ops::eye(test_device(), 2, 3, 0, DType::float32)),
              (std::vector<double>{1, 0, 0, 0, 1, 0}));
    EXPECT_EQ(values(ops::eye(test_device(), 2, 3, 1, DType::int8)), (std::vector<double>{0, 1, 0, 0, 0, 1}));
    EXPECT_EQ(values(ops::eye(test_device(), 3, 2, -1, DType::bfloat16)),
              (std::vector<double>{0, 0, 1, 0, 0, 1}));
    for (const std::int64_t diagonal :
         {std::int64_t{3}, std::int64_t{-2}, std::numeric_limits<std::int64_t>::max(),
          std::numeric_limits<std::int64_t>::min()}) {
        EXPECT_EQ(values(ops::eye(test_device(), 2, 3, diagonal, DType::float32)), std::vector<double>(6, 0));
    }
    EXPECT_EQ(ops::eye(test_device(), 0, 3, 0, DType::float32).size(), 0);
}

}  // namespace
}  // namespace gpk
