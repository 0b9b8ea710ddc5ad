// reshape, concat, stack and take.
#include "ops/manipulation.hpp"

#include <limits>

#include "elementwise_support.hpp"

namespace gpk {
namespace {

using namespace test;

std::vector<double> count_up(std::int64_t count) {
    std::vector<double> out(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(i);
    return out;
}

TEST(Reshape, ViewsWhereItCanAndCopiesWhereNot) {
    const Array x = make({2, 6}, count_up(12));
    EXPECT_EQ(ops::reshape(x, {3, -1}).data(), x.data());
    const Array t = ops::reshape(x.transpose({}), {12});
    EXPECT_NE(t.data(), x.data());
    EXPECT_EQ(values(t), (std::vector<double>{0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11}));
    expect_error(ErrorKind::value, [&] { ops::reshape(x, {5}); });
}

TEST(Concat, EachAxisAndMixedDtypes) {
    const Array a = make({2, 2}, {1, 2, 3, 4}), b = make({2, 1}, {5, 6}, DType::float64),
                c = make({1, 2}, {7, 8});
    const Array columns = ops::concat({a, b}, 1);
    EXPECT_EQ(columns.dtype(), DType::float64);
    EXPECT_EQ(values(columns), (std::vector<double>{1, 2, 5, 3, 4, 6}));
    EXPECT_EQ(values(ops::concat({a, c, a}, -2)), (std::vector<double>{1, 2, 3, 4, 7, 8, 1, 2, 3, 4}));
    EXPECT_EQ(values(ops::concat({a.transpose({}), a}, 0)), (std::vector<double>{1, 3, 2, 4, 1, 2, 3, 4}));
    EXPECT_EQ(ops::concat({Array::empty(test_device(), {0, 2}, DType::float32), a}, 0).shape(), (Dims{2, 2}));
    expect_error(ErrorKind::value, [&] { ops::concat({a, c}, 1); });
    expect_error(ErrorKind::value, [&] { ops::concat({}, 0); });
    expect_error(ErrorKind::index, [&] { ops::concat({a}, 2); });
    expect_error(ErrorKind::type,
                 [&] { ops::concat({a, make({2, 2}, {1, 2, 3, 4}, DType::float8_e4m3)}, 0); });
}

TEST(Concat, WideRowsOfEveryDtype) {
    for (const DType dtype : all_dtypes()) {
        const auto left = rounded(random_values(5 * 64, 0, 100, 1), dtype),
                   right = rounded(random_values(5 * 48, 0, 100, 2), dtype);
        const auto got = values(ops::concat({make({5, 64}, left, dtype), make({5, 48}, right, dtype)}, 1));
        for (std::size_t i = 0; i < 5; ++i) {
            for (std::size_t j = 0; j < 112; ++j) {
                ASSERT_EQ(got[i * 112 + j], j < 64 ? left[i * 64 + j] : right[i * 48 + j - 64])
                    << name(dtype);
            }
        }
    }
}

TEST(Stack, NewAxisAnywhere) {
    const Array a = make({2}, {1, 2}), b = make({2}, {3, 4});
    EXPECT_EQ(values(ops::stack({a, b}, 0)), (std::vector<double>{1, 2, 3, 4}));
    EXPECT_EQ(values(ops::stack({a, b}, -1)), (std::vector<double>{1, 3, 2, 4}));
    EXPECT_EQ(ops::stack({make({}, {1}), make({}, {2})}, 0).shape(), (Dims{2}));
    expect_error(ErrorKind::value, [&] { ops::stack({a, make({3}, {1, 2, 3})}, 0); });
}

TEST(Take, AxesIndexDtypesAndShapes) {
    const Array x = make({2, 3, 2}, count_up(12));
    for (const DType dtype : {DType::int8, DType::int16, DType::int32, DType::int64, DType::uint8,
                              DType::uint16, DType::uint32, DType::uint64}) {
        const Array got = ops::take(x, make({2, 2}, {2, 0, 1, 1}, dtype), 1);
        EXPECT_EQ(got.shape(), (Dims{2, 2, 2, 2}));
        EXPECT_EQ(values(got), (std::vector<double>{4, 5, 0, 1, 2, 3, 2, 3, 10, 11, 6, 7, 8, 9, 8, 9}))
            << name(dtype);
    }
    EXPECT_EQ(values(ops::take(x, make({}, {1}, DType::int32), 0)),
              (std::vector<double>{6, 7, 8, 9, 10, 11}));
    EXPECT_EQ(values(ops::take(x, make({1}, {-1}, DType::int64), -1)),
              (std::vector<double>{1, 3, 5, 7, 9, 11}));
    expect_error(ErrorKind::type, [&] { ops::take(x, make({1}, {1}, DType::bool_), 0); });
    expect_error(ErrorKind::type, [&] { ops::take(x, make({1}, {1}), 0); });
    expect_error(ErrorKind::index, [&] { ops::take(x, make({1}, {1}, DType::int8), 3); });
}

TEST(Take, OutOfRangeGivesZero) {
    const Array x = make({3}, {7, 8, 9});
    const Array indices = Array::empty(test_device(), {6}, DType::int64);
    const std::int64_t host[6] = {
        3, -4, -3, 2, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
    indices.copy_from_host(host);
    EXPECT_EQ(values(ops::take(x, indices, 0)), (std::vector<double>{0, 0, 7, 9, 0, 0}));
    const Array huge = Array::empty(test_device(), {1}, DType::uint64);
    const std::uint64_t largest = std::numeric_limits<std::uint64_t>::max();
    huge.copy_from_host(&largest);
    EXPECT_EQ(values(ops::take(x, huge, 0)), (std::vector<double>{0}));
    EXPECT_EQ(values(ops::take(Array::empty(test_device(), {0}, DType::float32),
                               make({2}, {0, 1}, DType::int8), 0)),
              (std::vector<double>{0, 0}));
}

TEST(Take, RowsOfEveryDtypeAndWidth) {
    for (const DType dtype : all_dtypes()) {
        for (const std::int64_t width : {1, 3, 8, 64}) {
            const auto in = rounded(random_values(50 * width, 0, 100), dtype);
            std::vector<double> rows = random_values(300, 0, 50, 9), expected;
            for (double& row : rows) {
                row = std::floor(row);
                for (std::int64_t j = 0; j < width; ++j)
                    expected.push_back(in[static_cast<std::size_t>(row) * static_cast<std::size_t>(width) +
                                          static_cast<std::size_t>(j)]);
            }
            EXPECT_EQ(values(ops::take(make({50, width}, in, dtype), make({300}, rows, DType::int32), 0)),
                      expected)
                << name(dtype);
        }
    }
}

TEST(Take, StridedInputs) {
    const Array x = make({3, 4}, count_up(12)).transpose({});
    const Array indices = make({4}, {0, 9, 3, 9}, DType::int32).slice(0, 0, 2, 2);
    EXPECT_EQ(values(ops::take(x, indices, 0)), (std::vector<double>{0, 4, 8, 3, 7, 11}));
}

}  // namespace
}  // namespace gpk
