#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "ops/reduce.hpp"
#include "values.hpp"

namespace {

using namespace gpk;
using values::download;
using values::random_array;
using values::upload;

// By the definition, in float64 and two passes, over axes that `axes` names.
std::vector<double> expected(const Array& x, const Dims& axes, double correction) {
    std::vector<bool> reduced(static_cast<std::size_t>(x.rank()), axes.empty());
    for (const std::int64_t axis : axes) reduced[static_cast<std::size_t>(axis)] = true;
    const auto elements = download(x);
    std::vector<std::size_t> places;
    std::size_t outputs = 1;
    for (std::size_t id = 0; id < elements.size(); ++id) {
        auto rest = static_cast<std::int64_t>(id);
        std::size_t place = 0, step = 1;
        for (int i = x.rank() - 1; i >= 0; --i) {
            const auto index = static_cast<std::size_t>(rest % x.shape()[i]);
            rest /= x.shape()[i];
            if (reduced[static_cast<std::size_t>(i)]) continue;
            place += index * step;
            step *= static_cast<std::size_t>(x.shape()[i]);
        }
        outputs = step;
        places.push_back(place);
    }
    const double count = static_cast<double>(elements.size() / outputs);
    std::vector<double> means(outputs), result(outputs);
    for (std::size_t id = 0; id < elements.size(); ++id) means[places[id]] += elements[id] / count;
    for (std::size_t id = 0; id < elements.size(); ++id) {
        const double difference = elements[id] - means[places[id]];
        result[places[id]] += difference * difference / (count - correction);
    }
    return result;
}

double bound(DType dtype) {
    switch (dtype) {
        case DType::float16: return 6e-4;
        case DType::bfloat16: return 5e-3;
        case DType::float32: return 2e-6;
        default: return 1e-13;
    }
}

void check(const Array& x, const Dims& axes, double correction) {
    const auto reference = expected(x, axes, correction);
    const auto variance = download(ops::variance(x, axes, correction, false, false)),
               deviation = download(ops::variance(x, axes, correction, false, true));
    ASSERT_EQ(variance.size(), reference.size());
    for (std::size_t i = 0; i < reference.size(); ++i) {
        const double root = std::sqrt(reference[i]);
        ASSERT_NEAR(variance[i], reference[i], bound(x.dtype()) * reference[i] + 1e-300)
            << name(x.dtype()) << " " << to_string(x.shape()) << " over " << to_string(axes) << " place "
            << i;
        ASSERT_NEAR(deviation[i], root, bound(x.dtype()) * root + 1e-300);
    }
}

constexpr DType kFloats[] = {DType::float16, DType::bfloat16, DType::float32, DType::float64};

TEST(Variance, RowsColumnsAndMiddleAxes) {
    for (const DType dtype : kFloats) {
        for (const Dims& shape : {Dims{3, 2}, {65, 33}, {130, 4096}, {5, 70'001}, {3000, 40}, {2, 17, 1}}) {
            const Array x = random_array(shape, dtype, 1);
            check(x, {0}, 0);
            check(x, {1}, 1);
            check(x, {}, 0.5);
        }
        const Array x = random_array({6, 40, 3, 32}, dtype, 2);
        for (const Dims& axes : {Dims{1}, {0, 2}, {1, 3}, {2, 3}, {0, 1, 3}}) check(x, axes, 1);
        check(x.transpose({3, 0, 2, 1}), {0, 3}, 0);
        check(x.slice(3, 1, 3, 10), {3}, 0);
        check(x.slice(1, 39, -1, 40), {1, 2}, 0);
    }
}

TEST(Variance, InTwoPasses) {
    for (const DType dtype : kFloats) check(random_array({1'500'003}, dtype, 3), {}, 1);
    check(random_array({300'000, 8}, DType::float32, 4), {0}, 0);
    check(random_array({300'000, 3}, DType::float32, 4), {0}, 0);
}

// E(x^2) - E(x)^2 would leave nothing of it.
TEST(Variance, OfAMeanMuchLargerThanTheSpread) {
    std::vector<double> x;
    for (int i = 0; i < 100'000; ++i) x.push_back(10'000 + static_cast<double>(i % 64) / 64);
    const Array array = upload(x, {100'000}, DType::float32);
    const double reference = expected(array, {}, 0)[0];
    EXPECT_NEAR(download(ops::variance(array, {}, 0, false, false))[0], reference, 1e-3 * reference);
    const Array constant = upload(std::vector<double>(5000, 12345.678), {5000}, DType::float32);
    EXPECT_LE(download(ops::variance(constant, {}, 0, false, false))[0], 1e-6);
}

TEST(Variance, OfWholeNumbersIsFloat64) {
    for (const DType dtype : {DType::bool_, DType::int8, DType::uint16, DType::int32, DType::int64}) {
        const Array x = random_array({7, 33}, dtype, 5);
        const Array result = ops::variance(x, {1}, 0, true, false);
        EXPECT_EQ(result.dtype(), DType::float64);
        EXPECT_EQ(result.shape(), (Dims{7, 1}));
        check(ops::astype(x, DType::float64), {1}, 0);
        EXPECT_EQ(download(result),
                  download(ops::variance(ops::astype(x, DType::float64), {1}, 0, true, false)));
    }
}

TEST(Variance, OfLittleAndOfNothing) {
    const double nan = std::nan("");
    const auto one = [](const Array& x, double correction) {
        return download(ops::variance(x, {}, correction, false, false))[0];
    };
    const Array single = upload({3}, {1}, DType::float32);
    EXPECT_EQ(one(single, 0), 0);
    EXPECT_TRUE(std::isnan(one(single, 1)));
    EXPECT_EQ(one(upload({4}, {}, DType::float64), 0), 0);
    EXPECT_TRUE(std::isnan(one(upload({}, {0}, DType::float32), 0)));
    EXPECT_TRUE(std::isinf(one(upload({1, 2}, {2}, DType::float32), 5)));
    EXPECT_TRUE(std::isnan(one(upload({1, nan, 2}, {3}, DType::float32), 0)));
    EXPECT_TRUE(std::isnan(one(upload({1, INFINITY, 2}, {3}, DType::float32), 0)));
    EXPECT_EQ(ops::variance(upload({}, {0, 4}, DType::float32), {1}, 0, false, false).shape(), (Dims{0}));
}

TEST(Variance, RefusesWhatMakesNoSense) {
    const Array x = random_array({2, 3}, DType::float32, 6);
    const auto kind = [](const auto& call) {
        try {
            call();
        } catch (const Error& failure) {
            return failure.kind();
        }
        return ErrorKind::driver;
    };
    EXPECT_EQ(kind([&] { ops::variance(x, {2}, 0, false, false); }), ErrorKind::index);
    EXPECT_EQ(kind([&] { ops::variance(x, {0, 0}, 0, false, false); }), ErrorKind::value);
    EXPECT_EQ(kind([&] { ops::variance(x, {}, std::nan(""), false, false); }), ErrorKind::value);
    EXPECT_EQ(kind([&] { ops::variance(upload({1}, {1}, DType::float8_e4m3), {}, 0, false, false); }),
              ErrorKind::type);
}

}  // namespace
