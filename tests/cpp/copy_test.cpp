// astype, contiguous, assign and fills.
#include <limits>

#include "elementwise_support.hpp"

namespace gpk {
namespace {

using namespace test;

TEST(Copy, EveryPairOfDtypesConverts) {
    // Small whole numbers, which all dtypes hold.
    std::vector<double> small;
    for (int i = 0; i < 1500; ++i) small.push_back(i % 5);
    for (const DType from : all_dtypes()) {
        const Array x = make({1500}, small, from);
        for (const DType to : all_dtypes()) {
            const std::vector<double> expected = rounded(rounded(small, from), to);
            EXPECT_EQ(values(ops::astype(x, to)), expected) << name(from) << " to " << name(to);
            // Strided on both sides.
            const Array target = make({3, 500}, std::vector<double>(1500, 9), to).transpose({});
            const Array source = make({1000}, std::vector<double>(small.begin(), small.begin() + 1000), from)
                                     .slice(0, 0, 2, 500);
            ops::assign(target, source.expand_dims(1));
            const std::vector<double> strided = values(target);
            const std::vector<double> stored = rounded(rounded(small, from), to);
            for (int i = 0; i < 500; ++i)
                ASSERT_EQ(strided[3 * i + 2], stored[2 * i]) << name(from) << " to " << name(to);
        }
    }
}

TEST(Copy, FloatToIntegerTruncatesAndSaturates) {
    const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
    const std::vector<double> in = {1.9, -1.9, 127.5, 128, -129, 300, 1e30, -1e30, inf, -inf, nan, -0.5};
    for (const DType from : {DType::float32, DType::float64}) {
        const Array x = make({12}, in, from);
        EXPECT_EQ(values(ops::astype(x, DType::int8)),
                  (std::vector<double>{1, -1, 127, 127, -128, 127, 127, -128, 127, -128, 0, 0}));
        EXPECT_EQ(values(ops::astype(x, DType::uint8)),
                  (std::vector<double>{1, 0, 127, 128, 0, 255, 255, 0, 255, 0, 0, 0}));
        EXPECT_EQ(values(ops::astype(x, DType::int32)),
                  (std::vector<double>{1, -1, 127, 128, -129, 300, 2147483647.0, -2147483648.0, 2147483647.0,
                                       -2147483648.0, 0, 0}));
        const std::vector<double> wide = values(ops::astype(x, DType::int64));
        EXPECT_EQ(wide[6], 9223372036854775807.0);
        EXPECT_EQ(wide[7], -9223372036854775808.0);
        EXPECT_EQ(wide[10], 0);
        EXPECT_EQ(values(ops::astype(x, DType::bool_)), (std::vector<double>(12, 1)));
    }
}

TEST(Copy, LargestIntegersFromFloats) {
    const Array x =
        make({3}, {18446744073709549568.0, 18446744073709551616.0, 9223372036854774784.0}, DType::float64);
    std::uint64_t host[3];
    ops::astype(x, DType::uint64).copy_to_host(host);
    EXPECT_EQ(host[0], 18446744073709549568ull);
    EXPECT_EQ(host[1], std::numeric_limits<std::uint64_t>::max());
    std::int64_t whole[3];
    ops::astype(x, DType::int64).copy_to_host(whole);
    EXPECT_EQ(whole[0], std::numeric_limits<std::int64_t>::max());
    EXPECT_EQ(whole[2], 9223372036854774784);
}

TEST(Copy, IntegersWrapToShorterOnes) {
    const Array x = make({4}, {255, 256, 300, -1}, DType::int32);
    EXPECT_EQ(values(ops::astype(x, DType::uint8)), (std::vector<double>{255, 0, 44, 255}));
    EXPECT_EQ(values(ops::astype(x, DType::int8)), (std::vector<double>{-1, 0, 44, -1}));
}

TEST(Copy, DoubleRoundsOnceToShortFloats) {
    // Just above the middle of two float16 values: through float32 it would round down to even.
    const double above = 1 + std::ldexp(1, -11) + std::ldexp(1, -40), middle = 1 + std::ldexp(1, -11);
    const Array x = make({3}, {0, 0, 0}, DType::float64);
    const double host[3] = {above, middle, -above};
    x.copy_from_host(host);
    const double next = 1 + std::ldexp(1, -10);
    EXPECT_EQ(values(ops::astype(x, DType::float16)), (std::vector<double>{next, 1, -next}));
    const double bf[3] = {1 + std::ldexp(1, -8) + std::ldexp(1, -40), 1e300, -1e-300};
    x.copy_from_host(bf);
    const std::vector<double> got = values(ops::astype(x, DType::bfloat16));
    EXPECT_EQ(got[0], 1 + std::ldexp(1, -7));
    EXPECT_EQ(got[1], std::numeric_limits<double>::infinity());
    EXPECT_EQ(got[2], 0);
}

TEST(Copy, LargeConversionsOfEachContiguousPair) {
    const std::int64_t count = 200003;  // not a multiple of any pack, more than one step of the grid
    const std::vector<double> in = random_values(count, -100, 100);
    for (const DType from : {DType::float32, DType::float16, DType::bfloat16, DType::float64, DType::int32,
                             DType::int64, DType::uint8, DType::bool_}) {
        const std::vector<double> stored = rounded(in, from);
        const Array x = make({count}, in, from);
        for (const DType to :
             {DType::float32, DType::float16, DType::bfloat16, DType::float64, DType::int32}) {
            EXPECT_EQ(values(ops::astype(x, to)), rounded(stored, to)) << name(from) << " to " << name(to);
        }
    }
}

TEST(Copy, UnalignedViewsConvert) {
    const std::vector<double> in = random_values(1000, -2, 2);
    const Array x = make({1000}, in).slice(0, 1, 1, 999);
    const std::vector<double> stored = rounded(std::vector<double>(in.begin() + 1, in.end()), DType::float32);
    EXPECT_EQ(values(ops::astype(x, DType::bfloat16)), rounded(stored, DType::bfloat16));
}

TEST(Copy, ContiguousKeepsWhatIsContiguous) {
    const Array x = make({2, 3}, {1, 2, 3, 4, 5, 6});
    EXPECT_EQ(ops::contiguous(x).data(), x.data());
    const Array t = ops::contiguous(x.transpose({}));
    EXPECT_TRUE(t.is_contiguous());
    EXPECT_NE(t.data(), x.data());
    EXPECT_EQ(values(t), (std::vector<double>{1, 4, 2, 5, 3, 6}));
    EXPECT_NE(ops::astype(x, DType::float32).data(), x.data());
}

TEST(Copy, TransposesOfEverySize) {
    for (const DType dtype : {DType::uint8, DType::float16, DType::float32, DType::float64}) {
        std::vector<double> in;
        for (int i = 0; i < 37 * 53; ++i) in.push_back(i % 200);
        const std::vector<double> got = values(ops::contiguous(make({37, 53}, in, dtype).transpose({})));
        for (int i = 0; i < 53; ++i) {
            for (int j = 0; j < 37; ++j) ASSERT_EQ(got[i * 37 + j], in[j * 53 + i]) << name(dtype);
        }
    }
}

// Through tiles: whole and ragged ones, pieces of every width, batches on either side, other permutations,
// and a target that is the turned one.
TEST(Copy, TransposesInTiles) {
    for (const DType dtype : {DType::uint8, DType::int16, DType::float32, DType::int64}) {
        for (const Dims& shape :
             {Dims{256, 128}, {300, 200}, {8, 1000}, {129, 67}, {2, 136, 72}, {3, 5, 33, 40}}) {
            const std::int64_t count = element_count(shape);
            std::vector<double> in;
            for (std::int64_t i = 0; i < count; ++i) in.push_back(static_cast<double>(i * 7 % 120));
            const Array x = make(shape, in, dtype);
            Dims last_two, all;
            for (int d = 0; d < x.rank(); ++d) last_two.push_back(d), all.push_back(x.rank() - 1 - d);
            std::swap(last_two[x.rank() - 1], last_two[x.rank() - 2]);
            for (const Dims& axes : {last_two, all}) {
                const Array turned = x.transpose(axes);
                const std::vector<double> expected = values(turned);  // read by its strides
                const Array copied = ops::contiguous(turned);
                EXPECT_TRUE(copied.is_contiguous());
                EXPECT_EQ(values(copied), expected) << name(dtype) << to_string(shape);
                const Array target = make(shape, std::vector<double>(in.size(), 1), dtype);
                ops::assign(target.transpose(axes), copied);
                EXPECT_EQ(values(target), in) << name(dtype) << to_string(shape);
            }
            const Array part =
                x.slice(x.rank() - 1, 1, 1, shape.back() - 1).transpose(last_two);  // unaligned
            EXPECT_EQ(values(ops::contiguous(part)), values(part));
        }
    }
    // Units of 16 bytes.
    const Array x = make({70, 90, 4}, random_values(70 * 90 * 4, -1, 1), DType::float32);
    EXPECT_EQ(values(ops::contiguous(x.transpose({1, 0, 2}))), values(x.transpose({1, 0, 2})));
}

TEST(Copy, LargeTransposedConversions) {
    const Array x = make({800, 900}, random_values(720'000, -100, 100), DType::float32);
    EXPECT_EQ(values(ops::astype(x.transpose({}), DType::int8)),
              values(ops::astype(x, DType::int8).transpose({})));
}

TEST(Copy, RankSixteen) {
    Dims shape, axes;
    for (int i = 0; i < 16; ++i) {
        shape.push_back(2);
        axes.push_back((5 * i + 3) % 16);
    }
    std::vector<double> in(1 << 16);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<double>(i);
    const Array view = make(shape, in).transpose(axes);
    EXPECT_EQ(values(ops::contiguous(view)), values(view));
}

TEST(Copy, NegativeStepsAndEmpty) {
    const Array x = make({5}, {1, 2, 3, 4, 5}).slice(0, 4, -2, 3);
    EXPECT_EQ(values(ops::contiguous(x)), (std::vector<double>{5, 3, 1}));
    const Array empty = Array::empty(test_device(), {0, 3}, DType::float32);
    EXPECT_EQ(ops::astype(empty, DType::int8).shape(), (Dims{0, 3}));
    ops::assign(empty, Scalar(1.0));
    ops::assign(empty, empty);
}

TEST(Assign, BroadcastsAndDropsLeadingOnes) {
    const Array to = make({2, 3}, {0, 0, 0, 0, 0, 0});
    ops::assign(to, make({3}, {1, 2, 3}));
    EXPECT_EQ(values(to), (std::vector<double>{1, 2, 3, 1, 2, 3}));
    ops::assign(to, make({1, 1, 2, 1}, {7, 8}));
    EXPECT_EQ(values(to), (std::vector<double>{7, 7, 7, 8, 8, 8}));
    ops::assign(to.select(0, 1), make({}, {5}, DType::int32));
    EXPECT_EQ(values(to), (std::vector<double>{7, 7, 7, 5, 5, 5}));
    expect_error(ErrorKind::value, [&] { ops::assign(to, make({2}, {1, 2})); });
    expect_error(ErrorKind::value, [&] { ops::assign(to.readonly(), make({3}, {1, 2, 3})); });
}

TEST(Assign, ViewsLeaveTheRestAlone) {
    const Array to = make({4, 4}, std::vector<double>(16, 0));
    ops::assign(to.slice(0, 1, 1, 2).slice(1, 0, 3, 2), make({2, 2}, {1, 2, 3, 4}));
    EXPECT_EQ(values(to), (std::vector<double>{0, 0, 0, 0, 1, 0, 0, 2, 3, 0, 0, 4, 0, 0, 0, 0}));
}

TEST(Assign, OverlappingViews) {
    std::vector<double> in(50000);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<double>(i);
    const Array x = make({50000}, in);
    ops::assign(x.slice(0, 1, 1, 49999), x.slice(0, 0, 1, 49999));
    const std::vector<double> shifted = values(x);
    for (std::size_t i = 1; i < in.size(); ++i) ASSERT_EQ(shifted[i], in[i - 1]);
    const Array y = make({50000}, in);
    ops::assign(y, y.slice(0, 49999, -1, 50000));
    const std::vector<double> reversed = values(y);
    for (std::size_t i = 0; i < in.size(); ++i) ASSERT_EQ(reversed[i], in[in.size() - 1 - i]);
    const Array square = make({3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9});
    ops::assign(square, square.transpose({}));
    EXPECT_EQ(values(square), (std::vector<double>{1, 4, 7, 2, 5, 8, 3, 6, 9}));
    ops::assign(square, square);
    EXPECT_EQ(values(square), (std::vector<double>{1, 4, 7, 2, 5, 8, 3, 6, 9}));
}

TEST(Fill, EveryDtypeAndStride) {
    for (const DType dtype : all_dtypes()) {
        const double expected = rounded({3}, dtype)[0];
        const Array x = make({7, 6}, std::vector<double>(42, 0), dtype);
        ops::assign(x.slice(1, 1, 2, 3), Scalar(3));
        std::vector<double> want(42, 0);
        for (int i = 0; i < 42; ++i) want[i] = i % 6 % 2 == 1 ? expected : 0;
        EXPECT_EQ(values(x), want) << name(dtype);
        ops::assign(x, Scalar(3.0));
        EXPECT_EQ(values(x), std::vector<double>(42, expected)) << name(dtype);
        ops::assign(x.slice(0, 2, 1, 3), Scalar(false));
        for (int i = 12; i < 30; ++i) want[i] = 0;
        EXPECT_EQ(values(x.slice(0, 2, 1, 3)), std::vector<double>(18, 0)) << name(dtype);
        EXPECT_EQ(values(x.select(0, 1)), std::vector<double>(6, expected)) << name(dtype);
    }
}

TEST(Fill, RefusesIntegersOutOfRange) {
    const Array x = make({2}, {0, 0}, DType::uint8);
    expect_error(ErrorKind::value, [&] { ops::assign(x, Scalar(256)); });
    expect_error(ErrorKind::value, [&] { ops::assign(x, Scalar(-1)); });
    ops::assign(x, Scalar(255));
    EXPECT_EQ(values(x), (std::vector<double>{255, 255}));
    const Array wide = make({1}, {0}, DType::uint64);
    ops::assign(wide, Scalar(std::numeric_limits<std::uint64_t>::max()));
    std::uint64_t host = 0;
    wide.copy_to_host(&host);
    EXPECT_EQ(host, std::numeric_limits<std::uint64_t>::max());
}

}  // namespace
}  // namespace gpk
