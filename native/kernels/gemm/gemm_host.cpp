#include "kernels/gemm/gemm_host.hpp"

#include <algorithm>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "kernels/gemm/activate.hpp"
#include "kernels/gemm/micro.hpp"
#include "kernels/host.hpp"
#include "kernels/widen.hpp"

namespace gpk::kernels {

namespace {

// The blocking of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008),
// sized for 1 MiB of L2: a block of c, in the type of the sums, and what of a and b goes into it.
constexpr std::int64_t kMaxRows = 192, kMaxColumns = 256, kMaxDepth = 256;  // multiples of every micro tile

template <class C>
struct Buffers {
    struct Free {
        void operator()(C* pointer) const { ::operator delete[](pointer, std::align_val_t{64}); }
    };
    static std::unique_ptr<C[], Free> make(std::int64_t count) {
        return std::unique_ptr<C[], Free>(static_cast<C*>(
            ::operator new[](static_cast<std::size_t>(count) * sizeof(C), std::align_val_t{64})));
    }
    std::unique_ptr<C[], Free> a = make(kMaxRows * kMaxDepth);
    std::unique_ptr<C[], Free> b = make(kMaxColumns * kMaxDepth);
    std::unique_ptr<C[], Free> c = make(kMaxRows * kMaxColumns);
};

// count elements in the type of the sums.
template <class T, class C>
void load_run(const T* from, std::int64_t step, std::int64_t count, C* to) {
    if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) {
        if (step == 1) return widen(from, to, count);
    }
    for (std::int64_t i = 0; i < count; ++i) to[i] = MultiplyAdd<T>::load(from[i * step]);
}

// Panels of `width` lines, each depth x width; missing lines are zeros.
template <class T, class C>
void pack(C* to, int width, std::int64_t lines, std::int64_t depth, const T* from, std::int64_t line_stride,
          std::int64_t k_stride) {
    C run[kMaxDepth];
    for (std::int64_t first = 0; first < lines; first += width, to += width * depth) {
        const int count = static_cast<int>(std::min<std::int64_t>(width, lines - first));
        const T* panel = from + first * line_stride;
        if (line_stride == 1) {
            for (std::int64_t l = 0; l < depth; ++l) load_run(panel + l * k_stride, 1, count, to + l * width);
        } else {
            for (int i = 0; i < count; ++i) {
                load_run(panel + i * line_stride, k_stride, depth, run);
                for (std::int64_t l = 0; l < depth; ++l) to[l * width + i] = run[l];
            }
        }
        if (count < width) {
            for (std::int64_t l = 0; l < depth; ++l)
                std::fill(to + l * width + count, to + (l + 1) * width, C(0));
        }
    }
}

// A sum of c[i, j], as it is stored.
template <class Out>
float finish(const GemmEpilogue& e, float sum, std::int64_t i, std::int64_t j) {
    const auto at = [](const void* from, std::int64_t index) {
        return convert<float>(static_cast<const Out*>(from)[index]);
    };
    sum *= e.scale;
    if (e.row_scale != nullptr) sum *= e.row_scale[i * e.row_scale_step];
    if (e.column_scale != nullptr) sum *= e.column_scale[j * e.column_scale_step];
    if (e.bias != nullptr) sum += at(e.bias, j);
    sum = activate(e.activation, sum);
    return e.residual == nullptr ? sum : sum + at(e.residual, i * e.residual_row + j * e.residual_col);
}

// total += scales * sums, for the block of k; then sums = 0.
void add_scaled(std::vector<float>& total, float* sums, const GemmBlockScales& s, std::int64_t block,
                std::int64_t i0, std::int64_t j0, std::int64_t rows, std::int64_t columns,
                std::int64_t wide) {
    for (std::int64_t i = 0; i < rows; ++i) {
        const float of_a = s.a[(i0 + i) * s.a_row + block * s.a_col];
        for (std::int64_t j = 0; j < columns; ++j) {
            const float scale = of_a * s.b[(j0 + j) / kGemmScaleBlock * s.b_row + block * s.b_col];
            total[static_cast<std::size_t>(i * wide + j)] += scale * sums[i * wide + j];
        }
    }
    std::fill(sums, sums + static_cast<std::int64_t>(total.size()), 0.0f);
}

template <class T, class Out, class C>
Out stored(C sum) {
    if constexpr (std::is_same_v<T, Out>) return MultiplyAdd<T>::store(sum);
    if constexpr (!std::is_same_v<T, Out>) return convert<Out>(sum);
}

// One block of c: rows x columns at c, from row i0 and column j0 on, over all of k.
template <class T, class Out>
void block(const GemmProblem& p, const T* a, const T* b, Out* c, std::int64_t i0, std::int64_t j0,
           std::int64_t rows, std::int64_t columns) {
    using M = MultiplyAdd<T>;
    using C = typename M::type;
    thread_local Buffers<C> buffers;
    const Micro<C>& tile = micro<C>();
    const std::int64_t wide = (columns + tile.columns - 1) / tile.columns * tile.columns;
    C* sums = buffers.c.get();
    std::fill(sums, sums + (rows + tile.rows - 1) / tile.rows * tile.rows * wide, C(0));
    std::vector<float> total;
    if (p.scales.a != nullptr)
        total.resize(static_cast<std::size_t>((rows + tile.rows - 1) / tile.rows * tile.rows * wide));
    // Sums of one block of k at a time where each has a scale.
    const std::int64_t step = p.scales.a != nullptr ? kGemmScaleBlock : kMaxDepth;
    for (std::int64_t k0 = 0; k0 < p.k; k0 += step) {
        const std::int64_t depth = std::min(step, p.k - k0);
        pack(buffers.a.get(), tile.rows, rows, depth, a + k0 * p.a_col, p.a_row, p.a_col);
        pack(buffers.b.get(), tile.columns, columns, depth, b + k0 * p.b_row, p.b_col, p.b_row);
        for (std::int64_t j = 0; j < columns; j += tile.columns) {
            for (std::int64_t i = 0; i < rows; i += tile.rows) {
                tile.run(depth, buffers.a.get() + i * depth, buffers.b.get() + j * depth, sums + i * wide + j,
                         wide);
            }
        }
        if constexpr (std::is_same_v<C, float>) {
            if (p.scales.a != nullptr)
                add_scaled(total, sums, p.scales, k0 / kGemmScaleBlock, i0, j0, rows, columns, wide);
        }
        if constexpr (std::is_same_v<T, bool>) {  // counted so far: kept at 0 or 1, a count cannot wrap
            for (std::int64_t i = 0; i < rows * wide; ++i) sums[i] = sums[i] != 0;
        }
    }
    if constexpr (std::is_same_v<C, float>) {
        if (p.scales.a != nullptr) std::copy(total.begin(), total.end(), sums);
        if (changes(p.epilogue)) {
            for (std::int64_t i = 0; i < rows; ++i) {
                for (std::int64_t j = 0; j < columns; ++j)
                    sums[i * wide + j] = finish<Out>(p.epilogue, sums[i * wide + j], i0 + i, j0 + j);
            }
        }
    }
    for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < columns; ++j)
            c[i * p.c_row + j * p.c_col] = stored<T, Out>(sums[i * wide + j]);
    }
}

}  // namespace

template <class T, class Out>
void gemm_host(const GemmProblem& p) {
    const Micro<typename MultiplyAdd<T>::type>& tile = micro<typename MultiplyAdd<T>::type>();
    std::int64_t rows = kMaxRows, columns = kMaxColumns;
    const auto blocks = [&](std::int64_t extent, std::int64_t size) { return (extent + size - 1) / size; };
    // Smaller blocks where there would be too few for the cores.
    const std::int64_t wanted = parallel_threads() == 1 ? 1 : 4 * parallel_threads();
    while (p.batches * blocks(p.m, rows) * blocks(p.n, columns) < wanted && (rows > 48 || columns > 64)) {
        if (std::min(rows, p.m) > std::min(columns, p.n) && rows > 48) {
            rows = rows / 2;
        } else if (columns > 64) {
            columns = columns / 2;
        } else {
            rows = rows / 2;
        }
    }
    rows = std::max<std::int64_t>(rows / tile.rows, 1) * tile.rows;
    columns = std::max<std::int64_t>(columns / tile.columns, 1) * tile.columns;
    const std::int64_t across = blocks(p.n, columns), per_batch = blocks(p.m, rows) * across;
    parallel_for(p.batches * per_batch, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t id = begin; id < end; ++id) {
            const BatchOffsets offsets = batch_offsets(p, id / per_batch);
            const std::int64_t i = id % per_batch / across * rows, j = id % across * columns;
            block(p, static_cast<const T*>(p.a) + offsets.a + i * p.a_row,
                  static_cast<const T*>(p.b) + offsets.b + j * p.b_col,
                  static_cast<Out*>(p.c) + offsets.c + i * p.c_row + j * p.c_col, i, j,
                  std::min(rows, p.m - i), std::min(columns, p.n - j));
        }
    });
}

#define GPK_X(T) template void gemm_host<T, T>(const GemmProblem&);
GPK_X(float)
GPK_X(double)
GPK_X(float16)
GPK_X(bfloat16)
GPK_X(std::uint8_t)
GPK_X(std::uint16_t)
GPK_X(std::uint32_t)
GPK_X(std::uint64_t)
GPK_X(bool)
#undef GPK_X
template void gemm_host<float16, float>(const GemmProblem&);
template void gemm_host<bfloat16, float>(const GemmProblem&);
template void gemm_host<std::int8_t, std::int32_t>(const GemmProblem&);
#define GPK_X(T)                                              \
    template void gemm_host<T, float16>(const GemmProblem&);  \
    template void gemm_host<T, bfloat16>(const GemmProblem&); \
    template void gemm_host<T, float>(const GemmProblem&);
GPK_X(float8_e4m3)
GPK_X(float8_e5m2)
#undef GPK_X

}  // namespace gpk::kernels
