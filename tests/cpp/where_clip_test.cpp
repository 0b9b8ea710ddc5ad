// where and clip.
#include <limits>

#include "elementwise_support.hpp"

namespace gpk {
namespace {

using namespace test;

TEST(Where, EveryDtype) {
    for (const DType dtype : all_dtypes()) {
        const Array condition = make({4}, {1, 0, 0, 1}, DType::bool_);
        const Array a = make({4}, {1, 1, 0, 0}, dtype), b = make({4}, {0, 1, 0, 1}, dtype);
        const Array got = ops::where(condition, a, b);
        EXPECT_EQ(got.dtype(), dtype);
        EXPECT_EQ(values(got), (std::vector<double>{1, 1, 0, 0})) << name(dtype);
    }
}

TEST(Where, BroadcastsAllThree) {
    const Array condition = make({2, 1}, {1, 0}, DType::bool_), a = make({3}, {1, 2, 3}),
                b = make({}, {9}, DType::float64);
    const Array got = ops::where(condition, a, b);
    EXPECT_EQ(got.dtype(), DType::float64);
    EXPECT_EQ(got.shape(), (Dims{2, 3}));
    EXPECT_EQ(values(got), (std::vector<double>{1, 2, 3, 9, 9, 9}));
}

TEST(Where, Scalars) {
    const Array condition = make({3}, {1, 0, 1}, DType::bool_), x = make({3}, {1, 2, 3}, DType::int16);
    EXPECT_EQ(values(ops::where(condition, x, Scalar(-5))), (std::vector<double>{1, -5, 3}));
    EXPECT_EQ(values(ops::where(condition, Scalar(-5), x)), (std::vector<double>{-5, 2, -5}));
    EXPECT_EQ(ops::where(condition, x, Scalar(0.5)).dtype(), DType::float64);
    EXPECT_EQ(values(ops::where(condition, x, Scalar(0.5))), (std::vector<double>{1, 0.5, 3}));
    expect_error(ErrorKind::value, [&] { ops::where(condition, x, Scalar(40000)); });
    expect_error(ErrorKind::type, [&] { ops::where(x, x, x); });
}

TEST(Where, LargeAndStrided) {
    const std::int64_t n = 700;
    const auto in = rounded(random_values(n * n, -1, 1), DType::float32);
    const Array x = make({n, n}, in);
    const Array positive = ops::binary(BinaryOp::greater, x, Scalar(0));
    const auto got = values(ops::where(positive.transpose({}), x.transpose({}), x));
    for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
            const double t = in[static_cast<std::size_t>(j * n + i)],
                         plain = in[static_cast<std::size_t>(i * n + j)];
            ASSERT_EQ(got[static_cast<std::size_t>(i * n + j)], t > 0 ? t : plain);
        }
    }
    EXPECT_EQ(ops::where(make({0}, {}, DType::bool_), make({0}, {}), Scalar(1)).shape(), (Dims{0}));
}

TEST(Clip, FloatsAndNaN) {
    const double nan = std::nan("");
    for (const DType dtype : {DType::float32, DType::float64, DType::float16, DType::bfloat16}) {
        const Array x = make({4}, {-3, 0.5, 7, nan}, dtype);
        expect_close(values(ops::clip(x, Scalar(-1), Scalar(2))), {-1, 0.5, 2, nan}, 0, "both");
        expect_close(values(ops::clip(x, Scalar(0), std::nullopt)), {0, 0.5, 7, nan}, 0, "low");
        expect_close(values(ops::clip(x, std::nullopt, Scalar(0.25))), {-3, 0.25, 0.25, nan}, 0, "high");
        expect_close(values(ops::clip(x, Scalar(5), Scalar(1))), {1, 1, 1, nan}, 0, "crossed");
        expect_close(values(ops::clip(x, std::nullopt, std::nullopt)), {-3, 0.5, 7, nan}, 0, "neither");
    }
}

TEST(Clip, IntegersAndBoundsBeyondThem) {
    const Array x = make({3}, {0, 100, 255}, DType::uint8);
    EXPECT_EQ(values(ops::clip(x, Scalar(-1), Scalar(300))), (std::vector<double>{0, 100, 255}));
    EXPECT_EQ(values(ops::clip(x, Scalar(300), std::nullopt)), (std::vector<double>{255, 255, 255}));
    EXPECT_EQ(ops::clip(x, Scalar(0), Scalar(1.5)).dtype(), DType::float64);
    const Array y = make({3}, {-128, 5, 127}, DType::int8);
    EXPECT_EQ(values(ops::clip(y, Scalar(-1000), Scalar(6))), (std::vector<double>{-128, 5, 6}));
    EXPECT_EQ(values(ops::clip(y, Scalar(0), Scalar(1000))), (std::vector<double>{0, 5, 127}));
    EXPECT_EQ(ops::clip(make({1}, {1}, DType::bool_), Scalar(0), Scalar(1)).dtype(), DType::int64);
    expect_error(ErrorKind::type,
                 [] { ops::clip(make({1}, {1}, DType::float8_e5m2), Scalar(0), std::nullopt); });
}

TEST(Clip, WritesIntoOutAndOverlaps) {
    const Array x = make({4}, {-2, 1, 5, 9});
    const Array reversed = x.slice(0, 3, -1, 4);
    ops::clip(x, Scalar(0), Scalar(6), &reversed);
    EXPECT_EQ(values(x), (std::vector<double>{6, 5, 1, 0}));
    ops::clip(x, Scalar(2), std::nullopt, &x);
    EXPECT_EQ(values(x), (std::vector<double>{6, 5, 2, 2}));
}

}  // namespace
}  // namespace gpk
