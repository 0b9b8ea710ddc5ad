// Normalisation and gated activations: part of gp.nn.
#include "ops/norm.hpp"

#include "base/error.hpp"
#include "bindings/common.hpp"
#include "ops/glu.hpp"

namespace gpk::python {

namespace {

Array read_or_none(const char* call, const char* argument, nb::handle value) {
    return value.is_none() ? Array() : read_array(call, argument, value);
}

// y, or, with a residual, y and x + residual.
template <class Norm>
nb::object normalize(const char* call, nb::handle input, nb::handle residual, nb::handle out, Norm norm) {
    const Array& x = read_array(call, "x", input);
    const Array* target = read_out(call, out);
    if (residual.is_none()) {
        return nb::cast(run_on(x.device(), [&] { return norm(x, nullptr, target, nullptr); }));
    }
    const Array& other = read_array(call, "residual", residual);
    Array y, sum;
    run_on(x.device(), [&] {
        sum = Array::empty(x.device(), x.shape(), x.dtype());
        y = norm(x, &other, target, &sum);
    });
    return nb::make_tuple(std::move(y), std::move(sum));
}

void bind_norms(nb::module_& m) {
    m.def(
        "softmax",
        [](ArrayArg x, int axis) {
            const Array& array = read_array("softmax", "x", x);
            return run_on(array.device(), [&] { return ops::softmax(array, axis); });
        },
        nb::arg("x"), nb::arg("axis") = -1,
        "exp(x - max) / sum(exp(x - max)) along an axis, in x's shape and dtype: float32, float16 or "
        "bfloat16.\n\n"
        "A NaN, or nothing but -inf, makes its row NaN. Raises InvalidTypeError for another dtype and "
        "OutOfBoundsError\n"
        "where there is no such axis.");
    m.def(
        "rms_norm",
        [](ArrayArg x, ArrayArg weight, double eps, ArrayArg residual, ArrayArg out) {
            const Array w = read_or_none("rms_norm", "weight", weight);
            return normalize(
                "rms_norm", x, residual, out,
                [&](const Array& input, const Array* other, const Array* target, const Array* sum) {
                    return ops::rms_norm(input, w, eps, other, target, sum);
                });
        },
        nb::arg("x"), nb::arg("weight").none() = nb::none(), nb::kw_only(), nb::arg("eps") = 1e-6,
        nb::arg("residual").none() = nb::none(), nb::arg("out").none() = nb::none(),
        nb::sig("def rms_norm(x: Array, weight: Array | None = None, *, eps: float = 1e-06, residual: Array "
                "| None "
                "= None, out: Array | None = None) -> typing.Any"),
        "x / sqrt(mean(x**2) + eps) * weight over the last axis (Zhang and Sennrich 2019, "
        "arXiv:1910.07467).\n\n"
        "x: (..., n), float32, float16 or bfloat16; weight: (n,), of that dtype. Means are taken in float32. "
        "With\n"
        "`residual`, of x's shape, it is of x + residual, and gives that too: (y, x + residual). `out` may "
        "be x.\n"
        "Raises InvalidValueError for shapes that do not fit and InvalidTypeError for other dtypes.");
    m.def(
        "layer_norm",
        [](ArrayArg x, ArrayArg weight, ArrayArg bias, double eps, ArrayArg residual, ArrayArg out) {
            const Array w = read_or_none("layer_norm", "weight", weight),
                        b = read_or_none("layer_norm", "bias", bias);
            return normalize(
                "layer_norm", x, residual, out,
                [&](const Array& input, const Array* other, const Array* target, const Array* sum) {
                    return ops::layer_norm(input, w, b, eps, other, target, sum);
                });
        },
        nb::arg("x"), nb::arg("weight").none() = nb::none(), nb::arg("bias").none() = nb::none(),
        nb::kw_only(), nb::arg("eps") = 1e-5, nb::arg("residual").none() = nb::none(),
        nb::arg("out").none() = nb::none(),
        nb::sig("def layer_norm(x: Array, weight: Array | None = None, bias: Array | None = None, *, eps: "
                "float = "
                "1e-05, residual: Array | None = None, out: Array | None = None) -> typing.Any"),
        "(x - mean) / sqrt(var + eps) * weight + bias over the last axis (Ba et al. 2016, "
        "arXiv:1607.06450).\n\n"
        "x: (..., n), float32, float16 or bfloat16; weight, bias: (n,), of that dtype. var is the mean "
        "square of the\n"
        "differences from the mean, taken in float32. With `residual`, of x's shape, it is of x + residual, "
        "and gives\n"
        "that too: (y, x + residual). `out` may be x. Raises InvalidValueError for shapes that do not fit "
        "and\n"
        "InvalidTypeError for other dtypes.");
}

Array gated(const char* call, GluOp op, nb::handle gate, nb::handle up, nb::handle out) {
    const Array& first = read_array(call, "gate", gate);
    const Array* target = read_out(call, out);
    if (up.is_none()) return run_on(first.device(), [&] { return ops::glu(op, first, target); });
    const Array& second = read_array(call, "up", up);
    return run_on(first.device(), [&] { return ops::glu(op, first, second, target); });
}

void bind_gated(nb::module_& m) {
    m.def(
        "swiglu",
        [](ArrayArg gate, ArrayArg up, ArrayArg out) {
            return gated("swiglu", GluOp::swiglu, gate, up, out);
        },
        nb::arg("gate"), nb::arg("up").none() = nb::none(), nb::kw_only(), nb::arg("out").none() = nb::none(),
        "silu(gate) * up in one pass (Shazeer 2020, arXiv:2002.05202).\n\n"
        "gate and up: one shape, float32, float16 or bfloat16. Without `up`, gate is (..., 2 n) and holds "
        "both: the\n"
        "gate's half first. Raises InvalidValueError for shapes that do not fit and InvalidTypeError for "
        "other dtypes.");
    m.def(
        "geglu",
        [](ArrayArg gate, ArrayArg up, const std::string& approximate, ArrayArg out) {
            if (approximate != "none" && approximate != "tanh") {
                throw error(ErrorKind::value, {.call = "geglu",
                                               .argument = "approximate",
                                               .expected = "'none' or 'tanh'",
                                               .got = str("'", approximate, "'")});
            }
            return gated("geglu", approximate == "tanh" ? GluOp::geglu_tanh : GluOp::geglu, gate, up, out);
        },
        nb::arg("gate"), nb::arg("up").none() = nb::none(), nb::kw_only(), nb::arg("approximate") = "none",
        nb::arg("out").none() = nb::none(),
        "gelu(gate) * up in one pass (Shazeer 2020, arXiv:2002.05202); approximate='tanh' takes "
        "gelu_tanh.\n\n"
        "Arrays and errors are as those of swiglu.");
}

}  // namespace

void bind_norm(nb::module_& m) {
    bind_norms(m);
    bind_gated(m);
}

}  // namespace gpk::python
