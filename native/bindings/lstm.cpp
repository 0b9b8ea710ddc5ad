// Long short-term memory.
#include "bindings/common.hpp"

#include "ops/lstm.hpp"

namespace gpk::python {

namespace {

// None is null.
const Array* read_optional(const char* argument, ArrayArg value) {
    return value.is_none() ? nullptr : &read_array("lstm", argument, value);
}

nb::tuple lstm(const Array& x, const Array& weight_ih, const Array& weight_hh, ArrayArg bias_ih,
               ArrayArg bias_hh, ArrayArg h, ArrayArg c, bool reverse) {
    const ops::LstmWeights weights{.input = weight_ih,
                                   .recurrent = weight_hh,
                                   .input_bias = read_optional("bias_ih", bias_ih),
                                   .recurrent_bias = read_optional("bias_hh", bias_hh)};
    const Array* first_h = read_optional("h", h);
    const Array* first_c = read_optional("c", c);
    ops::LstmResult result =
        run_on(x.device(), [&] { return ops::lstm(x, weights, first_h, first_c, reverse); });
    return nb::make_tuple(std::move(result.output), std::move(result.h), std::move(result.c));
}

}  // namespace

void bind_lstm(nb::module_& m) {
    m.def(
        "lstm", &lstm, nb::arg("x"), nb::arg("weight_ih"), nb::arg("weight_hh"),
        nb::arg("bias_ih").none() = nb::none(), nb::arg("bias_hh").none() = nb::none(), nb::kw_only(),
        nb::arg("h").none() = nb::none(), nb::arg("c").none() = nb::none(), nb::arg("reverse") = false,
        nb::sig("def lstm(x: Array, weight_ih: Array, weight_hh: Array, bias_ih: Array | None = None, "
                "bias_hh: Array | None = None, *, h: Array | None = None, c: Array | None = None, "
                "reverse: bool = False) -> tuple[Array, Array, Array]"),
        "A layer of long short-term memory in one direction, with PyTorch's weights: (output, h, c).\n\n"
        "Gates i, f, g, o = weight_ih x + bias_ih + weight_hh h + bias_hh; c = sigmoid(f) c + sigmoid(i)\n"
        "tanh(g); h = sigmoid(o) tanh(c) (Hochreiter & Schmidhuber 1997).\n"
        "x: (steps, batch, inputs) or (steps, inputs). weight_ih: (4 hidden, inputs), weight_hh: (4 hidden,\n"
        "hidden), biases: (4 hidden,). h and c: where to begin, (batch, hidden) or (hidden,); zeros for "
        "None.\n"
        "reverse: from the last step to the first. All of one dtype: float32, float16 or bfloat16; sums, "
        "and c\n"
        "between steps, are in float32. Gives h of every step, (steps, batch, hidden), and the h and c where "
        "it\n"
        "ended. Raises InvalidValueError or InvalidTypeError for what does not fit.");
}

}  // namespace gpk::python
