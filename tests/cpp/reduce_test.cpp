#include "ops/reduce.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/error.hpp"
#include "values.hpp"

namespace {

using namespace gpk;
using values::download;
using values::random_array;
using values::relative_error;
using values::upload;

constexpr DType kDTypesWithArithmetic[] = {DType::bool_,  DType::int8,    DType::int16,    DType::int32,
                                           DType::int64,  DType::uint8,   DType::uint16,   DType::uint32,
                                           DType::uint64, DType::float16, DType::bfloat16, DType::float32,
                                           DType::float64};
constexpr ReduceOp kOps[] = {ReduceOp::sum,  ReduceOp::mean, ReduceOp::max, ReduceOp::min,
                             ReduceOp::prod, ReduceOp::any,  ReduceOp::all};

double fold(ReduceOp op, double a, double b) {
    switch (op) {
        case ReduceOp::sum:
        case ReduceOp::mean: return a + b;
        case ReduceOp::prod: return a * b;
        case ReduceOp::max: return std::isnan(a) || a > b ? a : b;
        case ReduceOp::min: return std::isnan(a) || a < b ? a : b;
        case ReduceOp::any: return a != 0 || b != 0;
        case ReduceOp::all: return a != 0 && b != 0;
    }
    return 0;
}

double identity(ReduceOp op) {
    if (op == ReduceOp::max) return -std::numeric_limits<double>::infinity();
    if (op == ReduceOp::min) return std::numeric_limits<double>::infinity();
    return op == ReduceOp::prod || op == ReduceOp::all ? 1 : 0;
}

// The reduction of the view's elements, in float64 and the plainest way.
std::vector<double> expected(ReduceOp op, const Array& x, const Dims& axes) {
    std::vector<bool> reduced(static_cast<std::size_t>(x.rank()), axes.empty());
    for (std::int64_t axis : axes)
        reduced[static_cast<std::size_t>(axis < 0 ? axis + x.rank() : axis)] = true;
    std::int64_t outputs = 1;
    for (int i = 0; i < x.rank(); ++i) outputs *= reduced[static_cast<std::size_t>(i)] ? 1 : x.shape()[i];
    std::vector<double> result(static_cast<std::size_t>(outputs), identity(op));
    const auto elements = download(x);
    for (std::size_t id = 0; id < elements.size(); ++id) {
        auto rest = static_cast<std::int64_t>(id);
        std::int64_t place = 0, step = 1;
        for (int i = x.rank() - 1; i >= 0; --i) {
            const std::int64_t index = rest % x.shape()[i];
            rest /= x.shape()[i];
            if (reduced[static_cast<std::size_t>(i)]) continue;
            place += index * step;
            step *= x.shape()[i];
        }
        double& value = result[static_cast<std::size_t>(place)];
        value = fold(op, value, elements[id]);
    }
    if (op == ReduceOp::mean) {
        for (double& value : result)
            value /= static_cast<double>(elements.size()) / static_cast<double>(outputs);
    }
    return result;
}

// Relative error in the Euclidean norm. Sums of normals around zero lose what cancels, hence the room.
double bound(DType dtype) {
    switch (dtype) {
        case DType::float16: return 1e-3;
        case DType::bfloat16: return 8e-3;
        case DType::float32: return 5e-5;
        default: return 1e-12;
    }
}

DType result_dtype(ReduceOp op, DType dtype) {
    if (op == ReduceOp::any || op == ReduceOp::all) return DType::bool_;
    if (op == ReduceOp::max || op == ReduceOp::min || is_floating(dtype)) return dtype;
    if (op == ReduceOp::mean) return DType::float64;
    return info(dtype).kind == DTypeKind::unsigned_integer ? DType::uint64 : DType::int64;
}

void check(ReduceOp op, const Array& x, const Dims& axes, const char* what) {
    const Array result = ops::reduce(op, x, axes, false);
    EXPECT_EQ(result.dtype(), result_dtype(op, x.dtype())) << what;
    const auto want = expected(op, x, axes);
    const auto got = download(result);
    ASSERT_EQ(got.size(), want.size()) << what;
    EXPECT_LE(relative_error(got, want), bound(x.dtype()))
        << what << ": " << static_cast<int>(op) << " of " << name(x.dtype()) << " " << to_string(x.shape())
        << " over " << to_string(axes);
}

TEST(Reduce, EveryDtypeAndOpOverEveryAxis) {
    for (const DType dtype : kDTypesWithArithmetic) {
        const Array x = random_array({5, 33, 70}, dtype, 1);
        // Products of many would leave the range that float64 holds exactly.
        const Array few = random_array({2, 2, 2}, dtype, 2);
        for (const ReduceOp op : kOps) {
            const Array& input = op == ReduceOp::prod ? few : x;
            for (const Dims& axes : {Dims{}, {0}, {1}, {2}, {-1}, {0, 1}, {1, 2}, {0, 2}, {2, 0, 1}}) {
                check(op, input, axes, "contiguous");
            }
        }
    }
}

TEST(Reduce, AnyStrides) {
    for (const DType dtype : {DType::int32, DType::float16, DType::float32}) {
        const Array x = random_array({6, 40, 50}, dtype, 3);
        const Array views[] = {x.transpose({2, 0, 1}), x.slice(2, 49, -3, 16),
                               x.slice(1, 1, 2, 19).transpose({1, 0, 2}),
                               x.select(1, 3).expand_dims(1).broadcast_to({6, 7, 50})};
        for (const Array& view : views) {
            for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::any}) {
                for (const Dims& axes : {Dims{}, {0}, {1}, {2}, {0, 2}, {0, 1}})
                    check(op, view, axes, "view");
            }
        }
    }
}

// Odd sizes around the widths of vectors, warps and blocks; the starts of rows unaligned.
TEST(Reduce, OddSizes) {
    for (const std::int64_t rows : {1, 3, 17, 63, 129}) {
        for (const std::int64_t columns : {1, 3, 17, 63, 64, 65, 127, 129, 255, 257, 1000, 4097}) {
            for (const DType dtype : {DType::float32, DType::bfloat16, DType::int8}) {
                const Array x = random_array({rows, columns}, dtype, 4);
                check(ReduceOp::sum, x, {0}, "columns");
                check(ReduceOp::sum, x, {1}, "rows");
                check(ReduceOp::min, x.slice(1, columns / 2, 1, columns - columns / 2), {1}, "offset rows");
            }
        }
    }
}

// Enough for several parts, which a second pass joins.
TEST(Reduce, LargeInTwoPasses) {
    const std::int64_t count = 3'000'001;
    for (const DType dtype : {DType::uint8, DType::int16, DType::float16, DType::float32, DType::float64}) {
        const Array x = random_array({count}, dtype, 5);
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::max, ReduceOp::min}) {
            if (dtype == DType::float16 && op == ReduceOp::sum) continue;  // checked as a mean
            const auto want = expected(op, x, {});
            // The result is near zero, so the error is measured against the sum's spread, sqrt(count).
            const double scale = op == ReduceOp::sum ? 1732 : op == ReduceOp::mean ? 1.0 / 1732 : 1;
            EXPECT_NEAR(download(ops::reduce(op, x, {}, false))[0], want[0],
                        bound(dtype) * std::max(scale, std::abs(want[0])))
                << name(dtype) << " " << static_cast<int>(op);
        }
    }
    const Array wide = random_array({1'000'000, 3}, DType::float32, 6);
    check(ReduceOp::max, wide, {0}, "tall");
    check(ReduceOp::max, wide.transpose({1, 0}), {1}, "tall, transposed");
}

// A float32 running sum of ones would be wrong in the sixth digit; a tree's is exact.
TEST(Reduce, LongFloat32SumsAreAccurate) {
    const Array x = upload(std::vector<double>(1 << 22, 0.1), {1 << 22}, DType::float32);
    const double want = static_cast<double>(0.1f) * (1 << 22);
    EXPECT_NEAR(download(ops::reduce(ReduceOp::sum, x, {}, false))[0] / want, 1, 1e-6);
    const Array tall = *x.reshape_view({1 << 20, 4});
    for (const double value : download(ops::reduce(ReduceOp::sum, tall, {0}, false))) {
        EXPECT_NEAR(value / (want / 4), 1, 1e-5);
    }
}

TEST(Reduce, Repeats) {
    const Array x = random_array({3, 100'003}, DType::float32, 7);
    for (const Dims& axes : {Dims{}, {0}, {1}}) {
        const auto first = download(ops::reduce(ReduceOp::sum, x, axes, false));
        for (int i = 0; i < 5; ++i) EXPECT_EQ(download(ops::reduce(ReduceOp::sum, x, axes, false)), first);
    }
}

TEST(Reduce, Float16SumsDoNotOverflowOnTheWay) {
    const Array x = upload(std::vector<double>(1000, 1000.0), {1000}, DType::float16);
    EXPECT_EQ(download(ops::reduce(ReduceOp::mean, x, {}, false))[0], 1000.0);
}

TEST(Reduce, NaNIsTheLargestAndTheSmallest) {
    for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32, DType::float64}) {
        for (const std::int64_t size : {3, 70, 5000}) {
            std::vector<double> elements(static_cast<std::size_t>(size), 1.0);
            elements[static_cast<std::size_t>(size / 2)] = std::nan("");
            const Array x = upload(elements, {size}, dtype);
            EXPECT_TRUE(std::isnan(download(ops::reduce(ReduceOp::max, x, {}, false))[0]))
                << name(dtype) << size;
            EXPECT_TRUE(std::isnan(download(ops::reduce(ReduceOp::min, x, {}, false))[0]))
                << name(dtype) << size;
            EXPECT_EQ(download(ops::reduce(ReduceOp::all, x, {}, false))[0], 1.0);
        }
    }
}

TEST(Reduce, IntegersUseTheirWholeRange) {
    const Array low = upload({-128, -128}, {2}, DType::int8), high = upload({255, 255}, {2}, DType::uint8);
    EXPECT_EQ(download(ops::reduce(ReduceOp::max, low, {}, false))[0], -128);
    EXPECT_EQ(download(ops::reduce(ReduceOp::sum, low, {}, false))[0], -256);
    EXPECT_EQ(download(ops::reduce(ReduceOp::min, high, {}, false))[0], 255);
    EXPECT_EQ(download(ops::reduce(ReduceOp::sum, high, {}, false))[0], 510);
    EXPECT_EQ(download(ops::reduce(ReduceOp::prod, low, {}, false))[0], 16384);
}

TEST(Reduce, ZeroDimensions) {
    const Array x = upload({3}, {}, DType::float32);
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::max, ReduceOp::prod}) {
        const Array result = ops::reduce(op, x, {}, true);
        EXPECT_EQ(result.shape(), Dims{});
        EXPECT_EQ(download(result)[0], 3.0);
    }
    EXPECT_THROW(ops::reduce(ReduceOp::sum, x, {0}, false), Error);
}

TEST(Reduce, KeepsDimensions) {
    const Array x = random_array({2, 3, 4}, DType::float32, 8);
    EXPECT_EQ(ops::reduce(ReduceOp::sum, x, {1}, true).shape(), (Dims{2, 1, 4}));
    EXPECT_EQ(ops::reduce(ReduceOp::sum, x, {0, -1}, true).shape(), (Dims{1, 3, 1}));
    EXPECT_EQ(ops::reduce(ReduceOp::sum, x, {}, true).shape(), (Dims{1, 1, 1}));
    EXPECT_EQ(ops::reduce(ReduceOp::sum, x, {}, false).shape(), Dims{});
}

TEST(Reduce, OfNothing) {
    const Array x = random_array({3, 0, 2}, DType::float32, 1);
    EXPECT_EQ(download(ops::reduce(ReduceOp::sum, x, {1}, false)), std::vector<double>(6, 0.0));
    EXPECT_EQ(download(ops::reduce(ReduceOp::prod, x, {1}, false)), std::vector<double>(6, 1.0));
    EXPECT_EQ(download(ops::reduce(ReduceOp::any, x, {}, false)), std::vector<double>(1, 0.0));
    EXPECT_EQ(download(ops::reduce(ReduceOp::all, x, {}, false)), std::vector<double>(1, 1.0));
    for (const double value : download(ops::reduce(ReduceOp::mean, x, {1}, false)))
        EXPECT_TRUE(std::isnan(value));
    EXPECT_EQ(ops::reduce(ReduceOp::max, x, {0}, false).shape(),
              (Dims{0, 2}));  // no output, so nothing to ask
    for (const ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
        EXPECT_THROW(ops::reduce(op, x, {1}, false), Error);
        EXPECT_THROW(ops::reduce(op, x, {}, false), Error);
    }
}

TEST(Reduce, NamesWhatIsWrong) {
    const Array x = random_array({2, 3}, DType::float32, 1);
    try {
        ops::reduce(ReduceOp::sum, x, {0, -2}, false);
        ADD_FAILURE();
    } catch (const Error& failure) {
        EXPECT_EQ(failure.kind(), ErrorKind::value);
    }
    try {
        ops::reduce(ReduceOp::sum, x, {2}, false);
        ADD_FAILURE();
    } catch (const Error& failure) {
        EXPECT_EQ(failure.kind(), ErrorKind::index);
    }
    try {
        ops::reduce(ReduceOp::sum, random_array({2}, DType::float8_e5m2, 1), {}, false);
        ADD_FAILURE();
    } catch (const Error& failure) {
        EXPECT_EQ(failure.kind(), ErrorKind::type);
    }
}

}  // namespace
