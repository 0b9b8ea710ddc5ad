#include "ops/matmul_slices.hpp"

#include <algorithm>

namespace gpk::ops {

namespace {

const void* moved(const void* pointer, std::int64_t bytes) {
    return static_cast<const unsigned char*>(pointer) + bytes;
}
void* moved(void* pointer, std::int64_t bytes) { return static_cast<unsigned char*>(pointer) + bytes; }

struct Cut {
    const GemmVariant& variant;
    const LaunchConfig& whole;
    BlockPart part;
    std::int64_t item_bytes, result_bytes;
    const std::function<void(const GemmProblem&, const LaunchConfig&)>& launch;

    void move(GemmProblem& p, std::int64_t a, std::int64_t b, std::int64_t c) const {
        p.a = moved(p.a, a * item_bytes);
        p.b = moved(p.b, b * item_bytes);
        p.c = moved(p.c, c * result_bytes);
    }
    void move_epilogue(GemmProblem& p, std::int64_t rows, std::int64_t columns) const {
        GemmEpilogue& e = p.epilogue;
        if (e.row_scale != nullptr) e.row_scale += rows * e.row_scale_step;
        if (e.column_scale != nullptr) e.column_scale += columns * e.column_scale_step;
        if (p.scales.a != nullptr) {  // tiles are whole blocks
            p.scales.a += rows * p.scales.a_row;
            p.scales.b += columns / kGemmScaleBlock * p.scales.b_row;
        }
        if (e.bias != nullptr) e.bias = moved(e.bias, columns * result_bytes);
        if (e.residual == nullptr) return;
        e.residual = moved(e.residual, (rows * e.residual_row + columns * e.residual_col) * result_bytes);
    }
    void take_batches(GemmProblem& p, std::int64_t begin, std::int64_t end) const {
        move(p, begin * p.a_batch[0], begin * p.b_batch[0], begin * p.c_batch[0]);
        p.batches = p.batches / p.batch_extents[0] * (end - begin);
        p.batch_extents[0] = end - begin;
    }
    void take_rows(GemmProblem& p, std::int64_t begin, std::int64_t end) const {
        const std::int64_t first = begin * part.rows;
        p.m = std::min(end * part.rows, p.m) - first;
        move(p, first * p.a_row, 0, first * p.c_row);
        move_epilogue(p, first, 0);
    }
    void take_columns(GemmProblem& p, std::int64_t begin, std::int64_t end) const {
        const std::int64_t first = begin * part.columns;
        p.n = std::min(end * part.columns, p.n) - first;
        move(p, 0, first * p.b_col, first * p.c_col);
        move_epilogue(p, 0, first);
    }
    static void drop_first_batch(GemmProblem& p) {  // which has one index
        --p.batch_rank;
        for (std::int64_t* values : {p.batch_extents, p.a_batch, p.b_batch, p.c_batch}) {
            std::copy(values + 1, values + 1 + p.batch_rank, values);
        }
    }

    // Along the longest of the three; where that is not enough, along the next.
    void cut(GemmProblem p, std::int64_t slices) const {
        while (p.batch_rank > 0 && p.batch_extents[0] == 1) drop_first_batch(p);
        const std::int64_t batches = p.batch_rank > 0 ? p.batch_extents[0] : 1;
        const std::int64_t rows = ceil_div(p.m, part.rows), columns = ceil_div(p.n, part.columns);
        const std::int64_t units = std::max({batches, rows, columns});
        if (slices <= 1 || units == 1) {
            launch(p, grid_of(variant, p, part, whole));
            return;
        }
        const std::int64_t step = std::max<std::int64_t>(units / slices, 1);
        const std::int64_t inner = (slices + units / 2) / units;  // of each, where units are too few
        for (std::int64_t begin = 0; begin < units; begin += step) {
            const std::int64_t end = std::min(begin + step, units);
            GemmProblem slice = p;
            if (batches == units) {
                take_batches(slice, begin, end);
            } else if (rows == units) {
                take_rows(slice, begin, end);
            } else {
                take_columns(slice, begin, end);
            }
            cut(slice, inner);
        }
    }
};

}  // namespace

void cut_gemm(const GemmVariant& variant, const GemmProblem& problem, const LaunchConfig& whole,
              std::int64_t slices,
              const std::function<void(const GemmProblem&, const LaunchConfig&)>& launch) {
    const Cut cut{variant,
                  whole,
                  variant.part(variant, whole),
                  static_cast<std::int64_t>(itemsize(variant.dtype)),
                  static_cast<std::int64_t>(itemsize(variant.result.value_or(variant.dtype))),
                  launch};
    cut.cut(problem, slices);
}

}  // namespace gpk::ops
