#include "ops/matmul_along_k.hpp"

#include <algorithm>

#include "ops/elementwise.hpp"

namespace gpk::ops {

namespace {

constexpr std::int64_t kUnit = 16;  // bytes

// What has kernels that read along k only, or one operand across it at most, and how many rows of the one
// operand pay for a copy of the other. tf32: the copy moves 8 bytes where each row saves 2 operations at 100
// instead of 370 TFLOPS. Of int8 and float8 every other way converts both operands.
struct AlongK {
    DType operands;
    std::optional<DType> result;
    bool tf32;
    std::int64_t least_rows;
    bool one_across = false;
};
constexpr AlongK kAlongK[] = {
    {DType::float32, DType::float32, true, 128, true},
    {DType::int8, DType::int32, false, 1},
    {DType::float8_e4m3, std::nullopt, false, 1},
    {DType::float8_e5m2, std::nullopt, false, 1},
};

const AlongK* find(const GemmTypes& types) {
    for (const AlongK& row : kAlongK) {
        if (row.operands == types.operands && row.result.value_or(types.result) == types.result &&
            (!row.tf32 || types.precision == MatmulPrecision::tf32))
            return &row;
    }
    return nullptr;
}

Array with_last_swapped(const Array& x) {
    Dims axes;
    for (int d = 0; d < x.rank() - 2; ++d) axes.push_back(d);
    axes.push_back(x.rank() - 1);
    axes.push_back(x.rank() - 2);
    return x.transpose(axes);
}

// k is the last dimension but `k_from_end`.
bool lies_along_k(const Array& x, int k_from_end) {
    const auto size = static_cast<std::int64_t>(itemsize(x.dtype()));
    const int k = x.rank() - 1 - k_from_end;
    if (x.data() % kUnit != 0 || (x.shape()[k] > 1 && x.strides()[k] != 1)) return false;
    for (int d = 0; d < x.rank(); ++d) {
        if (d != k && x.shape()[d] > 1 && (x.strides()[d] < 0 || x.strides()[d] * size % kUnit != 0))
            return false;
        if (d == x.rank() - 2 + k_from_end && x.shape()[d] > 1 && x.strides()[d] == 0) return false;
    }
    return true;
}

Array copied_along_k(const Array& x, int k_from_end) {
    Array once = x;
    for (int d = 0; d < x.rank() - 2; ++d) {
        if (x.strides()[d] == 0 && x.shape()[d] > 1) once = once.slice(d, 0, 1, 1);
    }
    const int k_axis = x.rank() - 1 - k_from_end, line_axis = x.rank() - 2 + k_from_end;
    const std::int64_t k = x.shape()[k_axis], unit = kUnit / static_cast<std::int64_t>(itemsize(x.dtype()));
    Dims shape = once.shape();
    shape[x.rank() - 2] = x.shape()[line_axis];
    shape[x.rank() - 1] = ceil_div(k, unit) * unit;
    Array lines = Array::empty(x.device(), shape, x.dtype()).slice(x.rank() - 1, 0, 1, k);
    if (k_from_end == 1) lines = with_last_swapped(lines);
    assign(lines, once);
    return lines.broadcast_to(x.shape());
}

}  // namespace

void lay_along_k(Array& a, Array& b, const GemmTypes& types, int sm) {
    const AlongK* row = find(types);
    if (row == nullptr || (sm != 0 && sm != 90) || a.size() == 0 || b.size() == 0) return;
    bool turn_a = !lies_along_k(a, 0), turn_b = !lies_along_k(b, 1);
    if (row->one_across) {  // the larger, where both are
        const bool a_may = turn_a && lies_along_k(a, 1), b_may = turn_b && lies_along_k(b, 0);
        if (a_may && !(b_may && b.size() > a.size())) {
            turn_a = false;
        } else if (b_may) {
            turn_b = false;
        }
    }
    if (turn_a && b.shape().back() < row->least_rows) return;
    if (turn_b && a.shape()[a.rank() - 2] < row->least_rows) return;
    if (turn_a) a = copied_along_k(a, 0);
    if (turn_b) b = copied_along_k(b, 1);
}

}  // namespace gpk::ops
