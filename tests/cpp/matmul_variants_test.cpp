// Every kernel of products by itself, and which of them the chooser takes.
#include "ops/matmul_variants.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "matmul_values.hpp"
#include "ops/creation.hpp"
#include "ops/elementwise.hpp"
#include "ops/reduce.hpp"

namespace {

using namespace gpk;
using namespace matmul_values;
using values::download;
using values::random_array;
using values::relative_error;

// Variants that read the same operands and round alike: these, and what is expected, are made once for all.
struct Group {
    std::string name;
    std::vector<const ops::GemmVariant*> variants;
    const ops::GemmVariant& first() const { return *variants.front(); }
    DType result() const { return first().result.value_or(first().dtype); }
};

const std::vector<Group>& groups() {
    static const std::vector<Group> all = [] {
        std::vector<Group> found;
        constexpr const char* kLayouts[] = {"any", "along_k", "across"};
        for (const ops::GemmVariant& variant : ops::gemm_variants()) {
            if (variant.block_scales) continue;  // in scaled_matmul_test
            const std::string name =
                str(gpk::name(variant.dtype), "_", gpk::name(variant.result.value_or(variant.dtype)), "_",
                    kLayouts[static_cast<int>(variant.a)], "_", kLayouts[static_cast<int>(variant.b)],
                    variant.wgmma != nullptr ? "_wgmma" : "", variant.tf32 ? "_tf32" : "");
            const auto same = [&](const Group& group) { return group.name == name; };
            const auto at = std::find_if(found.begin(), found.end(), same);
            if (at == found.end()) {
                found.push_back({name, {&variant}});
            } else {
                at->variants.push_back(&variant);
            }
        }
        return found;
    }();
    return all;
}

class Variants : public testing::TestWithParam<int> {
   protected:
    const Group& group = groups()[static_cast<std::size_t>(GetParam())];
};

std::string group_name(const testing::TestParamInfo<int>& parameter) {
    return groups()[static_cast<std::size_t>(parameter.param)].name;
}

// Kernels for one architecture run there and, as twins, on the simulated device.
bool runs_here(const ops::GemmVariant& variant) {
    return variant.wgmma == nullptr || test_device().info().sm == 0 || test_device().info().sm == 90;
}

double bound_of(const Group& group) {
    double bound = is_float8(group.first().dtype) ? 2.5e-3 : 0;  // the tensor cores' sums of float8
    for (const Bound& entry : kBounds) {
        if (entry.dtype == group.result()) bound += group.first().tf32 ? entry.tf32 : entry.exact;
    }
    return bound;
}

// Every kernel on every layout and on odd sizes, whether the chooser would take it there or not.
TEST_P(Variants, AgreeWithFloat64) {
    constexpr Size kSizes[] = {
        {130, 72, 328}, {13, 100, 192}, {9, 24, 1088},  {129, 127, 128}, {1, 1, 1},      {1, 64, 64},
        {3, 17, 63},    {1, 129, 1000}, {8, 127, 65},   {2, 65, 3},      {4, 1000, 129}, {17, 63, 64},
        {64, 65, 17},   {65, 64, 127},  {127, 129, 63}, {128, 264, 65},  {1, 1000, 129}, {1, 3, 17},
        {7, 5, 8},      {5, 40, 128},   {16, 1000, 65}};
    // The tiles of gemm_wgmma have one twin: simulated, all but the first get these of the sizes.
    constexpr std::size_t kOfTwins = 4;
    const double bound = bound_of(group);
    std::vector<int> ran(group.variants.size());
    for (const Size& size : kSizes) {
        const bool of_all = &size - kSizes < static_cast<std::ptrdiff_t>(kOfTwins) ||
                            group.first().wgmma == nullptr || test_device().is_cuda();
        for (const bool a_transposed : {false, true}) {
            for (const bool b_transposed : {false, true}) {
                const bool suits = (group.first().a == ops::GemmLayout::along_k) != a_transposed &&
                                   (group.first().b == ops::GemmLayout::along_k) == b_transposed;
                if (group.first().wgmma != nullptr && !suits) continue;
                for (const bool padded : {false, true}) {
                    // Padded to whole 16-byte units, so that the kernels that want them get ragged extents.
                    const auto pad = [&](std::int64_t extent) {
                        return padded ? (16 - extent % 16) % 16 + 16 : 0;
                    };
                    const Array a = matrix(size.m, size.k, group.first().dtype, a_transposed,
                                           pad(a_transposed ? size.m : size.k), 1);
                    const Array b = matrix(size.k, size.n, group.first().dtype, b_transposed,
                                           pad(b_transposed ? size.k : size.n), 2);
                    std::vector<double> expected;
                    for (std::size_t i = 0; i < (of_all ? group.variants.size() : 1); ++i) {
                        const ops::GemmVariant& variant = *group.variants[i];
                        const auto c = ops::matmul_with(variant, a, b);
                        if (!c) continue;
                        ++ran[i];
                        ASSERT_EQ(c->shape(), (Dims{size.m, size.n}));
                        if (expected.empty())
                            expected =
                                product(download(a), download(b), size.m, size.n, size.k, group.result());
                        const auto check = [&](const Array& made, const char* how) {
                            EXPECT_LE(relative_error(download(made), expected), bound)
                                << variant.kernel().name() << how << ": " << size.m << " x " << size.n
                                << " x " << size.k << (a_transposed ? ", a transposed" : "")
                                << (b_transposed ? ", b transposed" : "") << (padded ? ", padded" : "");
                        };
                        check(*c, "");
                        if (variant.wgmma == nullptr) continue;
                        if (const auto turned = ops::matmul_with(variant, a, b, true))
                            check(*turned, " turned");
                    }
                }
            }
        }
    }
    if (!runs_here(group.first())) GTEST_SKIP() << "needs another GPU";
    for (std::size_t i = 0; i < ran.size(); ++i) EXPECT_GE(ran[i], 3) << group.variants[i]->kernel().name();
}

// Batches: one operand broadcast, the other with a batch stride.
TEST_P(Variants, Batches) {
    if (!runs_here(group.first())) GTEST_SKIP() << "needs another GPU";
    const std::int64_t n = 48, k = 320;
    const bool a_transposed = group.first().a == ops::GemmLayout::across,
               b_transposed = group.first().b == ops::GemmLayout::along_k;
    for (const std::int64_t m : {1, 2, 4, 8, 16, 40}) {
        std::vector<const ops::GemmVariant*> taken;
        for (const ops::GemmVariant* variant : group.variants) {
            if (!ops::is_bulk(variant->gemv) && (variant->max_m == 0 ? 40 : variant->max_m) == m)
                taken.push_back(variant);  // those in bulk make one product
        }
        if (taken.empty()) continue;
        const DType dtype = group.first().dtype;
        const Array a = a_transposed ? random_array({2, 3, k, m}, dtype, 1).transpose({0, 1, 3, 2})
                                     : random_array({2, 3, m, k}, dtype, 1);
        const Array b = b_transposed ? random_array({3, n, k}, dtype, 2).transpose({0, 2, 1})
                                     : random_array({3, k, n}, dtype, 2);
        std::vector<std::vector<double>> expected;
        for (std::int64_t i = 0; i < 6; ++i) {
            expected.push_back(product(download(a.select(0, i / 3).select(0, i % 3)),
                                       download(b.select(0, i % 3)), m, n, k, group.result()));
        }
        for (const ops::GemmVariant* variant : taken) {
            const auto c = ops::matmul_with(*variant, a, b);
            ASSERT_TRUE(c.has_value()) << variant->kernel().name();
            ASSERT_EQ(c->shape(), (Dims{2, 3, m, n}));
            for (std::int64_t i = 0; i < 6; ++i) {
                EXPECT_LE(relative_error(download(c->select(0, i / 3).select(0, i % 3)),
                                         expected[static_cast<std::size_t>(i)]),
                          std::max(bound_of(group), 4e-3))
                    << variant->kernel().name() << ", " << i;
            }
        }
    }
}

// Copies to shared memory end in any order: here beside others that crowd them, of operands that lie in
// memory and not in a cache. Two warpgroups that took the stages of an odd ring by turns could take what was
// not there yet.
TEST_P(Variants, MakeTheSameBitsHoweverTheirCopiesArrive) {
    if (!runs_here(group.first())) GTEST_SKIP() << "needs another GPU";
    Device& device = test_device();
    const bool real = device.is_cuda();
    const Size size = real ? Size{113, 4608, 3584} : Size{20, 104, 320};
    const int rounds = real ? 500 : 2;
    const std::int64_t copies = real ? 8 : 2, crowd = real ? std::int64_t{1} << 26 : 256;
    const DType dtype = group.first().dtype;
    const bool a_transposed = group.first().a == ops::GemmLayout::across,
               b_transposed = group.first().b == ops::GemmLayout::along_k;
    const Array one =
        b_transposed ? random_array({size.n, size.k}, dtype, 2) : random_array({size.k, size.n}, dtype, 2);
    const Array b = Array::empty(device, {copies, one.shape()[0], one.shape()[1]}, dtype);
    ops::assign(b, one);
    const Array from = ops::full(device, {crowd}, 1, DType::uint8),
                to = Array::empty(device, {crowd}, DType::uint8);
    const auto beside = Stream::create(device);
    for (const ops::GemmVariant* variant : group.variants) {
        const std::int64_t m = variant->max_m == 0 ? size.m : variant->max_m;
        const Array a = matrix(m, size.k, dtype, a_transposed, 0, 1);
        const Array differ = ops::full(device, {}, false, DType::bool_);
        std::optional<Array> first;
        for (int round = 0; round < rounds; ++round) {
            {
                const StreamScope scope(beside);
                ops::assign(to, from);
            }
            const Array of = b.select(0, round % copies);
            const auto c = ops::matmul_with(*variant, a, b_transposed ? of.transpose({1, 0}) : of);
            if (!c) break;  // it wants another layout
            if (!first) first = c;
            const Array other = ops::binary(BinaryOp::not_equal, *c, *first);
            ops::binary(BinaryOp::bitwise_or, differ, ops::reduce(ReduceOp::any, other, {0, 1}, false),
                        &differ);
        }
        EXPECT_EQ(download(differ)[0], 0) << variant->kernel().name();
    }
}

INSTANTIATE_TEST_SUITE_P(Matmul, Variants, testing::Range(0, static_cast<int>(groups().size())), group_name);

// A product of n x k weights along k, on an H200.
ops::GemmChoice choice(const ops::GemmTypes& types, std::int64_t m, std::int64_t n, std::int64_t k) {
    GemmProblem p = {};
    p.a = reinterpret_cast<void*>(256), p.b = reinterpret_cast<void*>(512);
    p.c = reinterpret_cast<void*>(768);
    p.m = m, p.n = n, p.k = k, p.batches = 1;
    p.a_row = p.b_col = k, p.a_col = p.b_row = p.c_col = 1, p.c_row = n;
    return ops::choose_gemm(p, types, {132, 90});
}
const ops::GemmVariant& chosen(const ops::GemmTypes& types, std::int64_t m, std::int64_t n, std::int64_t k) {
    return *choice(types, m, n, k).variant;
}

constexpr auto kExact = ops::MatmulPrecision::exact, kTf32 = ops::MatmulPrecision::tf32;
constexpr ops::GemmTypes kBfloat16 = {DType::bfloat16, DType::bfloat16, kExact};

// What was fitted at small m once won every product with a large k, at 0.4 of its rate; and 160 rows once
// took three tiles of 64.
TEST(MatmulVariants, TilesSuitTheProduct) {
    // How many rows of c a tile makes, or columns where the product is turned.
    const auto along_m = [](std::int64_t m, std::int64_t n, std::int64_t k) {
        const ops::GemmChoice found = choice(kBfloat16, m, n, k);
        const WgmmaTile* tile = found.variant->wgmma;
        return tile == nullptr ? 0 : found.problem.m == m ? tile->rows : tile->columns;
    };
    if (along_m(4096, 4096, 4096) == 0) GTEST_SKIP() << "built without SM 90";
    for (const std::int64_t k : {4096, 14336, 18944}) {
        EXPECT_GE(along_m(2048, 4096, k), 128) << k;
        EXPECT_GE(along_m(512, 3584, k), 112) << k;
        EXPECT_LE(along_m(64, 4096, k), 96) << k;
        EXPECT_EQ((160 + along_m(160, 14336, k) - 1) / along_m(160, 14336, k) * along_m(160, 14336, k), 160)
            << k;
    }
}

TEST(MatmulVariants, EveryTypeOfTheTensorCoresGetsThem) {
    if (chosen(kBfloat16, 4096, 4096, 4096).wgmma == nullptr) GTEST_SKIP() << "built without SM 90";
    for (const ops::GemmTypes& types : {ops::GemmTypes{DType::float16, DType::float16, kExact},
                                        {DType::bfloat16, DType::float32, kExact},
                                        {DType::float32, DType::float32, kTf32},
                                        {DType::int8, DType::int32, kExact},
                                        {DType::float8_e4m3, DType::bfloat16, kExact},
                                        {DType::float8_e5m2, DType::float32, kExact}}) {
        EXPECT_NE(chosen(types, 4096, 4096, 4096).wgmma, nullptr) << name(types.operands);
    }
    EXPECT_EQ(chosen({DType::float32, DType::float32, kExact}, 4096, 4096, 4096).wgmma, nullptr);
    EXPECT_EQ(chosen({DType::int8, DType::int8, kExact}, 4096, 4096, 4096).wgmma, nullptr);  // it wraps
}

// What was found for one product is not taken for another that wants something else: memory that is aligned
// otherwise, another epilogue, type or device; and is found again as it was.
TEST(MatmulVariants, ChoicesAreFoundAgain) {
    const auto problem = [](std::uintptr_t a, std::int64_t m) {
        GemmProblem p = {};
        p.a = reinterpret_cast<void*>(a), p.b = reinterpret_cast<void*>(512);
        p.c = reinterpret_cast<void*>(768);
        p.m = m, p.n = 4096, p.k = 1024, p.batches = 1;
        p.a_row = p.b_col = p.k, p.a_col = p.b_row = p.c_col = 1, p.c_row = p.n;
        return p;
    };
    const auto choose = [](const GemmProblem& p, int sm = 0) {
        return ops::choose_gemm(p, kBfloat16, {132, sm});
    };
    std::vector<ops::GemmChoice> first;
    for (int again = 0; again < 2; ++again) {
        for (std::int64_t m = 1; m <= 300; ++m) {  // more than are kept
            const ops::GemmChoice found = choose(problem(256, m));
            ASSERT_NE(found.variant, nullptr);
            const bool turned = found.problem.m != m || found.problem.a != problem(256, m).a;
            EXPECT_EQ(found.problem.m, turned ? 4096 : m);
            if (again == 0) {
                first.push_back(found);
            } else {
                EXPECT_EQ(found.variant, first[static_cast<std::size_t>(m - 1)].variant) << m;
                EXPECT_EQ(found.problem.m, first[static_cast<std::size_t>(m - 1)].problem.m) << m;
            }
        }
    }
    EXPECT_NE(choose(problem(256, 300)).variant->wgmma, nullptr);
    EXPECT_EQ(choose(problem(258, 300)).variant->wgmma, nullptr);
    EXPECT_EQ(choose(problem(256, 300), 80).variant->wgmma, nullptr);
    // The problem that comes back is the caller's, not the one that was looked for.
    const ops::GemmChoice other = choose(problem(1024, 300));
    const void* a = other.problem.m == 300 ? other.problem.a : other.problem.b;
    EXPECT_EQ(a, reinterpret_cast<void*>(1024));
    GemmProblem with_bias = problem(256, 300);
    with_bias.epilogue.bias = reinterpret_cast<void*>(1280);
    const ops::GemmChoice biased = choose(with_bias);
    EXPECT_EQ(biased.problem.m, 300);  // a bias is along n: never turned
    EXPECT_EQ(biased.problem.epilogue.bias, with_bias.epilogue.bias);
}

// To nearest: cut off instead, the error would be 7.7e-4.
TEST(MatmulVariants, Tf32IsRounded) {
    const Array a = random_array({192, 520}, DType::float32, 1),
                b = random_array({264, 520}, DType::float32, 2);
    const auto expected = product(download(a), download(b.transpose({1, 0})), 192, 264, 520, DType::float32);
    for (const ops::GemmVariant& variant : ops::gemm_variants()) {
        if (!variant.tf32) continue;
        if (const auto c = ops::matmul_with(variant, a, b.transpose({1, 0}))) {
            EXPECT_LE(relative_error(download(*c), expected), 3.5e-4) << variant.kernel().name();
        }
    }
}

}  // namespace
