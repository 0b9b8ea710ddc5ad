#include "kernels/gemm/cublaslt_matmul.hpp"

#include <algorithm>
#include <vector>

#include "base/float_types.hpp"
#include "driver/cublaslt.hpp"
#include "kernels/host.hpp"

namespace gpk::kernels {

namespace {

template <class T>
struct View {
    T* data;
    std::int64_t row, column;  // strides

    View(const LibraryMatrix& matrix, std::int64_t batch)
        : data(reinterpret_cast<T*>(matrix.data) + batch * matrix.batch_stride),
          row(matrix.transposed ? 1 : matrix.leading),
          column(matrix.transposed ? matrix.leading : 1) {}
    T& at(std::int64_t i, std::int64_t j) const { return data[i * row + j * column]; }
};

// Sums in float32, as the library's.
template <class T>
void multiply(const LibraryProduct& p) {
    parallel_for(p.batches * p.m, 1 + 32768 / (p.n * p.k + 1), [&](std::int64_t begin, std::int64_t end) {
        std::vector<float> sums(static_cast<std::size_t>(p.n));
        for (std::int64_t row = begin; row < end; ++row) {
            const std::int64_t batch = row / p.m, i = row % p.m;
            const View<const T> a(p.a, batch), b(p.b, batch);
            const View<T> c(p.c, batch);
            std::fill(sums.begin(), sums.end(), 0.0f);
            for (std::int64_t l = 0; l < p.k; ++l) {
                const float factor = static_cast<float>(a.at(i, l));
                for (std::int64_t j = 0; j < p.n; ++j)
                    sums[static_cast<std::size_t>(j)] += factor * static_cast<float>(b.at(l, j));
            }
            for (std::int64_t j = 0; j < p.n; ++j) c.at(i, j) = T(sums[static_cast<std::size_t>(j)]);
        }
    });
}

void cublaslt_matmul_host(const LibraryProduct& p) {
    switch (p.dtype) {
        case DType::float16: return multiply<float16>(p);
        case DType::bfloat16: return multiply<bfloat16>(p);
        default: return multiply<float>(p);
    }
}

}  // namespace

const Kernel& cublaslt_matmul() {
    static const Kernel kernel(KernelDef{.name = "cublaslt_matmul",
                                         .image = &kCublasLtImage,
                                         .twin = twin<LibraryProduct, cublaslt_matmul_host>});
    return kernel;
}

}  // namespace gpk::kernels
