// The layouts that element-wise kernels walk.
#include "ops/collapse.hpp"

#include <gtest/gtest.h>

#include <random>

namespace gpk {
namespace {

TEST(Collapse, ContiguousOperandsBecomeOneAxis) {
    const Dims shape = {2, 3, 1, 5};
    const Dims strides = contiguous_strides(shape);
    const auto layout = ops::collapse<2>(shape, {strides, strides});
    EXPECT_EQ(layout.rank, 1);
    EXPECT_EQ(layout.count, 30);
    EXPECT_EQ(layout.axis[0].stride[0], 1);
    EXPECT_EQ(layout.axis[0].stride[1], 1);
}

TEST(Collapse, NoAxesIsOneElement) {
    const auto layout = ops::collapse<1>({}, {Dims{}});
    EXPECT_EQ(layout.rank, 1);
    EXPECT_EQ(layout.count, 1);
}

TEST(Collapse, EmptyShapeHasNoElements) { EXPECT_EQ(ops::collapse<1>({3, 0}, {Dims{0, 1}}).count, 0); }

TEST(Collapse, BroadcastAxisStaysApart) {
    // (4, 3) with a row of 3: the rows of the second operand repeat.
    const auto layout = ops::collapse<2>({4, 3}, {Dims{3, 1}, Dims{0, 1}});
    ASSERT_EQ(layout.rank, 2);
    EXPECT_EQ(layout.axis[0].extent, 3);
    EXPECT_EQ(layout.axis[1].stride[1], 0);
}

// Offsets against plain division, for both index widths.
template <int N>
void check_offsets(kernels::Layout<N> layout, std::int64_t index) {
    std::int64_t expected[N] = {}, rest = index;
    for (int d = 0; d < layout.rank; ++d) {
        for (int k = 0; k < N; ++k) expected[k] += rest % layout.axis[d].extent * layout.axis[d].stride[k];
        rest /= layout.axis[d].extent;
    }
    std::int64_t got[N];
    layout.offsets(index, got);
    for (int k = 0; k < N; ++k) ASSERT_EQ(got[k], expected[k]) << index;
    layout.wide = 1;
    layout.offsets(index, got);
    for (int k = 0; k < N; ++k) ASSERT_EQ(got[k], expected[k]) << index;
}

TEST(Collapse, OffsetsOfRandomLayouts) {
    std::mt19937_64 random(7);
    for (int round = 0; round < 300; ++round) {
        Dims shape, a, b;
        std::int64_t count = 1;
        const int rank = static_cast<int>(random() % 16) + 1;
        for (int i = 0; i < rank; ++i) {
            const std::int64_t most = std::min<std::int64_t>(2000, ((std::int64_t{1} << 31) - 1) / count);
            const std::int64_t extent =
                static_cast<std::int64_t>(random() % (round % 2 ? 5 : 2000)) % most + 1;
            shape.push_back(extent);
            a.push_back(static_cast<std::int64_t>(random() % 1000) - 500);
            b.push_back(random() % 3 ? static_cast<std::int64_t>(random() % 100000) : 0);
            count *= extent;
        }
        const auto layout = ops::collapse<2>(shape, {a, b});
        ASSERT_EQ(layout.count, count);
        ASSERT_FALSE(layout.wide);
        check_offsets(layout, 0);
        check_offsets(layout, count - 1);
        for (int i = 0; i < 50; ++i)
            check_offsets(layout, static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(count)));
    }
}

TEST(Collapse, DivisionIsExactAtTheEdges) {
    for (const std::int64_t divisor :
         {2, 3, 7, 641, 65535, 65536, 65537, 46341, 1 << 30, (1 << 30) + 1, 2147483646}) {
        // A second axis, so that the first is divided by.
        const std::int64_t outer = ((std::int64_t{1} << 31) - 1) / divisor;
        if (outer < 2) continue;
        const auto layout = ops::collapse<1>({outer, divisor}, {Dims{1 << 20, 3}});
        for (std::int64_t multiple = 1; multiple < outer; multiple += std::max<std::int64_t>(1, outer / 50)) {
            for (const std::int64_t near : {-1, 0, 1}) check_offsets(layout, multiple * divisor + near);
        }
    }
}

TEST(Collapse, MoreThanTwoToThe31ElementsAreWide) {
    const auto layout = ops::collapse<1>({70000, 70000}, {Dims{70001, 1}});
    EXPECT_TRUE(layout.wide);
    EXPECT_EQ(layout.count, 4900000000);
    check_offsets(layout, 4899999999);
}

TEST(Collapse, WidensWhatIsAligned) {
    auto layout = ops::collapse<2>({4, 8}, {Dims{32, 1}, Dims{8, 1}});
    EXPECT_EQ(ops::widen<2>(layout, 4, {256, 512}), 16);
    EXPECT_EQ(layout.count, 8);
    EXPECT_EQ(layout.axis[1].stride[0], 8);
    EXPECT_EQ(layout.axis[1].stride[1], 2);
    check_offsets(layout, 7);
}

TEST(Collapse, WidensOnlyAsFarAsAllAllow) {
    auto odd_address = ops::collapse<1>({4, 8}, {Dims{32, 1}});
    EXPECT_EQ(ops::widen<1>(odd_address, 4, {264}), 8);
    auto odd_stride = ops::collapse<1>({4, 8}, {Dims{33, 1}});
    EXPECT_EQ(ops::widen<1>(odd_stride, 4, {256}), 4);
    auto not_a_run = ops::collapse<1>({4, 8}, {Dims{32, 2}});
    EXPECT_EQ(ops::widen<1>(not_a_run, 4, {256}), 4);
    auto short_row = ops::collapse<1>({4, 6}, {Dims{32, 1}});
    EXPECT_EQ(ops::widen<1>(short_row, 2, {256}), 4);
}

}  // namespace
}  // namespace gpk
