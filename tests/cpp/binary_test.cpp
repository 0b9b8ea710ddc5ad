// Binary ops against float64 (or exact integer) references.
#include <limits>
#include <map>

#include "elementwise_support.hpp"

namespace gpk {
namespace {

using namespace test;

const double kInf = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

double python_remainder(double a, double b) {
    const double mod = std::fmod(a, b);
    return mod != 0 && (mod < 0) != (b < 0) ? mod + b : mod;
}

// On plain numbers, away from overflow.
const std::map<BinaryOp, std::function<double(double, double)>>& references() {
    static const std::map<BinaryOp, std::function<double(double, double)>> table = {
        {BinaryOp::add, [](double a, double b) { return a + b; }},
        {BinaryOp::subtract, [](double a, double b) { return a - b; }},
        {BinaryOp::multiply, [](double a, double b) { return a * b; }},
        {BinaryOp::divide, [](double a, double b) { return a / b; }},
        {BinaryOp::floor_divide, [](double a, double b) { return std::floor(a / b); }},
        {BinaryOp::remainder, python_remainder},
        {BinaryOp::fmod, [](double a, double b) { return std::fmod(a, b); }},
        {BinaryOp::power, [](double a, double b) { return std::pow(a, b); }},
        {BinaryOp::minimum, [](double a, double b) { return std::min(a, b); }},
        {BinaryOp::maximum, [](double a, double b) { return std::max(a, b); }},
        {BinaryOp::arctan2, [](double a, double b) { return std::atan2(a, b); }},
        {BinaryOp::hypot, [](double a, double b) { return std::hypot(a, b); }},
        {BinaryOp::logaddexp, [](double a, double b) { return std::log(std::exp(a) + std::exp(b)); }},
        {BinaryOp::equal, [](double a, double b) { return a == b; }},
        {BinaryOp::not_equal, [](double a, double b) { return a != b; }},
        {BinaryOp::less, [](double a, double b) { return a < b; }},
        {BinaryOp::less_equal, [](double a, double b) { return a <= b; }},
        {BinaryOp::greater, [](double a, double b) { return a > b; }},
        {BinaryOp::greater_equal, [](double a, double b) { return a >= b; }},
        {BinaryOp::logical_and, [](double a, double b) { return a != 0 && b != 0; }},
        {BinaryOp::logical_or, [](double a, double b) { return a != 0 || b != 0; }},
        {BinaryOp::logical_xor, [](double a, double b) { return (a != 0) != (b != 0); }},
        {BinaryOp::bitwise_and,
         [](double a, double b) {
             return static_cast<double>(static_cast<std::int64_t>(a) & static_cast<std::int64_t>(b));
         }},
        {BinaryOp::bitwise_or,
         [](double a, double b) {
             return static_cast<double>(static_cast<std::int64_t>(a) | static_cast<std::int64_t>(b));
         }},
        {BinaryOp::bitwise_xor,
         [](double a, double b) {
             return static_cast<double>(static_cast<std::int64_t>(a) ^ static_cast<std::int64_t>(b));
         }},
        {BinaryOp::left_shift, [](double a, double b) { return a * std::exp2(b); }},
        {BinaryOp::right_shift, [](double a, double b) { return std::floor(a / std::exp2(b)); }},
    };
    return table;
}

bool takes(BinaryOp op, DType dtype) {
    switch (info(op).rule) {
        case BinaryRule::number: return dtype != DType::bool_;
        case BinaryRule::bitwise:
        case BinaryRule::shift: return !is_floating(dtype);
        default: return true;
    }
}

DType expected_dtype(BinaryOp op, DType dtype) {
    switch (info(op).rule) {
        case BinaryRule::widened:
        case BinaryRule::shift: return dtype == DType::bool_ ? DType::int8 : dtype;
        case BinaryRule::quotient: return is_floating(dtype) ? dtype : DType::float64;
        case BinaryRule::floating: return float_for(dtype);
        case BinaryRule::comparison:
        case BinaryRule::logical: return DType::bool_;
        default: return dtype;
    }
}

// Operands whose results all dtypes of the kind hold: small, and not close to where floor jumps.
std::vector<double> operands(DType dtype, std::int64_t count, bool second, BinaryOp op) {
    std::vector<double> out = random_values(count, second ? 0.55 : 0.6, second ? 3 : 11, second ? 5 : 6);
    const bool negative_allowed = op != BinaryOp::power && info(op).rule != BinaryRule::shift &&
                                  info(dtype).kind != DTypeKind::unsigned_integer;
    for (std::size_t i = 0; i < out.size(); ++i) {
        if (!is_floating(dtype)) out[i] = std::floor(out[i]) + 1;
        if (negative_allowed && (i * (second ? 7 : 5)) % 3 == 0) out[i] = -out[i];
        if (dtype == DType::bool_) out[i] = (i * (second ? 3 : 1)) % 4 < 2;
    }
    return rounded(out, dtype);
}

std::vector<double> expected_values(BinaryOp op, const std::vector<double>& a, const std::vector<double>& b,
                                    DType dtype) {
    std::vector<double> out(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
        const bool by_zero =
            b[i] == 0 && !is_floating(dtype) &&
            (op == BinaryOp::floor_divide || op == BinaryOp::remainder || op == BinaryOp::fmod);
        out[i] = by_zero ? 0 : references().at(op)(a[i], b[i]);
    }
    return as_result(out, expected_dtype(op, dtype));
}

TEST(Binary, EveryOpAndDtype) {
    for (int o = 0; o < kBinaryOpCount; ++o) {
        const auto op = static_cast<BinaryOp>(o);
        for (const DType dtype : all_dtypes()) {
            const std::string what = std::string(info(op).name) + " " + std::string(name(dtype));
            if (is_float8(dtype) || !takes(op, dtype)) {
                const Array x = make({2}, {1, 1}, dtype);
                expect_error(ErrorKind::type, [&] { ops::binary(op, x, x); });
                continue;
            }
            constexpr std::int64_t count = 3 * 5 * 401;
            const auto a = operands(dtype, count, false, op), b = operands(dtype, count, true, op);
            const auto expected = expected_values(op, a, b, dtype);
            const Array x = make({3, 5, 401}, a, dtype), y = make({3, 5, 401}, b, dtype);
            const Array got = ops::binary(op, x, y);
            EXPECT_EQ(got.dtype(), expected_dtype(op, dtype)) << what;
            expect_close(values(got), expected, 2 * tolerance(got.dtype()), what, 1);
            // The strided kernels, through views whose elements are the same ones.
            const Array strided = ops::binary(op, x.transpose({}), y.transpose({}));
            expect_close(values(strided.transpose({})), expected, 2 * tolerance(got.dtype()),
                         what + " strided", 1);
        }
    }
}

TEST(Binary, BroadcastsRowsColumnsAndSingles) {
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::int16, DType::int64}) {
        const Array a = make({2, 3}, {1, 2, 3, 4, 5, 6}, dtype), row = make({3}, {10, 20, 30}, dtype),
                    column = make({2, 1}, {40, 50}, dtype), single = make({}, {7}, dtype);
        EXPECT_EQ(values(ops::binary(BinaryOp::add, a, row)), (std::vector<double>{11, 22, 33, 14, 25, 36}));
        EXPECT_EQ(values(ops::binary(BinaryOp::subtract, column, a)),
                  (std::vector<double>{39, 38, 37, 46, 45, 44}));
        EXPECT_EQ(values(ops::binary(BinaryOp::multiply, a, single)),
                  (std::vector<double>{7, 14, 21, 28, 35, 42}));
        EXPECT_EQ(values(ops::binary(BinaryOp::subtract, single, a)),
                  (std::vector<double>{6, 5, 4, 3, 2, 1}));
        EXPECT_EQ(values(ops::binary(BinaryOp::add, row, column)),
                  (std::vector<double>{50, 60, 70, 60, 70, 80}));
        EXPECT_EQ(values(ops::binary(BinaryOp::add, single, single)), (std::vector<double>{14}));
        EXPECT_EQ(ops::binary(BinaryOp::add, single, single).rank(), 0);
    }
    expect_error(ErrorKind::value,
                 [] { ops::binary(BinaryOp::add, make({2}, {1, 2}), make({3}, {1, 2, 3})); });
}

// Rows, columns and middles in packs of 16 bytes and in what fills none; operands that run across.
TEST(Binary, BroadcastsInPacks) {
    const std::vector<Dims> shapes = {{6, 16, 24}, {6, 16, 1}, {6, 1, 24}, {1, 16, 24},
                                      {24},        {16, 1},    {6, 1, 1},  {}};
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float64, DType::int32, DType::int64}) {
        for (const Dims& left : shapes) {
            for (const Dims& right : shapes) {
                const auto a = rounded(random_values(element_count(left), 1, 60, 1), dtype),
                           b = rounded(random_values(element_count(right), 1, 60, 2), dtype);
                const Array x = make(left, a, dtype), y = make(right, b, dtype);
                const Dims shape = broadcast_shapes("test", left, right);
                const auto wide_a = values(x.broadcast_to(shape)), wide_b = values(y.broadcast_to(shape));
                std::vector<double> sum(wide_a.size()), less(wide_a.size());
                for (std::size_t i = 0; i < sum.size(); ++i) {
                    sum[i] = wide_a[i] + wide_b[i];
                    less[i] = wide_a[i] < wide_b[i];
                }
                EXPECT_EQ(values(ops::binary(BinaryOp::add, x, y)), as_result(sum, dtype))
                    << name(dtype) << to_string(left) << to_string(right);
                EXPECT_EQ(values(ops::binary(BinaryOp::less, x, y)), less);
            }
        }
    }
    const Array x = make({800, 801}, random_values(800 * 801, -1, 1)),
                row = make({800}, random_values(800, -1, 1, 2));
    const auto a = values(x.transpose({})), b = values(row);
    std::vector<double> expected(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) expected[i] = a[i] * b[i % 800];
    EXPECT_EQ(values(ops::binary(BinaryOp::multiply, x.transpose({}), row)),
              rounded(expected, DType::float32));
    for (std::size_t i = 0; i < a.size(); ++i) expected[i] = a[i] + 1;
    EXPECT_EQ(values(ops::binary(BinaryOp::add, x.transpose({}), Scalar(1))),
              rounded(expected, DType::float32));
    // The rows in reverse, and one with a step.
    const auto reversed = values(x.slice(0, 799, -1, 800));
    for (std::size_t i = 0; i < a.size(); ++i) expected[i] = reversed[i] + 1;
    EXPECT_EQ(values(ops::binary(BinaryOp::add, x.slice(0, 799, -1, 800), Scalar(1))),
              rounded(expected, DType::float32));
}

TEST(Binary, MixedDtypesPromote) {
    const std::vector<std::tuple<BinaryOp, DType, DType, DType>> cases = {
        {BinaryOp::add, DType::int8, DType::uint8, DType::int16},
        {BinaryOp::add, DType::int64, DType::uint64, DType::float64},
        {BinaryOp::add, DType::uint16, DType::int8, DType::int32},
        {BinaryOp::add, DType::bool_, DType::int32, DType::int32},
        {BinaryOp::add, DType::float16, DType::int8, DType::float16},
        {BinaryOp::add, DType::float16, DType::uint16, DType::float32},
        {BinaryOp::add, DType::float16, DType::bfloat16, DType::float32},
        {BinaryOp::multiply, DType::float32, DType::int32, DType::float64},
        {BinaryOp::divide, DType::int8, DType::int8, DType::float64},
        {BinaryOp::arctan2, DType::int8, DType::uint8, DType::float16},
        {BinaryOp::arctan2, DType::int16, DType::uint8, DType::float32},
        {BinaryOp::arctan2, DType::int32, DType::uint8, DType::float64},
        {BinaryOp::less, DType::float64, DType::int8, DType::bool_},
        {BinaryOp::left_shift, DType::int8, DType::uint8, DType::int16},
    };
    for (const auto& [op, a, b, result] : cases) {
        const Array got = ops::binary(op, make({3}, {1, 2, 3}, a), make({3}, {1, 1, 1}, b));
        EXPECT_EQ(got.dtype(), result) << info(op).name << " " << name(a) << " " << name(b);
        const std::vector<double> x = rounded({1, 2, 3}, a);
        for (int i = 0; i < 3; ++i) EXPECT_NEAR(values(got)[i], references().at(op)(x[i], 1), 2e-3);
    }
    expect_error(ErrorKind::type,
                 [] { ops::binary(BinaryOp::add, make({1}, {1}, DType::float8_e4m3), make({1}, {1})); });
}

TEST(Binary, ScalarsAreWeak) {
    const auto dtype_of = [](BinaryOp op, DType dtype, const Scalar& scalar) {
        return ops::binary(op, make({1}, {1}, dtype), scalar).dtype();
    };
    EXPECT_EQ(dtype_of(BinaryOp::add, DType::int8, 2), DType::int8);
    EXPECT_EQ(dtype_of(BinaryOp::add, DType::int8, 2.0), DType::float64);
    EXPECT_EQ(dtype_of(BinaryOp::add, DType::bool_, 2), DType::int64);
    EXPECT_EQ(dtype_of(BinaryOp::add, DType::bool_, true), DType::bool_);
    EXPECT_EQ(dtype_of(BinaryOp::add, DType::bfloat16, 2.5), DType::bfloat16);
    EXPECT_EQ(dtype_of(BinaryOp::floor_divide, DType::bool_, true), DType::int8);
    EXPECT_EQ(dtype_of(BinaryOp::arctan2, DType::int8, 300), DType::float16);
    EXPECT_EQ(dtype_of(BinaryOp::arctan2, DType::bool_, 2), DType::float64);
    EXPECT_EQ(dtype_of(BinaryOp::divide, DType::uint8, -1), DType::float64);
    EXPECT_EQ(dtype_of(BinaryOp::less, DType::int8, 2.5), DType::bool_);
    expect_error(ErrorKind::value, [&] { dtype_of(BinaryOp::add, DType::int8, 300); });
    expect_error(ErrorKind::value, [&] { dtype_of(BinaryOp::add, DType::uint8, -1); });
    expect_error(ErrorKind::type, [&] { dtype_of(BinaryOp::subtract, DType::bool_, true); });
    expect_error(ErrorKind::type, [&] { dtype_of(BinaryOp::bitwise_and, DType::int8, 2.0); });

    // Rounded to the array's dtype before it is used, on either side.
    const Array x = make({5}, {1, 2, 3, 4, 5}, DType::float16);
    const double tenth = rounded({0.1}, DType::float16)[0];
    std::vector<double> product, difference;
    for (int i = 1; i <= 5; ++i) {
        product.push_back(i * tenth);
        difference.push_back(tenth - i);
    }
    EXPECT_EQ(values(ops::binary(BinaryOp::multiply, x, Scalar(0.1))), rounded(product, DType::float16));
    EXPECT_EQ(values(ops::binary(BinaryOp::subtract, Scalar(0.1), x)), rounded(difference, DType::float16));
    EXPECT_EQ(values(ops::binary(BinaryOp::logical_and, make({2}, {0, 3}, DType::int8), Scalar(300))),
              (std::vector<double>{0, 1}));
    EXPECT_EQ(values(ops::binary(BinaryOp::logical_or, Scalar(0.5), make({2}, {0, 3}, DType::int8))),
              (std::vector<double>{1, 1}));
}

TEST(Binary, ComparisonsWithIntegersBeyondTheDtype) {
    const Array x = make({2}, {0, 255}, DType::uint8);
    const std::vector<double> all = {1, 1}, none = {0, 0};
    EXPECT_EQ(values(ops::binary(BinaryOp::less, x, Scalar(300))), all);
    EXPECT_EQ(values(ops::binary(BinaryOp::greater, x, Scalar(300))), none);
    EXPECT_EQ(values(ops::binary(BinaryOp::equal, x, Scalar(-1))), none);
    EXPECT_EQ(values(ops::binary(BinaryOp::not_equal, x, Scalar(-1))), all);
    EXPECT_EQ(values(ops::binary(BinaryOp::greater_equal, x, Scalar(-1))), all);
    EXPECT_EQ(values(ops::binary(BinaryOp::less, Scalar(300), x)), none);
    EXPECT_EQ(values(ops::binary(BinaryOp::greater, Scalar(300), x)), all);
    const Array wide = make({1}, {-5}, DType::int64);
    EXPECT_EQ(values(ops::binary(BinaryOp::less, wide, Scalar(std::uint64_t{1} << 63))),
              (std::vector<double>{1}));
}

TEST(Binary, IntegersWrapAndDivideByZeroAsInNumPy) {
    const double low = -128;
    const Array a = make({6}, {low, 127, low, 7, -7, -7}, DType::int8),
                b = make({6}, {-1, 1, low, 0, 0, 2}, DType::int8);
    EXPECT_EQ(values(ops::binary(BinaryOp::add, a, b)), (std::vector<double>{127, low, 0, 7, -7, -5}));
    EXPECT_EQ(values(ops::binary(BinaryOp::multiply, a, b)), (std::vector<double>{low, 127, 0, 0, 0, -14}));
    EXPECT_EQ(values(ops::binary(BinaryOp::floor_divide, a, b)),
              (std::vector<double>{low, 127, 1, 0, 0, -4}));
    EXPECT_EQ(values(ops::binary(BinaryOp::remainder, a, b)), (std::vector<double>{0, 0, 0, 0, 0, 1}));
    EXPECT_EQ(values(ops::binary(BinaryOp::fmod, a, b)), (std::vector<double>{0, 0, 0, 0, 0, -1}));
    const Array extremes = Array::empty(test_device(), {2}, DType::int64),
                minus = make({2}, {-1, -1}, DType::int64);
    const std::int64_t lowest = std::numeric_limits<std::int64_t>::min();
    const std::int64_t host[2] = {lowest, 5};
    extremes.copy_from_host(host);
    std::int64_t got[2];
    ops::binary(BinaryOp::floor_divide, extremes, minus).copy_to_host(got);
    EXPECT_EQ(got[0], lowest);
    ops::binary(BinaryOp::remainder, extremes, minus).copy_to_host(got);
    EXPECT_EQ(got[0], 0);
    ops::binary(BinaryOp::fmod, extremes, minus).copy_to_host(got);
    EXPECT_EQ(got[0], 0);
    ops::binary(BinaryOp::multiply, extremes, extremes).copy_to_host(got);
    EXPECT_EQ(got[0], 0);
    EXPECT_EQ(got[1], 25);
}

TEST(Binary, IntegerPower) {
    const Array a = make({7}, {3, -2, 7, 1, -1, -1, 2}, DType::int64),
                b = make({7}, {4, 3, 0, -5, -3, -4, -1}, DType::int64);
    EXPECT_EQ(values(ops::binary(BinaryOp::power, a, b)), (std::vector<double>{81, -8, 1, 1, -1, 1, 0}));
    EXPECT_EQ(values(ops::binary(BinaryOp::power, make({2}, {2, 3}, DType::uint8), Scalar(9))),
              (std::vector<double>{0, 227}));
    expect_error(ErrorKind::value, [&] { ops::binary(BinaryOp::power, a, Scalar(-1)); });
    EXPECT_EQ(values(ops::binary(BinaryOp::power, make({2}, {2, -3}), Scalar(2))),
              (std::vector<double>{4, 9}));
    EXPECT_EQ(values(ops::binary(BinaryOp::power, make({2}, {2, 4}), Scalar(-1.0))),
              (std::vector<double>{0.5, 0.25}));
    EXPECT_EQ(values(ops::binary(BinaryOp::power, Scalar(2), make({2}, {3, 4}))),
              (std::vector<double>{8, 16}));
}

TEST(Binary, ShiftsPastTheWidth) {
    const Array a = make({5}, {1, 1, -1, -1, 64}, DType::int8), b = make({5}, {8, -1, 8, -1, 1}, DType::int8);
    EXPECT_EQ(values(ops::binary(BinaryOp::left_shift, a, b)), (std::vector<double>{0, 0, 0, 0, -128}));
    EXPECT_EQ(values(ops::binary(BinaryOp::right_shift, a, b)), (std::vector<double>{0, 0, -1, -1, 32}));
    const Array c = make({2}, {200, 255}, DType::uint8);
    EXPECT_EQ(values(ops::binary(BinaryOp::right_shift, c, Scalar(9))), (std::vector<double>{0, 0}));
    EXPECT_EQ(values(ops::binary(BinaryOp::left_shift, c, Scalar(1))), (std::vector<double>{144, 254}));
}

TEST(Binary, SpecialFloats) {
    for (const DType dtype : {DType::float32, DType::float64, DType::float16, DType::bfloat16}) {
        const Array a = make({4}, {kNaN, 1, kInf, -kInf}, dtype), b = make({4}, {1, kNaN, 2, -kInf}, dtype);
        for (const BinaryOp op : {BinaryOp::minimum, BinaryOp::maximum}) {
            const auto got = values(ops::binary(op, a, b));
            EXPECT_TRUE(std::isnan(got[0]) && std::isnan(got[1])) << name(dtype);
            EXPECT_EQ(got[2], op == BinaryOp::minimum ? 2 : kInf);
        }
        EXPECT_EQ(values(ops::binary(BinaryOp::equal, a, a)), (std::vector<double>{0, 1, 1, 1}));
        EXPECT_EQ(values(ops::binary(BinaryOp::not_equal, a, a)), (std::vector<double>{1, 0, 0, 0}));
        EXPECT_EQ(values(ops::binary(BinaryOp::logaddexp, a, a))[2], kInf);
        EXPECT_EQ(values(ops::binary(BinaryOp::logaddexp, a, a))[3], -kInf);
        EXPECT_EQ(values(ops::binary(BinaryOp::divide, make({2}, {1, -1}, dtype), make({2}, {0, 0}, dtype))),
                  (std::vector<double>{kInf, -kInf}));
        const Array p = make({5}, {1, -1, 5, -5, 6}, dtype), q = make({5}, {kInf, kInf, -3, 3, -3}, dtype);
        EXPECT_EQ(values(ops::binary(BinaryOp::floor_divide, p, q)),
                  (std::vector<double>{0, -1, -2, -2, -2}));
        EXPECT_EQ(values(ops::binary(BinaryOp::remainder, p, q)), (std::vector<double>{1, kInf, -1, 1, 0}));
    }
}

TEST(Binary, LargeAndUnaligned) {
    constexpr std::int64_t count = 3000001;  // more than the grid takes in one step on the simulated device
    const auto a = random_values(count, -1, 1, 2), b = random_values(count, -1, 1, 3);
    for (const DType dtype : {DType::float32, DType::float16}) {
        const auto x = rounded(a, dtype), y = rounded(b, dtype);
        std::vector<double> sum(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) sum[i] = x[i] + y[i];
        const Array p = make({count}, a, dtype), q = make({count}, b, dtype);
        EXPECT_EQ(values(ops::binary(BinaryOp::add, p, q)), rounded(sum, dtype));
        const Array shifted =
            ops::binary(BinaryOp::add, p.slice(0, 1, 1, count - 1), q.slice(0, 1, 1, count - 1));
        EXPECT_EQ(values(shifted), rounded(std::vector<double>(sum.begin() + 1, sum.end()), dtype));
    }
}

TEST(Binary, WritesIntoOut) {
    const Array x = make({2, 3}, {1, 2, 3, 4, 5, 6}), y = make({2, 3}, {10, 20, 30, 40, 50, 60});
    const Array out = make({2, 3}, std::vector<double>(6, 0));
    EXPECT_EQ(ops::binary(BinaryOp::add, x, y, &out).data(), out.data());
    EXPECT_EQ(values(out), (std::vector<double>{11, 22, 33, 44, 55, 66}));
    ops::binary(BinaryOp::add, x, y, &x);  // one of the inputs
    EXPECT_EQ(values(x), (std::vector<double>{11, 22, 33, 44, 55, 66}));
    const Array view = make({3, 2}, std::vector<double>(6, 0)).transpose({});
    ops::binary(BinaryOp::less, x, y, nullptr);
    ops::binary(BinaryOp::add, y, Scalar(1), &view);
    EXPECT_EQ(values(view), (std::vector<double>{11, 21, 31, 41, 51, 61}));
    expect_error(ErrorKind::value, [&] {
        const Array o = make({3}, {0, 0, 0});
        ops::binary(BinaryOp::add, x, y, &o);
    });
    expect_error(ErrorKind::type, [&] {
        const Array o = make({2, 3}, std::vector<double>(6, 0), DType::float64);
        ops::binary(BinaryOp::add, x, y, &o);
    });
    expect_error(ErrorKind::value, [&] {
        const Array o = x.readonly();
        ops::binary(BinaryOp::add, x, y, &o);
    });
}

TEST(Binary, OutThatOverlapsAnInputOtherwise) {
    const std::int64_t n = 40000;
    std::vector<double> in(static_cast<std::size_t>(n + 1));
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<double>(i);
    const Array x = make({n + 1}, in);
    const Array out = x.slice(0, 1, 1, n), shifted = x.slice(0, 0, 1, n);
    ops::binary(BinaryOp::add, shifted, shifted, &out);
    const auto got = values(out);
    for (std::int64_t i = 0; i < n; ++i)
        ASSERT_EQ(got[static_cast<std::size_t>(i)], 2.0 * static_cast<double>(i));
    const Array square = make({2, 2}, {1, 2, 3, 4});
    ops::binary(BinaryOp::add, square, square.transpose({}), &square);
    EXPECT_EQ(values(square), (std::vector<double>{2, 5, 5, 8}));
}

TEST(Binary, EmptyArrays) {
    const Array empty = Array::empty(test_device(), {0, 4}, DType::float32);
    EXPECT_EQ(ops::binary(BinaryOp::add, empty, empty).shape(), (Dims{0, 4}));
    EXPECT_EQ(ops::binary(BinaryOp::less, empty, Scalar(1)).dtype(), DType::bool_);
    EXPECT_EQ(ops::binary(BinaryOp::add, empty, make({4}, {1, 2, 3, 4})).shape(), (Dims{0, 4}));
}

}  // namespace
}  // namespace gpk
