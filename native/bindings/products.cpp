#include <nanobind/stl/optional.h>

#include "bindings/common.hpp"
#include "ops/matmul_variants.hpp"
#include "ops/scaled_matmul.hpp"

namespace gpk::python {

namespace {

struct NamedActivation {
    const char* name;
    GemmActivation activation;
};
constexpr NamedActivation kActivations[] = {
    {"relu", GemmActivation::relu},
    {"gelu", GemmActivation::gelu},
    {"gelu_tanh", GemmActivation::gelu_tanh},
    {"silu", GemmActivation::silu},
};

GemmActivation read_activation(const char* call, const std::optional<std::string>& name) {
    if (!name) return GemmActivation::none;
    for (const NamedActivation& each : kActivations) {
        if (*name == each.name) return each.activation;
    }
    throw error(ErrorKind::value, {.call = call,
                                   .argument = "activation",
                                   .expected = "None, 'relu', 'gelu', 'gelu_tanh' or 'silu'",
                                   .got = str("'", *name, "'")});
}

// What benchmarks/tune_gemm.py knows of the tiles: name, rows, columns, blocks below and beside
// each other, split, blocks on a multiprocessor.
nb::list tiles() {
    nb::list list;
    const auto add = [&](const char* name, const WgmmaTile& t) {
        list.append(nb::make_tuple(name, t.rows, t.columns, t.below, t.beside, t.split, t.per_sm));
    };
#define GPK_X(name, ...) add(#name, WgmmaTile{__VA_ARGS__});
    GPK_WGMMA_TILES(GPK_X)
#undef GPK_X
    return list;
}

Array matmul_with(const std::string& kernel, const Array& x, const Array& y, bool turned) {
    for (const ops::GemmVariant& variant : ops::gemm_variants()) {
        if (variant.kernel().name() != kernel) continue;
        if (const auto product = ops::matmul_with(variant, x, y, turned)) return *product;
    }
    throw error(ErrorKind::value, {.call = "_matmul_with",
                                   .argument = "kernel",
                                   .expected = "one that can make the product here",
                                   .got = kernel});
}

}  // namespace

void bind_products(nb::module_& m) {
    m.def(
        "linear",
        [](const Array& x, const Array& weight, ArrayArg bias_, const std::optional<std::string>& activation,
           ArrayArg residual_, float scale, DTypeArg dtype_, ArrayArg out_) {
            const auto optional = [](const char* name, nb::handle value) {
                return value.is_none() ? nullptr : &read_array("linear", name, value);
            };
            const ops::LinearEpilogue epilogue = {.bias = optional("bias", bias_),
                                                  .activation = read_activation("linear", activation),
                                                  .residual = optional("residual", residual_),
                                                  .scale = scale};
            const Array* out = read_out("linear", out_);
            std::optional<DType> dtype;
            if (!dtype_.is_none()) dtype = read_dtype(dtype_);
            return run_on(x.device(), [&] { return ops::linear(x, weight, epilogue, out, dtype); });
        },
        nb::arg("x"), nb::arg("weight"), nb::arg("bias").none() = nb::none(),
        nb::arg("activation").none() = nb::none(), nb::arg("residual").none() = nb::none(), nb::kw_only(),
        nb::arg("scale") = 1.0f, nb::arg("dtype").none() = nb::none(), nb::arg("out").none() = nb::none(),
        "activation(scale * (x @ weight.T) + bias) + residual: a layer of a model.\n\n"
        "x is (..., k), weight (n, k), bias (n,), residual of the result's shape (..., n) or one that\n"
        "broadcasts to it. activation: None, 'relu', 'gelu' (with erf), 'gelu_tanh' or 'silu'. The result "
        "has\n"
        "the dtype that x and weight promote to, or `dtype`, to which that must convert safely: float32 of\n"
        "16-bit ones gives the sums as they are. On SM 90 and with 16-bit types all of it is one kernel, "
        "which\n"
        "works in float32 and rounds once; elsewhere each step rounds. `out` may be `residual`.\n"
        "Raises InvalidValueError where the shapes do not fit or the activation is unknown,\n"
        "InvalidTypeError where dtype does not fit.");
    m.def(
        "scaled_matmul",
        [](ArrayArg a_, ArrayArg b_, ArrayArg scale_a_, ArrayArg scale_b_, DTypeArg dtype_, ArrayArg out_) {
            const Array& a = read_array("scaled_matmul", "a", a_);
            const Array& b = read_array("scaled_matmul", "b", b_);
            const Array& scale_a = read_array("scaled_matmul", "scale_a", scale_a_);
            const Array& scale_b = read_array("scaled_matmul", "scale_b", scale_b_);
            const DType dtype = read_dtype_or(dtype_, DType::bfloat16);
            const Array* out = read_out("scaled_matmul", out_);
            return run_on(a.device(), [&] { return ops::scaled_matmul(a, b, scale_a, scale_b, dtype, out); });
        },
        nb::arg("a"), nb::arg("b"), nb::arg("scale_a"), nb::arg("scale_b"), nb::kw_only(),
        nb::arg("dtype").none() = nb::none(), nb::arg("out").none() = nb::none(),
        "(a * scale_a) @ (b * scale_b) of float8 matrices, rounded once to `dtype`.\n\n"
        "a is (m, k), b (k, n), both float8_e4m3 or both float8_e5m2; dtype: bfloat16 (default), float16 or\n"
        "float32. The scales are float32: () for all of an operand, (m, 1) and (1, n) for its rows or "
        "columns,\n"
        "or, both, blocks of 128: (m, ceil(k / 128)) and (ceil(k / 128), ceil(n / 128)). Quickest on SM 90 "
        "with\n"
        "b the transpose of a weight (n, k) and k a multiple of 16. There the tensor cores add within 128 of "
        "k\n"
        "(with scales of blocks) or all of it (with others) with 14 bits; elsewhere it is float32.\n"
        "Raises InvalidValueError for shapes that do not fit, InvalidTypeError for other dtypes.");
    m.def("_matmul_tiles", &tiles,
          nb::sig("def _matmul_tiles() -> list[tuple[str, int, int, int, int, int, int]]"),
          "The tiles of gemm_wgmma, for benchmarks/tune_gemm.py.");
    m.def("_matmul_with", &matmul_with, nb::arg("kernel"), nb::arg("x"), nb::arg("y"),
          nb::arg("turned") = false,
          "x @ y by the kernel of this name; turned: as (y.T @ x.T).T. Raises InvalidValueError where it "
          "cannot make it.");
}

}  // namespace gpk::python
