#include "ops/matmul_cublaslt.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "driver/libraries.hpp"
#include "ops/matmul_variants.hpp"
#include "values.hpp"

namespace gpk {
namespace {

using values::download;
using values::random_array;
using values::relative_error;

// A stack of matrices, as a view: transposed, with gaps between rows, with every second column, or turned
// round.
enum class Form { plain, transposed, padded, stepped, reversed };

Array matrices(const Dims& batch, std::int64_t rows, std::int64_t columns, DType dtype, Form form,
               unsigned seed) {
    const auto shaped = [&](std::int64_t r, std::int64_t c) {
        Dims shape = batch;
        shape.push_back(r), shape.push_back(c);
        return random_array(shape, dtype, seed);
    };
    const int last = batch.size() + 1;
    switch (form) {
        case Form::plain: break;
        case Form::transposed: {
            Dims axes;
            for (int i = 0; i < batch.size(); ++i) axes.push_back(i);
            axes.push_back(last), axes.push_back(last - 1);
            return shaped(columns, rows).transpose(axes);
        }
        case Form::padded: return shaped(rows, columns + 8).slice(last, 0, 1, columns);
        case Form::stepped: return shaped(rows, 2 * columns).slice(last, 0, 2, columns);
        case Form::reversed: return shaped(rows, columns).slice(last - 1, rows - 1, -1, rows);
    }
    return shaped(rows, columns);
}

// c[i, j] of one matrix of the batch, both given as (rows, columns) views.
std::vector<double> exact(const Array& a, const Array& b) {
    const std::int64_t m = a.shape()[0], k = a.shape()[1], n = b.shape()[1];
    const auto x = download(a), y = download(b);
    std::vector<double> c(static_cast<std::size_t>(m * n));
    for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t l = 0; l < k; ++l) {
            for (std::int64_t j = 0; j < n; ++j) {
                c[static_cast<std::size_t>(i * n + j)] +=
                    x[static_cast<std::size_t>(i * k + l)] * y[static_cast<std::size_t>(l * n + j)];
            }
        }
    }
    return c;
}

bool is_missing() { return test_device().is_cuda() && find_library(Library::cublaslt).handle == nullptr; }

float at(const LibraryMatrix& matrix, std::int64_t row, std::int64_t column, std::int64_t batch) {
    const std::int64_t index =
        batch * matrix.batch_stride +
        (matrix.transposed ? column * matrix.leading + row : row * matrix.leading + column);
    return reinterpret_cast<const float*>(matrix.data)[index];
}

// What the library is told names the elements of the operands: read back on the host, where the simulated
// device keeps them.
TEST(LibraryProduct, NamesTheElements) {
    if (test_device().is_cuda()) GTEST_SKIP() << "reads the memory of the simulated device";
    constexpr std::int64_t m = 3, n = 5, k = 4;
    int fitted = 0;
    for (const Form of_a : {Form::plain, Form::transposed, Form::padded, Form::stepped, Form::reversed}) {
        for (const Form of_b : {Form::plain, Form::transposed, Form::padded, Form::stepped, Form::reversed}) {
            const Array a = matrices({2}, m, k, DType::float32, of_a, 1);
            const Array b = matrices({2}, k, n, DType::float32, of_b, 2);
            const Array c = Array::empty(test_device(), {2, m, n}, DType::float32);
            const auto product =
                ops::library_product(ops::problem_of(a, b, c), DType::float32, ops::MatmulPrecision::tf32);
            const auto known = [](Form form) { return form != Form::stepped && form != Form::reversed; };
            ASSERT_EQ(product.has_value(), known(of_a) && known(of_b));
            if (!product) continue;
            ++fitted;
            EXPECT_TRUE(product->tf32);
            EXPECT_EQ(product->batches, 2);
            EXPECT_EQ(product->c.leading, n);
            EXPECT_EQ(product->c.batch_stride, m * n);
            for (std::int64_t batch = 0; batch < 2; ++batch) {
                const auto x = download(a.select(0, batch)), y = download(b.select(0, batch));
                for (std::int64_t i = 0; i < m * k; ++i)
                    ASSERT_EQ(at(product->a, i / k, i % k, batch), x[static_cast<std::size_t>(i)]);
                for (std::int64_t i = 0; i < k * n; ++i)
                    ASSERT_EQ(at(product->b, i / n, i % n, batch), y[static_cast<std::size_t>(i)]);
            }
        }
    }
    EXPECT_EQ(fitted, 9);
}

TEST(LibraryProduct, OfSingleRowsAndColumns) {
    const Array row = random_array({1, 6}, DType::float32, 1), column = row.transpose({1, 0});
    const Array c = Array::empty(test_device(), {1, 1}, DType::float32);
    const auto product =
        ops::library_product(ops::problem_of(row, column, c), DType::float32, ops::MatmulPrecision::exact);
    ASSERT_TRUE(product.has_value());
    EXPECT_FALSE(product->tf32);
    EXPECT_GE(product->a.leading, product->a.transposed ? 1 : 6);
    EXPECT_GE(product->b.leading, product->b.transposed ? 6 : 1);
    // A column whose elements lie apart is the transpose of nothing the library knows by rows.
    const Array apart = random_array({6, 4}, DType::float32, 2).slice(1, 1, 1, 1);
    const auto strided =
        ops::library_product(ops::problem_of(row, apart, c), DType::float32, ops::MatmulPrecision::exact);
    ASSERT_TRUE(strided.has_value());
    EXPECT_EQ(strided->b.leading, 4);
}

TEST(MatmulCublaslt, AgreesWithFloat64) {
    if (is_missing()) GTEST_SKIP() << "needs cuBLASLt";
    struct Case {
        DType dtype;
        double bound;
    };
    for (const auto& [dtype, bound] :
         {Case{DType::float32, 2e-6}, {DType::float16, 5e-4}, {DType::bfloat16, 4e-3}}) {
        for (const Form form : {Form::plain, Form::transposed, Form::padded, Form::stepped, Form::reversed}) {
            // Batches of which a has two dimensions and b one, and sizes that are no multiples of anything.
            const Array a = matrices({2, 3}, 17, 40, dtype, form, 1),
                        b = matrices({3}, 40, 23, dtype, form, 2);
            const Array c = ops::matmul(a, b, nullptr, ops::MatmulBackend::cublaslt);
            ASSERT_EQ(c.shape(), (Dims{2, 3, 17, 23}));
            for (std::int64_t i = 0; i < 6; ++i) {
                const auto expected = exact(a.select(0, i / 3).select(0, i % 3), b.select(0, i % 3));
                EXPECT_LE(relative_error(download(c.select(0, i / 3).select(0, i % 3)), expected), bound)
                    << name(dtype) << ", form " << static_cast<int>(form) << ", batch " << i;
            }
        }
    }
}

TEST(MatmulCublaslt, WritesOutInAnyForm) {
    if (is_missing()) GTEST_SKIP() << "needs cuBLASLt";
    const Array a = random_array({9, 33}, DType::float32, 1), b = random_array({33, 12}, DType::float32, 2);
    for (const Form form : {Form::plain, Form::transposed, Form::padded, Form::stepped, Form::reversed}) {
        const Array out = matrices({}, 9, 12, DType::float32, form, 3);
        ops::matmul(a, b, &out, ops::MatmulBackend::cublaslt);
        EXPECT_LE(relative_error(download(out), exact(a, b)), 2e-6) << static_cast<int>(form);
    }
}

TEST(MatmulCublaslt, VectorsAndEmptyOperands) {
    if (is_missing()) GTEST_SKIP() << "needs cuBLASLt";
    const auto multiply = [](const Array& x, const Array& y) {
        return ops::matmul(x, y, nullptr, ops::MatmulBackend::cublaslt);
    };
    const Array a = random_array({40, 30}, DType::float32, 1), x = random_array({30}, DType::float32, 2);
    EXPECT_LE(relative_error(download(multiply(a, x)), exact(a, x.expand_dims(1))), 2e-6);
    EXPECT_EQ(multiply(a.slice(0, 0, 1, 0), a.transpose({1, 0})).shape(), (Dims{0, 40}));
    EXPECT_EQ(download(multiply(a.slice(1, 0, 1, 0), x.slice(0, 0, 1, 0))), std::vector<double>(40, 0.0));
}

TEST(MatmulCublaslt, RefusesOtherDtypes) {
    for (const DType dtype : {DType::int8, DType::float64, DType::bool_}) {
        const Array a = random_array({4, 4}, dtype, 1);
        try {
            ops::matmul(a, a, nullptr, ops::MatmulBackend::cublaslt);
            ADD_FAILURE() << name(dtype);
        } catch (const Error& refused) {
            EXPECT_EQ(refused.kind(), ErrorKind::type);
            EXPECT_NE(std::string(refused.what()).find("cublaslt"), std::string::npos);
        }
    }
}

}  // namespace
}  // namespace gpk
