#include "ops/memory_order.hpp"

#include <gtest/gtest.h>

#include "base/scalar.hpp"
#include "ops/elementwise.hpp"
#include "values.hpp"

namespace {

using namespace gpk;
using values::download;
using values::random_array;

TEST(MemoryOrder, IsThatOfTheStrides) {
    const Array x = random_array({2, 3, 4}, DType::float32, 1);
    EXPECT_FALSE(ops::memory_order(x).has_value());
    for (const Dims& order : {Dims{2, 0, 1}, {0, 2, 1}, {2, 1, 0}, {1, 0, 2}}) {
        const auto found = ops::memory_order(x.transpose(order));
        ASSERT_TRUE(found.has_value()) << to_string(order);
        EXPECT_EQ(*found, ops::undone(order));
        EXPECT_TRUE(x.transpose(order).transpose(*found).is_contiguous());
    }
    const Array turned = x.transpose({});
    EXPECT_FALSE(ops::memory_order(turned.slice(0, 0, 2, 2)).has_value());  // gaps
    EXPECT_FALSE(ops::memory_order(turned.slice(0, 3, -1, 4)).has_value());
    EXPECT_FALSE(ops::memory_order(turned.broadcast_to({5, 4, 3, 2})).has_value());
    EXPECT_FALSE(ops::memory_order(random_array({}, DType::float32, 1)).has_value());
    EXPECT_FALSE(ops::memory_order(random_array({3, 0, 2}, DType::float32, 1).transpose({})).has_value());
    EXPECT_TRUE(ops::memory_order(random_array({1, 5, 1, 7}, DType::float32, 1).transpose({3, 2, 1, 0})));
}

// Values are those of contiguous operands, and the result lies as the operand does.
TEST(MemoryOrder, OfResults) {
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::int32, DType::int8}) {
        const Array m = random_array({3, 70, 50}, dtype, 2), turned = m.transpose({2, 0, 1});
        const Array copy = ops::contiguous(turned),
                    same = random_array({3, 70, 50}, dtype, 3).transpose({2, 0, 1});
        const auto check = [&](const Array& got, const Array& expected, bool kept) {
            EXPECT_EQ(download(got), download(expected)) << name(dtype);
            EXPECT_EQ(got.shape(), expected.shape());
            EXPECT_EQ(got.strides(), kept ? turned.strides() : copy.strides());
        };
        const Scalar two(std::int64_t{2});
        check(ops::binary(BinaryOp::add, turned, two), ops::binary(BinaryOp::add, copy, two), true);
        check(ops::binary(BinaryOp::subtract, two, turned), ops::binary(BinaryOp::subtract, two, copy), true);
        check(ops::binary(BinaryOp::less, turned, two), ops::binary(BinaryOp::less, copy, two), true);
        check(ops::unary(UnaryOp::negative, turned), ops::unary(UnaryOp::negative, copy), true);
        check(ops::binary(BinaryOp::multiply, turned, same), ops::binary(BinaryOp::multiply, copy, same),
              true);
        for (const Dims& shape : {Dims{70}, {3, 1}, {50, 1, 1}, {1, 3, 70}, {}}) {
            const Array small = random_array(shape, dtype, 4);
            check(ops::binary(BinaryOp::add, turned, small), ops::binary(BinaryOp::add, copy, small), true);
            check(ops::binary(BinaryOp::subtract, small, turned),
                  ops::binary(BinaryOp::subtract, small, copy), true);
        }
        // Two orders: the axes' own.
        check(ops::binary(BinaryOp::add, turned, copy), ops::binary(BinaryOp::add, copy, copy), false);
        check(ops::binary(BinaryOp::add, copy, turned), ops::binary(BinaryOp::add, copy, copy), false);
        // The result grows: it has no order of either.
        const Array wide = ops::binary(BinaryOp::add, turned, random_array({2, 50, 3, 70}, dtype, 5));
        EXPECT_EQ(wide.shape(), (Dims{2, 50, 3, 70}));
    }
}

TEST(MemoryOrder, IsTheOutputsWhereOneIsGiven) {
    const Array m = random_array({30, 40}, DType::float32, 6),
                out = Array::empty(test_device(), {40, 30}, DType::float32);
    const Array result = ops::binary(BinaryOp::add, m.transpose({}), Scalar(1.0), &out);
    EXPECT_EQ(result.strides(), (Dims{30, 1}));
    EXPECT_EQ(download(out),
              download(ops::binary(BinaryOp::add, ops::contiguous(m.transpose({})), Scalar(1.0))));
}

}  // namespace
