#include "ops/matmul_cublaslt.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "kernels/gemm/cublaslt_matmul.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/matmul_variants.hpp"

namespace gpk::ops {

namespace {

constexpr std::int64_t kWorkspaceBytes = 32 << 20;  // what the library's guide asks for on Hopper

std::optional<LibraryMatrix> library_matrix(const void* data, std::int64_t rows, std::int64_t columns,
                                            std::int64_t row_stride, std::int64_t column_stride,
                                            std::int64_t batch_stride) {
    LibraryMatrix matrix{.data = reinterpret_cast<std::uint64_t>(data), .batch_stride = batch_stride};
    // A dimension of one element has no stride to speak of.
    if ((columns == 1 || column_stride == 1) && (rows == 1 || row_stride >= columns)) {
        matrix.leading = rows == 1 ? columns : row_stride;
        return matrix;
    }
    if ((rows == 1 || row_stride == 1) && (columns == 1 || column_stride >= rows)) {
        matrix.leading = columns == 1 ? rows : column_stride;
        matrix.transposed = true;
        return matrix;
    }
    return std::nullopt;
}

std::int64_t inner_batches(const GemmProblem& p) {
    return p.batch_rank > 0 ? p.batch_extents[p.batch_rank - 1] : 1;
}

void require_cublaslt_dtype(DType dtype) {
    if (dtype == DType::float16 || dtype == DType::bfloat16 || dtype == DType::float32) return;
    throw error(ErrorKind::type, {.call = "matmul",
                                  .argument = "backend",
                                  .expected = "float16, bfloat16 or float32 for 'cublaslt'",
                                  .got = std::string(name(dtype)),
                                  .fix = "leave backend out"});
}

}  // namespace

std::optional<LibraryProduct> library_product(const GemmProblem& p, DType dtype, MatmulPrecision precision) {
    const int last = p.batch_rank - 1;
    const auto stride = [&](const std::int64_t* strides) { return last >= 0 ? strides[last] : 0; };
    const auto a = library_matrix(p.a, p.m, p.k, p.a_row, p.a_col, stride(p.a_batch));
    const auto b = library_matrix(p.b, p.k, p.n, p.b_row, p.b_col, stride(p.b_batch));
    const auto c = library_matrix(p.c, p.m, p.n, p.c_row, p.c_col, stride(p.c_batch));
    if (!a || !b || !c || c->transposed) return std::nullopt;
    return LibraryProduct{.dtype = dtype,
                          .tf32 = dtype == DType::float32 && precision == MatmulPrecision::tf32,
                          .m = p.m,
                          .n = p.n,
                          .k = p.k,
                          .batches = inner_batches(p),
                          .a = *a,
                          .b = *b,
                          .c = *c};
}

void matmul_cublaslt(const Array& a, const Array& b, const Array& c, MatmulPrecision precision,
                     const Cost& cost) {
    require_cublaslt_dtype(c.dtype());
    if (a.shape().back() == 0) return assign(c, Scalar(false));  // sums of nothing
    const GemmProblem p = problem_of(a, b, c);
    auto product = library_product(p, c.dtype(), precision);
    if (!product) {
        const Array target = Array::empty(c.device(), c.shape(), c.dtype());
        matmul_cublaslt(contiguous(a), contiguous(b), target, precision, cost);
        return assign(c, target);
    }
    const Array workspace = Array::empty(c.device(), {kWorkspaceBytes}, DType::uint8);
    product->workspace = reinterpret_cast<std::uint64_t>(workspace.as<void>());
    product->workspace_bytes = kWorkspaceBytes;
    const std::int64_t launches = p.batches / product->batches;
    const Cost each{.flops = cost.flops / static_cast<double>(launches),
                    .bytes = cost.bytes / static_cast<double>(launches)};
    const std::uint64_t size = itemsize(c.dtype());
    const LaunchConfig one{.grid = {}, .block = {}};  // the library has its own
    with_storages({&a, &b}, {&c, &workspace}, [&](Stream& stream) {
        for (std::int64_t i = 0; i < launches; ++i) {
            const BatchOffsets offsets = batch_offsets(p, i * product->batches);
            LibraryProduct part = *product;
            part.a.data += static_cast<std::uint64_t>(offsets.a) * size;
            part.b.data += static_cast<std::uint64_t>(offsets.b) * size;
            part.c.data += static_cast<std::uint64_t>(offsets.c) * size;
            stream.device().launcher().launch(stream, kernels::cublaslt_matmul(), one, part, each);
        }
    });
}

}  // namespace gpk::ops
