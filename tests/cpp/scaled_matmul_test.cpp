#include "ops/scaled_matmul.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.hpp"
#include "ops/elementwise.hpp"
#include "values.hpp"

namespace {

using namespace gpk;
using values::download;
using values::random_array;
using values::relative_error;

enum class Scales { one, rows, blocks };

Array positive(const Dims& shape, unsigned seed) {
    return ops::unary(UnaryOp::exp, random_array(shape, DType::float32, seed));
}

// The result's rounding, and that of the tensor cores' sums of all of k.
double bound(DType dtype, Scales scales) {
    const double sums = scales == Scales::blocks ? 5e-4 : 2.5e-3;
    return (dtype == DType::bfloat16 ? 2.5e-3 : dtype == DType::float16 ? 4e-4 : 0) + sums;
}

class Scaled : public testing::TestWithParam<Scales> {};

TEST_P(Scaled, AgreesWithFloat64) {
    struct Size {
        std::int64_t m, n, k;
    };
    for (const DType type : {DType::float8_e4m3, DType::float8_e5m2}) {
        for (const DType result : {DType::bfloat16, DType::float16, DType::float32}) {
            for (const Size& s :
                 {Size{1, 8, 16}, {33, 72, 256}, {130, 264, 400}, {200, 300, 128}, {20, 24, 130}}) {
                const std::int64_t deep = (s.k + 127) / 128, wide = (s.n + 127) / 128;
                const Array a = random_array({s.m, s.k}, type, 1);
                const Array b = random_array({s.n, s.k}, type, 2).transpose({1, 0});
                const Scales how = GetParam();
                const Array scale_a = positive(how == Scales::one    ? Dims{}
                                               : how == Scales::rows ? Dims{s.m, 1}
                                                                     : Dims{s.m, deep},
                                               3);
                const Array scale_b = positive(how == Scales::one    ? Dims{}
                                               : how == Scales::rows ? Dims{1, s.n}
                                                                     : Dims{deep, wide},
                                               4);
                const auto va = download(a), vb = download(b), sa = download(scale_a), sb = download(scale_b);
                const auto scale = [&](const std::vector<double>& of, std::int64_t row, std::int64_t pitch,
                                       std::int64_t column) {
                    return of[static_cast<std::size_t>(row * pitch + column)];
                };
                std::vector<double> expected(static_cast<std::size_t>(s.m * s.n), 0.0);
                for (std::int64_t i = 0; i < s.m; ++i) {
                    for (std::int64_t j = 0; j < s.n; ++j) {
                        double sum = 0;
                        for (std::int64_t l = 0; l < s.k; ++l) {
                            const double of_a = how == Scales::blocks ? scale(sa, i, deep, l / 128)
                                                : how == Scales::rows ? scale(sa, i, 1, 0)
                                                                      : sa[0];
                            const double of_b = how == Scales::blocks ? scale(sb, l / 128, wide, j / 128)
                                                : how == Scales::rows ? scale(sb, 0, s.n, j)
                                                                      : sb[0];
                            sum += scale(va, i, s.k, l) * of_a * scale(vb, l, s.n, j) * of_b;
                        }
                        expected[static_cast<std::size_t>(i * s.n + j)] = sum;
                    }
                }
                const Array c = ops::scaled_matmul(a, b, scale_a, scale_b, result);
                ASSERT_EQ(c.dtype(), result);
                EXPECT_LE(relative_error(download(c), expected), bound(result, how))
                    << name(type) << " to " << name(result) << ", " << s.m << " x " << s.n << " x " << s.k;
                // b by rows is transposed first.
                const Array by_rows = ops::scaled_matmul(a, ops::contiguous(b), scale_a, scale_b, result);
                EXPECT_EQ(download(by_rows), download(c));
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(ScaledMatmul, Scaled, testing::Values(Scales::one, Scales::rows, Scales::blocks));

TEST(ScaledMatmul, EmptyAndOut) {
    const auto type = DType::float8_e4m3;
    const Array one = positive({}, 1);
    EXPECT_EQ(ops::scaled_matmul(random_array({0, 16}, type, 1), random_array({16, 8}, type, 2), one, one,
                                 DType::float32)
                  .shape(),
              (Dims{0, 8}));
    EXPECT_EQ(download(ops::scaled_matmul(random_array({2, 0}, type, 1), random_array({0, 3}, type, 2), one,
                                          one, DType::float32)),
              std::vector<double>(6, 0.0));
    const Array a = random_array({24, 32}, type, 1), b = random_array({16, 32}, type, 2).transpose({1, 0});
    const Array out = random_array({16, 24}, DType::float16, 3).transpose({1, 0});
    ops::scaled_matmul(a, b, one, one, DType::float16, &out);
    EXPECT_EQ(download(out), download(ops::scaled_matmul(a, b, one, one, DType::float16)));
}

TEST(ScaledMatmul, NamesWhatIsWrong) {
    const auto type = DType::float8_e4m3;
    const Array a = random_array({4, 256}, type, 1), b = random_array({256, 8}, type, 2),
                one = positive({}, 1);
    const auto fails = [&](ErrorKind kind, const Array& x, const Array& y, const Array& sx, const Array& sy,
                           DType to) {
        try {
            ops::scaled_matmul(x, y, sx, sy, to);
            ADD_FAILURE() << "no error";
        } catch (const Error& failure) {
            EXPECT_EQ(failure.kind(), kind) << failure.what();
        }
    };
    fails(ErrorKind::type, random_array({4, 256}, DType::float16, 1), b, one, one, DType::float16);
    fails(ErrorKind::type, a, random_array({256, 8}, DType::float8_e5m2, 1), one, one, DType::float16);
    fails(ErrorKind::type, a, b, one, one, DType::float64);
    fails(ErrorKind::type, a, b, random_array({}, DType::float64, 1), one, DType::float16);
    fails(ErrorKind::value, a, random_array({255, 8}, type, 1), one, one, DType::float16);
    fails(ErrorKind::value, a, b, positive({4}, 1), one, DType::float16);
    fails(ErrorKind::value, a, b, positive({4, 2}, 1), one, DType::float16);  // blocks of one alone
    fails(ErrorKind::value, a, b, one, positive({8, 1}, 1), DType::float16);
}

}  // namespace
