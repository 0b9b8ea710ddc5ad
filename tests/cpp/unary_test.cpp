// Unary ops against float64 references.
#include <limits>
#include <map>

#include "elementwise_support.hpp"

namespace gpk {
namespace {

using namespace test;

const double kInf = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct Reference {
    double (*function)(double);
    double low = -5, high = 5;  // where it is tested
};

const std::map<UnaryOp, Reference>& references() {
    static const std::map<UnaryOp, Reference> table = {
        {UnaryOp::negative, {[](double x) { return -x; }}},
        {UnaryOp::absolute, {[](double x) { return std::abs(x); }}},
        {UnaryOp::sign, {[](double x) { return static_cast<double>((x > 0) - (x < 0)); }}},
        {UnaryOp::square, {[](double x) { return x * x; }}},
        {UnaryOp::reciprocal, {[](double x) { return 1 / x; }, 0.5, 5}},
        {UnaryOp::sqrt, {[](double x) { return std::sqrt(x); }, 0, 9}},
        {UnaryOp::rsqrt, {[](double x) { return 1 / std::sqrt(x); }, 0.5, 9}},
        {UnaryOp::cbrt, {[](double x) { return std::cbrt(x); }}},
        {UnaryOp::exp, {[](double x) { return std::exp(x); }}},
        {UnaryOp::exp2, {[](double x) { return std::exp2(x); }}},
        {UnaryOp::expm1, {[](double x) { return std::expm1(x); }}},
        {UnaryOp::log, {[](double x) { return std::log(x); }, 0.1, 9}},
        {UnaryOp::log2, {[](double x) { return std::log2(x); }, 0.1, 9}},
        {UnaryOp::log10, {[](double x) { return std::log10(x); }, 0.1, 9}},
        {UnaryOp::log1p, {[](double x) { return std::log1p(x); }, -0.5, 9}},
        {UnaryOp::sin, {[](double x) { return std::sin(x); }}},
        {UnaryOp::cos, {[](double x) { return std::cos(x); }}},
        {UnaryOp::tan, {[](double x) { return std::tan(x); }, -1, 1}},
        {UnaryOp::arcsin, {[](double x) { return std::asin(x); }, -1, 1}},
        {UnaryOp::arccos, {[](double x) { return std::acos(x); }, -1, 1}},
        {UnaryOp::arctan, {[](double x) { return std::atan(x); }}},
        {UnaryOp::sinh, {[](double x) { return std::sinh(x); }}},
        {UnaryOp::cosh, {[](double x) { return std::cosh(x); }}},
        {UnaryOp::tanh, {[](double x) { return std::tanh(x); }}},
        {UnaryOp::arcsinh, {[](double x) { return std::asinh(x); }}},
        {UnaryOp::arccosh, {[](double x) { return std::acosh(x); }, 1.5, 9}},
        {UnaryOp::arctanh, {[](double x) { return std::atanh(x); }, -0.9, 0.9}},
        {UnaryOp::floor, {[](double x) { return std::floor(x); }}},
        {UnaryOp::ceil, {[](double x) { return std::ceil(x); }}},
        {UnaryOp::trunc, {[](double x) { return std::trunc(x); }}},
        {UnaryOp::rint, {[](double x) { return std::nearbyint(x); }}},
        {UnaryOp::isnan, {[](double) { return 0.0; }}},
        {UnaryOp::isinf, {[](double) { return 0.0; }}},
        {UnaryOp::isfinite, {[](double) { return 1.0; }}},
        {UnaryOp::logical_not, {[](double x) { return x == 0 ? 1.0 : 0.0; }}},
        {UnaryOp::erf, {[](double x) { return std::erf(x); }}},
        {UnaryOp::sigmoid, {sigmoid}},
        {UnaryOp::relu, {[](double x) { return x > 0 ? x : 0; }}},
        {UnaryOp::silu, {[](double x) { return x * sigmoid(x); }}},
        {UnaryOp::gelu, {[](double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }}},
        {UnaryOp::gelu_tanh,
         {[](double x) { return x * sigmoid(2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }}},
    };
    return table;
}

DType expected_dtype(UnaryOp op, DType dtype) {
    switch (info(op).rule) {
        case UnaryRule::widened: return dtype == DType::bool_ ? DType::int8 : dtype;
        case UnaryRule::floating: return float_for(dtype);
        case UnaryRule::predicate: return DType::bool_;
        default: return dtype;
    }
}

TEST(Unary, EveryOpAndDtype) {
    for (const auto& [op, reference] : references()) {
        for (const DType dtype : all_dtypes()) {
            const std::string what = std::string(info(op).name) + " " + std::string(name(dtype));
            if (is_float8(dtype) || (dtype == DType::bool_ && info(op).rule == UnaryRule::number)) {
                expect_error(ErrorKind::type, [&, op = op] { ops::unary(op, make({1}, {1}, dtype)); });
                continue;
            }
            constexpr std::int64_t count = 7 * 401;
            const bool has_negative =
                info(dtype).kind != DTypeKind::unsigned_integer && dtype != DType::bool_;
            std::vector<double> in = random_values(
                count, has_negative ? reference.low : std::max(reference.low, 0.0), reference.high);
            in = rounded(in, dtype);
            std::vector<double> expected;
            for (double& x : in) {
                if (!is_floating(dtype))
                    x = std::min(std::max(x, std::ceil(reference.low)), std::floor(reference.high));
                if (dtype == DType::bool_) x = x != 0 || reference.low > 0;
                const double y = reference.function(x);
                expected.push_back(y);
            }
            const Array x = make({7, 401}, in, dtype);
            const Array got = ops::unary(op, x);
            EXPECT_EQ(got.dtype(), expected_dtype(op, dtype)) << what;
            // tan and the inverse functions multiply the input's own rounding; their floor is 1.
            const double allowed = 4 * tolerance(got.dtype());
            expected = as_result(expected, got.dtype());
            expect_close(values(got), expected, allowed, what, 0.5);
            const Array strided = ops::unary(op, x.transpose({}));
            expect_close(values(strided.transpose({})), expected, allowed, what + " strided", 0.5);
        }
    }
}

TEST(Unary, InvertIsBitwise) {
    EXPECT_EQ(values(ops::unary(UnaryOp::invert, make({2}, {0, 5}, DType::int8))),
              (std::vector<double>{-1, -6}));
    EXPECT_EQ(values(ops::unary(UnaryOp::invert, make({2}, {0, 5}, DType::uint16))),
              (std::vector<double>{65535, 65530}));
    const Array flags = ops::unary(UnaryOp::invert, make({2}, {0, 1}, DType::bool_));
    EXPECT_EQ(flags.dtype(), DType::bool_);
    EXPECT_EQ(values(flags), (std::vector<double>{1, 0}));
    expect_error(ErrorKind::type, [] { ops::unary(UnaryOp::invert, make({1}, {1})); });
}

TEST(Unary, IntegerEnds) {
    EXPECT_EQ(values(ops::unary(UnaryOp::absolute, make({2}, {-128, -7}, DType::int8))),
              (std::vector<double>{-128, 7}));
    EXPECT_EQ(values(ops::unary(UnaryOp::negative, make({2}, {-128, 7}, DType::int8))),
              (std::vector<double>{-128, -7}));
    EXPECT_EQ(values(ops::unary(UnaryOp::negative, make({2}, {1, 0}, DType::uint8))),
              (std::vector<double>{255, 0}));
    EXPECT_EQ(values(ops::unary(UnaryOp::square, make({1}, {100}, DType::int8))), (std::vector<double>{16}));
    EXPECT_EQ(values(ops::unary(UnaryOp::reciprocal, make({5}, {0, 1, -1, 2, -2}, DType::int32))),
              (std::vector<double>{0, 1, -1, 0, 0}));
}

TEST(Unary, RintTiesToEven) {
    for (const DType dtype : {DType::float16, DType::float32, DType::float64}) {
        EXPECT_EQ(values(ops::unary(UnaryOp::rint, make({6}, {0.5, 1.5, 2.5, -0.5, -1.5, -2.5}, dtype))),
                  (std::vector<double>{0, 2, 2, -0.0, -2, -2}));
    }
}

TEST(Unary, SpecialFloats) {
    for (const DType dtype : {DType::float32, DType::float64, DType::float16, DType::bfloat16}) {
        const Array x = make({5}, {kNaN, kInf, -kInf, -0.0, 1}, dtype);
        EXPECT_EQ(values(ops::unary(UnaryOp::isnan, x)), (std::vector<double>{1, 0, 0, 0, 0}));
        EXPECT_EQ(values(ops::unary(UnaryOp::isinf, x)), (std::vector<double>{0, 1, 1, 0, 0}));
        EXPECT_EQ(values(ops::unary(UnaryOp::isfinite, x)), (std::vector<double>{0, 0, 0, 1, 1}));
        expect_close(values(ops::unary(UnaryOp::sign, x)), {kNaN, 1, -1, 0, 1}, 0, "sign");
        expect_close(values(ops::unary(UnaryOp::relu, x)), {kNaN, kInf, 0, 0, 1}, 0, "relu");
        expect_close(values(ops::unary(UnaryOp::exp, x)), {kNaN, kInf, 0, 1, M_E}, tolerance(dtype), "exp");
        expect_close(values(ops::unary(UnaryOp::sqrt, x)), {kNaN, kInf, kNaN, 0, 1}, 0, "sqrt");
        EXPECT_TRUE(std::signbit(values(ops::unary(UnaryOp::sqrt, x))[3]));
        EXPECT_TRUE(std::signbit(values(ops::unary(UnaryOp::floor, x))[3]));
        expect_close(values(ops::unary(UnaryOp::sigmoid, x)), {kNaN, 1, 0, 0.5, sigmoid(1)}, tolerance(dtype),
                     "sigmoid");
    }
}

TEST(Unary, TailsKeepTheirRelativeAccuracy) {
    const std::vector<double> in = rounded({-20, -12, -9, -6, -4, -1e-3, 1e-3, 30, 80}, DType::float32);
    const Array x = make({9}, in);
    for (const UnaryOp op : {UnaryOp::sigmoid, UnaryOp::silu, UnaryOp::gelu, UnaryOp::gelu_tanh}) {
        std::vector<double> expected;
        for (const double value : in) expected.push_back(references().at(op).function(value));
        // The argument's own rounding is multiplied by its size in the exponential.
        expect_close(values(ops::unary(op, x)), expected, 4e-5, info(op).name, 1e-37);
    }
}

// 16-bit elements go by approximations on the device; their error must not show, in the tails either.
TEST(Unary, ShortFloatsAreRoundedOnce) {
    for (const DType dtype : {DType::float16, DType::bfloat16}) {
        std::vector<double> in;
        for (int i = -3000; i <= 3000; ++i) in.push_back(i / 320.0);
        in = rounded(in, dtype);
        const Array x = make({static_cast<std::int64_t>(in.size())}, in, dtype);
        for (const UnaryOp op : {UnaryOp::sigmoid, UnaryOp::silu, UnaryOp::gelu, UnaryOp::gelu_tanh}) {
            std::vector<double> expected;
            for (const double value : in) expected.push_back(references().at(op).function(value));
            // Half a unit in the last place and a little; float16's smallest numbers have fewer digits.
            const double half = dtype == DType::float16 ? 0x1p-11 : 0x1p-8;
            expect_close(values(ops::unary(op, x)), expected, 1.2 * half, info(op).name,
                         dtype == DType::float16 ? 0x1p-14 : 0);
        }
        const double inf = std::numeric_limits<double>::infinity();
        const Array ends = make({4}, {inf, 1000, -1000, 0}, dtype);
        for (const UnaryOp op : {UnaryOp::silu, UnaryOp::gelu, UnaryOp::gelu_tanh}) {
            EXPECT_EQ(values(ops::unary(op, ends)), (std::vector<double>{inf, 1000, 0, 0})) << info(op).name;
        }
    }
}

TEST(Unary, LargeSinesReduceExactly) {
    const std::vector<double> in = rounded({1e5, 3.3e7, 1e20, -7e30}, DType::float32);
    std::vector<double> expected;
    for (const double x : in) expected.push_back(std::sin(x));
    expect_close(values(ops::unary(UnaryOp::sin, make({4}, in))), expected, 1e-6, "sin", 0.1);
}

TEST(Unary, LargeUnalignedEmptyAndNoAxes) {
    constexpr std::int64_t count = 1000003;
    const auto in = rounded(random_values(count, -3, 3), DType::float32);
    const Array x = make({count}, in);
    std::vector<double> expected;
    for (const double value : in) expected.push_back(value * value);
    EXPECT_EQ(values(ops::unary(UnaryOp::square, x)), rounded(expected, DType::float32));
    EXPECT_EQ(values(ops::unary(UnaryOp::square, x.slice(0, 3, 1, count - 3))),
              rounded(std::vector<double>(expected.begin() + 3, expected.end()), DType::float32));
    EXPECT_EQ(ops::unary(UnaryOp::exp, Array::empty(test_device(), {3, 0}, DType::int8)).dtype(),
              DType::float16);
    EXPECT_EQ(values(ops::unary(UnaryOp::negative, make({}, {4}))), (std::vector<double>{-4}));
}

TEST(Unary, WritesIntoOut) {
    const Array x = make({4}, {1, 4, 9, 16});
    ops::unary(UnaryOp::sqrt, x, &x);
    EXPECT_EQ(values(x), (std::vector<double>{1, 2, 3, 4}));
    const Array reversed = x.slice(0, 3, -1, 4);
    ops::unary(UnaryOp::negative, x, &reversed);
    EXPECT_EQ(values(x), (std::vector<double>{-4, -3, -2, -1}));
    const Array flags = make({4}, {0, 0, 0, 0}, DType::bool_);
    ops::unary(UnaryOp::isnan, x, &flags);
    EXPECT_EQ(values(flags), (std::vector<double>{0, 0, 0, 0}));
    expect_error(ErrorKind::type, [&] { ops::unary(UnaryOp::isnan, x, &x); });
}

}  // namespace
}  // namespace gpk
