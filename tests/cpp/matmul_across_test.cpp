// tf32 with an operand across k, which the kernels of SM 90 take through registers; and residuals of tiles
// that overlap.
#include <gtest/gtest.h>

#include "matmul_values.hpp"
#include "ops/elementwise.hpp"
#include "ops/matmul.hpp"
#include "ops/matmul_variants.hpp"

namespace {

using namespace gpk;
using namespace matmul_values;
using values::download;
using values::random_array;
using values::relative_error;

constexpr double kTf32Error = 3.5e-4;  // rounded to nearest; cut off it would be 7.7e-4

struct Tf32Across : testing::Test {
    void SetUp() override { ops::set_matmul_precision(ops::MatmulPrecision::tf32); }
    void TearDown() override { ops::set_matmul_precision(ops::MatmulPrecision::exact); }
};

// b row-major, so that the product is turned and c lies along the kernel's rows: whole tiles, ragged ones,
// an odd width, which c has as its pitch.
TEST_F(Tf32Across, EveryTileAgreesTurned) {
    constexpr Size kSizes[] = {{256, 256, 64}, {300, 132, 96}, {130, 77, 36}, {5, 260, 1000}, {1, 4, 4}};
    for (const Size& size : kSizes) {
        const Array a = matrix(size.m, size.k, DType::float32, false, 0, 1),
                    b = matrix(size.k, size.n, DType::float32, false, (4 - size.n % 4) % 4, 2);
        const auto expected = product(download(a), download(b), size.m, size.n, size.k, DType::float32);
        for (const ops::GemmVariant& variant : ops::gemm_variants()) {
            if (variant.wgmma == nullptr || !variant.tf32) continue;
            const auto c = ops::matmul_with(variant, a, b, true);
            if (variant.a == ops::GemmLayout::along_k) {
                EXPECT_FALSE(c.has_value()) << variant.kernel().name();
                continue;
            }
            if (!c && test_device().info().sm != 0 && test_device().info().sm != 90) continue;
            ASSERT_TRUE(c.has_value()) << variant.kernel().name();
            EXPECT_LE(relative_error(download(*c), expected), kTf32Error)
                << variant.kernel().name() << ": " << size.m << " x " << size.n << " x " << size.k;
            if (test_device().info().sm == 0) break;  // one twin
        }
    }
}

// Through the op: every pair of layouts, into memory of a caller whose rows are apart, or are columns.
TEST_F(Tf32Across, EveryLayout) {
    const std::int64_t m = 260, n = 200, k = 132;
    for (const bool a_transposed : {false, true}) {
        for (const bool b_transposed : {false, true}) {
            const Array a = matrix(m, k, DType::float32, a_transposed, 4, 3),
                        b = matrix(k, n, DType::float32, b_transposed, 8, 4);
            const auto expected = product(download(a), download(b), m, n, k, DType::float32);
            for (const bool out_transposed : {false, true}) {
                for (const std::int64_t pad : {0, 1, 2}) {
                    Array out = matrix(m, n, DType::float32, out_transposed, pad, 5);
                    ops::matmul(a, b, &out);
                    EXPECT_LE(relative_error(download(out), expected), kTf32Error)
                        << a_transposed << b_transposed << out_transposed << pad;
                }
            }
        }
    }
}

TEST_F(Tf32Across, Batches) {
    const std::int64_t m = 140, n = 72, k = 40;
    const Array a = random_array({3, m, k}, DType::float32, 6),
                b = random_array({2, 1, k, n}, DType::float32, 7);
    const Array c = ops::matmul(a, b);
    ASSERT_EQ(c.shape(), (Dims{2, 3, m, n}));
    for (std::int64_t i = 0; i < 6; ++i) {
        const auto expected = product(download(a.select(0, i % 3)), download(b.select(0, i / 3).select(0, 0)),
                                      m, n, k, DType::float32);
        EXPECT_LE(relative_error(download(c.select(0, i / 3).select(0, i % 3)), expected), kTf32Error) << i;
    }
}

}  // namespace
