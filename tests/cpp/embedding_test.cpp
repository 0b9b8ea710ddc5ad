#include <gtest/gtest.h>

#include "base/error.hpp"
#include "model_support.hpp"
#include "ops/embedding.hpp"

namespace {

using namespace gpk;

TEST(Embedding, CopiesRowsInEveryDtypeAndWidth) {
    for (const DType dtype : kModelFloats) {
        for (const std::int64_t n : {1, 3, 64, 577}) {
            const auto table = rounded(random_floats(11 * n, 1), dtype);
            const std::vector<std::int32_t> ids = {10, 0, 3, 3};
            std::vector<float> expected;
            for (const std::int32_t id : ids) {
                expected.insert(expected.end(), table.begin() + id * n, table.begin() + (id + 1) * n);
            }
            const Array y = ops::embedding(upload(table, {11, n}, dtype), upload_ints(ids));
            EXPECT_EQ(y.shape(), (Dims{4, n}));
            EXPECT_EQ(download(y), expected);
        }
    }
}

TEST(Embedding, TakesInt64IdsOfAnyShape) {
    const std::vector<std::int64_t> ids = {1, 0, 1, 2};
    const Array array = Array::empty(test_device(), {2, 2}, DType::int64);
    array.copy_from_host(ids.data());
    const Array y = ops::embedding(upload({1, 2, 3}, {3, 1}), array);
    EXPECT_EQ(y.shape(), (Dims{2, 2, 1}));
    EXPECT_EQ(download(y), (std::vector<float>{2, 1, 2, 3}));
}

TEST(Embedding, GivesZerosForIdsOutsideTheTable) {
    const Array y =
        ops::embedding(upload({1, 2, 3, 4}, {2, 2}), upload_ints({-1, 1, 2, INT32_MAX, INT32_MIN}));
    EXPECT_EQ(download(y), (std::vector<float>{0, 0, 3, 4, 0, 0, 0, 0, 0, 0}));
}

TEST(Embedding, HandlesEmptyAndRefusesTheRest) {
    EXPECT_EQ(ops::embedding(upload({1, 2}, {1, 2}), upload_ints({})).shape(), (Dims{0, 2}));
    EXPECT_THROW(ops::embedding(upload({1, 2}, {2}), upload_ints({0})), Error);
    EXPECT_THROW(ops::embedding(upload({1, 2}, {2, 1}), upload({0}, {1})), Error);
}

}  // namespace
