#include "ops/scaled_matmul.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/matmul_along_k.hpp"
#include "ops/matmul_variants.hpp"

namespace gpk::ops {

namespace {

constexpr const char* kCall = "scaled_matmul";
constexpr std::int64_t kBlock = kGemmScaleBlock;

void require(bool holds, ErrorKind kind, const char* argument, const std::string& expected,
             const std::string& got) {
    if (!holds) throw error(kind, {.call = kCall, .argument = argument, .expected = expected, .got = got});
}

// How the scales cover a (m, k) and b (k, n).
struct Covering {
    bool blocks, rows, columns;
};

Covering covering_of(const Dims& a, const Dims& b, const Array& scale_a, const Array& scale_b) {
    const std::int64_t m = a[0], k = a[1], n = b[1], deep = ceil_div(k, kBlock), wide = ceil_div(n, kBlock);
    const Dims &of_a = scale_a.shape(), &of_b = scale_b.shape();
    if (of_a == Dims{m, deep} && of_b == Dims{deep, wide}) return {true, false, false};
    const bool rows = of_a == Dims{m, 1}, columns = of_b == Dims{1, n};
    require(rows || of_a.size() == 0, ErrorKind::value, "scale_a",
            str("shape (), (", m, ", 1) or, with blocks of b, (", m, ", ", deep, ")"), to_string(of_a));
    require(columns || of_b.size() == 0, ErrorKind::value, "scale_b",
            str("shape (), (1, ", n, ") or, with blocks of a, (", deep, ", ", wide, ")"), to_string(of_b));
    return {false, rows, columns};
}

void check(const Array& a, const Array& b, const Array& scale_a, const Array& scale_b, DType dtype) {
    for (const auto& [name, array] : {std::pair{"a", &a}, std::pair{"b", &b}}) {
        require(is_float8(array->dtype()), ErrorKind::type, name, "float8_e4m3 or float8_e5m2",
                std::string(gpk::name(array->dtype())));
        require(array->rank() == 2, ErrorKind::value, name, "2 dimensions", to_string(array->shape()));
    }
    require(a.dtype() == b.dtype(), ErrorKind::type, "b", std::string(gpk::name(a.dtype())),
            std::string(gpk::name(b.dtype())));
    require(a.shape()[1] == b.shape()[0], ErrorKind::value, "b", str("shape (", a.shape()[1], ", n)"),
            to_string(b.shape()));
    for (const auto& [name, array] : {std::pair{"scale_a", &scale_a}, std::pair{"scale_b", &scale_b}}) {
        require(array->dtype() == DType::float32, ErrorKind::type, name, "float32",
                std::string(gpk::name(array->dtype())));
    }
    require(dtype == DType::bfloat16 || dtype == DType::float16 || dtype == DType::float32, ErrorKind::type,
            "dtype", "bfloat16, float16 or float32", std::string(gpk::name(dtype)));
}

// By a kernel that takes float8; false where none can.
bool by_kernel(const Array& a, const Array& b, const Array& scale_a, const Array& scale_b,
               const Covering& covering, const Array& c) {
    const GemmTypes types = {a.dtype(), c.dtype(), MatmulPrecision::exact};
    const GemmTarget target = target_of(c.device());
    Array rows = a, columns = b;
    lay_along_k(rows, columns, types, target.sm);
    GemmProblem p = problem_of(rows, columns, c);
    if (covering.blocks) {
        p.scales = {.a = scale_a.as<const float>(),
                    .b = scale_b.as<const float>(),
                    .a_row = scale_a.strides()[0],
                    .a_col = scale_a.strides()[1],
                    .b_row = scale_b.strides()[1],
                    .b_col = scale_b.strides()[0]};
    } else {
        p.epilogue.row_scale = scale_a.as<const float>();
        p.epilogue.row_scale_step = covering.rows ? scale_a.strides()[0] : 0;
        p.epilogue.column_scale = scale_b.as<const float>();
        p.epilogue.column_scale_step = covering.columns ? scale_b.strides()[1] : 0;
    }
    const GemmChoice choice = choose_gemm(p, types, target);
    if (choice.variant == nullptr) return false;
    launch_gemm(choice, types, rows, columns, c, {&scale_a, &scale_b});
    return true;
}

void multiply_in_place(const Array& view, const Array& scale) {
    binary(BinaryOp::multiply, view, scale, &view);
}

void in_float32(const Array& a, const Array& b, const Array& scale_a, const Array& scale_b,
                const Covering& covering, const Array& c) {
    const Array left = astype(a, DType::float32), right = astype(b, DType::float32);
    if (covering.blocks) {
        const std::int64_t k = a.shape()[1], n = b.shape()[1];
        for (std::int64_t l = 0; l < k; l += kBlock) {
            const std::int64_t depth = std::min(kBlock, k - l);
            multiply_in_place(left.slice(1, l, 1, depth), scale_a.slice(1, l / kBlock, 1, 1));
            for (std::int64_t j = 0; j < n; j += kBlock) {
                multiply_in_place(right.slice(0, l, 1, depth).slice(1, j, 1, std::min(kBlock, n - j)),
                                  scale_b.select(0, l / kBlock).select(0, j / kBlock));
            }
        }
    } else {
        multiply_in_place(left, scale_a);
        multiply_in_place(right, scale_b);
    }
    assign(c, matmul(left, right));
}

}  // namespace

Array scaled_matmul(const Array& a, const Array& b, const Array& scale_a, const Array& scale_b, DType dtype,
                    const Array* out) {
    Device& device = common_device(kCall, {&a, &b, &scale_a, &scale_b});
    check(a, b, scale_a, scale_b, dtype);
    const Covering covering = covering_of(a.shape(), b.shape(), scale_a, scale_b);
    const Dims shape = {a.shape()[0], b.shape()[1]};
    const Array result = prepare_output(kCall, device, shape, dtype, out);
    if (result.size() == 0) return result;
    if (a.shape()[1] == 0) {  // sums of nothing
        assign(result, Scalar(false));
        return result;
    }
    bool aside = false;
    for (const Array* read : {&a, &b, &scale_a, &scale_b}) aside |= out != nullptr && overlaps(result, *read);
    const Array c = aside ? Array::empty(device, shape, dtype) : result;
    if (!by_kernel(a, b, scale_a, scale_b, covering, c)) in_float32(a, b, scale_a, scale_b, covering, c);
    if (aside) assign(result, c);
    return result;
}

}  // namespace gpk::ops
