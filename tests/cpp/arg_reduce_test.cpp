#include <gtest/gtest.h>

#include "base/error.hpp"
#include "ops/reduce.hpp"
#include "values.hpp"

namespace {

using namespace gpk;
using values::download;
using values::random_array;
using values::upload;

// The first best index of each row of `columns` values.
std::vector<double> expected(ArgReduceOp op, const std::vector<double>& elements, std::int64_t columns) {
    std::vector<double> result;
    for (std::size_t row = 0; row < elements.size(); row += static_cast<std::size_t>(columns)) {
        std::int64_t best = 0;
        for (std::int64_t i = 1; i < columns; ++i) {
            const double a = elements[row + static_cast<std::size_t>(i)],
                         b = elements[row + static_cast<std::size_t>(best)];
            if (!std::isnan(b) && (std::isnan(a) || (op == ArgReduceOp::argmax ? a > b : a < b))) best = i;
        }
        result.push_back(static_cast<double>(best));
    }
    return result;
}

constexpr ArgReduceOp kOps[] = {ArgReduceOp::argmax, ArgReduceOp::argmin};

TEST(ArgReduce, EveryDtype) {
    for (int id = 0; id <= static_cast<int>(DType::float64); ++id) {
        const auto dtype = static_cast<DType>(id);
        for (const Dims& shape : {Dims{1}, {17}, {5, 3}, {3, 65}, {63, 129}, {2, 4097}}) {
            const Array x = random_array(shape, dtype, 1);
            for (const ArgReduceOp op : kOps) {
                const Array result = ops::arg_reduce(op, x, -1, false);
                EXPECT_EQ(result.dtype(), DType::int64);
                EXPECT_EQ(download(result), expected(op, download(x), shape.back()))
                    << name(dtype) << " " << to_string(shape);
                EXPECT_EQ(download(ops::arg_reduce(op, x, ops::kAllAxes, false)),
                          expected(op, download(x), x.size()))
                    << name(dtype) << " " << to_string(shape);
            }
        }
    }
}

TEST(ArgReduce, AlongAnyAxisOfAnyStrides) {
    const Array x = random_array({7, 40, 33}, DType::float32, 2);
    for (const Array& view : {x, x.transpose({1, 2, 0}), x.slice(1, 39, -2, 20), x.slice(2, 3, 5, 6)}) {
        for (int axis = 0; axis < 3; ++axis) {
            Dims last;
            for (int i = 0; i < 3; ++i) {
                if (i != axis) last.push_back(i);
            }
            last.push_back(axis);
            const Array rows = view.transpose(last);
            for (const ArgReduceOp op : kOps) {
                EXPECT_EQ(download(ops::arg_reduce(op, view, axis, false)),
                          expected(op, download(rows), view.shape()[axis]))
                    << to_string(view.strides()) << " axis " << axis;
            }
        }
        EXPECT_EQ(download(ops::arg_reduce(ArgReduceOp::argmax, view, ops::kAllAxes, false)),
                  expected(ArgReduceOp::argmax, download(view), view.size()));
    }
}

// NaN, infinities and both zeros, at places that different lanes, vectors and tails look at.
TEST(ArgReduce, SpecialValues) {
    const double nan = std::nan(""), infinity = INFINITY;
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float64}) {
        for (const std::int64_t n : {7, 64, 1000, 4099, 700'001}) {
            std::vector<double> x(static_cast<std::size_t>(n), -infinity);
            const auto check = [&](const char* what) {
                const Array array = upload(x, {n}, dtype);
                for (const ArgReduceOp op : kOps) {
                    EXPECT_EQ(download(ops::arg_reduce(op, array, 0, false)), expected(op, x, n))
                        << name(dtype) << " " << n << " " << what;
                }
            };
            check("all the least");
            std::fill(x.begin(), x.end(), infinity);
            check("all the most");
            for (std::int64_t i = 0; i < n; ++i) x[static_cast<std::size_t>(i)] = i % 2 == 0 ? -0.0 : 0.0;
            check("zeros");
            for (const std::int64_t at : {n - 1, n / 2, std::int64_t{5}}) {
                x[static_cast<std::size_t>(at)] = nan;
                check("a NaN, and others after it");
            }
        }
    }
}

// Several parts, which a second pass joins; the best are equal, and the first of them counts.
TEST(ArgReduce, TheFirstOfEqualsInTwoPasses) {
    const std::int64_t count = 1'000'003;
    for (const std::int64_t first : {std::int64_t{0}, std::int64_t{77'777}, count - 2}) {
        std::vector<double> elements(static_cast<std::size_t>(count), 1.0);
        elements[static_cast<std::size_t>(first)] = elements[static_cast<std::size_t>(count - 1)] = 2.0;
        const Array x = upload(elements, {count}, DType::float32);
        EXPECT_EQ(download(ops::arg_reduce(ArgReduceOp::argmax, x, 0, false))[0], static_cast<double>(first));
    }
    const Array x = random_array({2, 500'000}, DType::bfloat16, 3);  // 16 bits: full of equals
    for (const ArgReduceOp op : kOps) {
        EXPECT_EQ(download(ops::arg_reduce(op, x, 1, false)), expected(op, download(x), 500'000));
        const Array flat = x.slice(1, 499'999, -1, 500'000);
        EXPECT_EQ(download(ops::arg_reduce(op, flat, ops::kAllAxes, false)),
                  expected(op, download(flat), 1'000'000));
    }
}

TEST(ArgReduce, TheFirstNaNWins) {
    for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32, DType::float64}) {
        for (const std::int64_t size : {5, 300, 100'000}) {
            std::vector<double> elements(static_cast<std::size_t>(size), 1.0);
            elements[0] = std::numeric_limits<double>::infinity();
            elements[1] = -std::numeric_limits<double>::infinity();
            elements[static_cast<std::size_t>(size / 2)] = elements[static_cast<std::size_t>(size - 1)] =
                std::nan("");
            const Array x = upload(elements, {size}, dtype);
            for (const ArgReduceOp op : kOps) {
                EXPECT_EQ(download(ops::arg_reduce(op, x, 0, false))[0], static_cast<double>(size / 2))
                    << name(dtype);
            }
        }
    }
}

TEST(ArgReduce, ExtremesOfIntegers) {
    const Array lowest = upload({-128, -128, -128}, {3}, DType::int8);
    EXPECT_EQ(download(ops::arg_reduce(ArgReduceOp::argmax, lowest, 0, false))[0], 0);
    const Array bools = upload({0, 1, 1, 0}, {4}, DType::bool_);
    EXPECT_EQ(download(ops::arg_reduce(ArgReduceOp::argmax, bools, 0, false))[0], 1);
    EXPECT_EQ(download(ops::arg_reduce(ArgReduceOp::argmin, bools, 0, false))[0], 0);
}

TEST(ArgReduce, Shapes) {
    const Array x = random_array({2, 3, 4}, DType::float32, 4);
    EXPECT_EQ(ops::arg_reduce(ArgReduceOp::argmax, x, 1, true).shape(), (Dims{2, 1, 4}));
    EXPECT_EQ(ops::arg_reduce(ArgReduceOp::argmax, x, ops::kAllAxes, true).shape(), (Dims{1, 1, 1}));
    EXPECT_EQ(ops::arg_reduce(ArgReduceOp::argmax, x, ops::kAllAxes, false).shape(), Dims{});
    EXPECT_EQ(ops::arg_reduce(ArgReduceOp::argmax, random_array({0, 3}, DType::float32, 1), 1, false).shape(),
              Dims{0});
    const Array scalar = upload({3}, {}, DType::float32);
    EXPECT_EQ(download(ops::arg_reduce(ArgReduceOp::argmax, scalar, ops::kAllAxes, false))[0], 0);
}

TEST(ArgReduce, Errors) {
    const auto kind = [](const auto& call) {
        try {
            call();
        } catch (const Error& failure) {
            return failure.kind();
        }
        ADD_FAILURE() << "no error";
        return ErrorKind::driver;
    };
    const Array empty = random_array({3, 0}, DType::float32, 1), x = random_array({3}, DType::float32, 1);
    EXPECT_EQ(kind([&] { ops::arg_reduce(ArgReduceOp::argmax, empty, 1, false); }), ErrorKind::value);
    EXPECT_EQ(kind([&] { ops::arg_reduce(ArgReduceOp::argmin, empty, ops::kAllAxes, false); }),
              ErrorKind::value);
    EXPECT_EQ(kind([&] { ops::arg_reduce(ArgReduceOp::argmax, x, 1, false); }), ErrorKind::index);
    EXPECT_EQ(kind([&] {
                  ops::arg_reduce(ArgReduceOp::argmax, random_array({2}, DType::float8_e4m3, 1), 0, false);
              }),
              ErrorKind::type);
}

}  // namespace
