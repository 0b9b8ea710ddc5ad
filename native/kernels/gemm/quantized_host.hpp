// Quantised weights on the host: products with rows of float32, and rows in float32, as vectors.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/gemm/quantized.hpp"
#include "kernels/host.hpp"

namespace gpk::kernels {

// One row of w in float32, k of them.
void dequantize_row(const QuantLayout& w, std::int64_t row, float* out);

inline constexpr int kQuantizedRows = 16;

// Rows of x [m, k], m at most kQuantizedRows, to be multiplied with any row of w.
class QuantizedRows {
   public:
    // value(i, l): of row i the element l.
    template <class Value>
    QuantizedRows(const QuantLayout& w, int m, Value value) : w_(w), m_(m) {
        allocate();
        for (int i = 0; i < m; ++i) {
            for (std::int64_t step = 0; step < steps_; ++step) {
                fill(i, step, [&](std::int64_t column) { return value(i, column); });
            }
        }
    }
    // y[r * m + i] = x[i] dot row r of the weight's tile, 16 rows.
    void multiply(std::int64_t tile, float* y) const;

   private:
    void allocate();
    template <class Value>
    void fill(int i, std::int64_t step, Value value) {
        float* planes = planes_.data() + i * pitch_ + step * planes_of_step_ * kLanes;
        float* sums = sums_.data() + (i * steps_ + step) * kLanes;
        for (int p = 0; p < planes_of_step_; ++p) {
            for (int lane = 0; lane < kLanes; ++lane) {
                const std::int64_t column = step * planes_of_step_ * kLanes + column_of(lane, p);
                const float x = column < w_.k ? value(column) : 0;
                planes[p * kLanes + lane] = x;
                sums[lane] += x;
            }
        }
    }
    int column_of(int lane, int plane) const { return columns_[plane * kLanes + lane]; }

    // The 64 bytes that a row has of a step are 16 words; plane p holds code p of each of them.
    static constexpr int kLanes = 16;
    QuantLayout w_;
    int m_;
    int planes_of_step_ = 0;
    const std::int16_t* columns_ = nullptr;  // of a step, [plane][lane]
    std::int64_t steps_ = 0, pitch_ = 0;
    std::vector<float> planes_;  // [m][steps][planes][lanes]
    std::vector<float> sums_;    // [m][steps][lanes], over the planes
};

// c = x @ w.T for m rows, any number, of c from `c` on, which has T or float32; value(i, l) as above.
template <class T, class Value>
void multiply_quantized(const QuantLayout& w, std::int64_t m, Value value, void* c, std::int64_t c_row,
                        bool float32_out) {
    for (std::int64_t row = 0; row < m; row += kQuantizedRows) {
        const int rows = static_cast<int>(std::min<std::int64_t>(kQuantizedRows, m - row));
        const QuantizedRows x(w, rows, [&](int i, std::int64_t l) { return value(row + i, l); });
        parallel_for(quant_tiles(w.n), 2, [&](std::int64_t begin, std::int64_t end) {
            float sums[kQuantRows * kQuantizedRows];
            for (std::int64_t tile = begin; tile < end; ++tile) {
                x.multiply(tile, sums);
                const std::int64_t first = tile * kQuantRows;
                const std::int64_t count = std::min<std::int64_t>(kQuantRows, w.n - first) * rows;
                for (std::int64_t i = 0; i < count; ++i) {
                    const std::int64_t at = (row + i % rows) * c_row + first + i / rows;
                    if (float32_out) {
                        static_cast<float*>(c)[at] = sums[i];
                    } else {
                        static_cast<T*>(c)[at] = convert<T>(sums[i]);
                    }
                }
            }
        });
    }
}

}  // namespace gpk::kernels
