#include "kernels/gemm/gemm_host.hpp"

#include <algorithm>
#include <memory>
#include <new>
#include <type_traits>

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
    if constexpr (is_small_float<T>) {
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

// One block of c: rows x columns at c, over all of k.
template <class T>
void block(const GemmProblem& p, const T* a, const T* b, T* c, std::int64_t rows, std::int64_t columns) {
    using M = MultiplyAdd<T>;
    using C = typename M::type;
    thread_local Buffers<C> buffers;
    const Micro<C>& tile = micro<C>();
    const std::int64_t wide = (columns + tile.columns - 1) / tile.columns * tile.columns;
    C* sums = buffers.c.get();
    std::fill(sums, sums + (rows + tile.rows - 1) / tile.rows * tile.rows * wide, C(0));
    for (std::int64_t k0 = 0; k0 < p.k; k0 += kMaxDepth) {
        const std::int64_t depth = std::min(kMaxDepth, p.k - k0);
        pack(buffers.a.get(), tile.rows, rows, depth, a + k0 * p.a_col, p.a_row, p.a_col);
        pack(buffers.b.get(), tile.columns, columns, depth, b + k0 * p.b_row, p.b_col, p.b_row);
        for (std::int64_t j = 0; j < columns; j += tile.columns) {
            for (std::int64_t i = 0; i < rows; i += tile.rows) {
                tile.run(depth, buffers.a.get() + i * depth, buffers.b.get() + j * depth, sums + i * wide + j,
                         wide);
            }
        }
        if constexpr (std::is_same_v<T, bool>) {  // counted so far: kept at 0 or 1, a count cannot wrap
            for (std::int64_t i = 0; i < rows * wide; ++i) sums[i] = sums[i] != 0;
        }
    }
    for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < columns; ++j)
            c[i * p.c_row + j * p.c_col] = M::store(sums[i * wide + j]);
    }
}

}  // namespace

template <class T>
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
                  static_cast<T*>(p.c) + offsets.c + i * p.c_row + j * p.c_col, std::min(rows, p.m - i),
                  std::min(columns, p.n - j));
        }
    });
}

#define GPK_X(T) template void gemm_host<T>(const GemmProblem&);
GPK_X(float)
GPK_X(double)
GPK_X(float16)
GPK_X(bfloat16) GPK_X(std::uint8_t) GPK_X(std::uint16_t) GPK_X(std::uint32_t) GPK_X(std::uint64_t) GPK_X(bool)
#undef GPK_X

}  // namespace gpk::kernels
