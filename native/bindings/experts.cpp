// Gated products and mixtures of experts.
#include "ops/experts.hpp"

#include <nanobind/stl/optional.h>

#include "bindings/common.hpp"
#include "ops/glu.hpp"
#include "ops/grouped_linear.hpp"
#include "ops/quantize.hpp"

namespace gpk::python {

using ops::QuantizedWeight;

namespace {

struct NamedGate {
    const char* name;
    GluOp op;
};
constexpr NamedGate kGates[] = {
    {"silu", GluOp::swiglu},
    {"gelu", GluOp::geglu},
    {"gelu_tanh", GluOp::geglu_tanh},
};

GluOp read_gate(const char* call, const char* argument, const std::string& name) {
    for (const NamedGate& each : kGates) {
        if (name == each.name) return each.op;
    }
    throw error(ErrorKind::value, {.call = call,
                                   .argument = argument,
                                   .expected = "'silu', 'gelu' or 'gelu_tanh'",
                                   .got = str("'", name, "'")});
}

void bind_linear(nb::module_& m) {
    m.def(
        "gated_linear",
        [](const Array& x, const Array& weight, const std::string& activation, ArrayArg out_) {
            const GluOp op = read_gate("gated_linear", "activation", activation);
            const Array* out = read_out("gated_linear", out_);
            return run_on(x.device(), [&] { return ops::gated_linear(x, weight, op, out); });
        },
        nb::arg("x"), nb::arg("weight"), nb::arg("activation") = "silu", nb::kw_only(),
        nb::arg("out").none() = nb::none(),
        "activation(x @ gate.T) * (x @ up.T) in one kernel: the first half of a feed-forward layer\n"
        "(Shazeer 2020, arXiv:2002.05202).\n\n"
        "x is (..., k); weight (2 n, k) has the rows of gate, then those of up; the result is (...,\n"
        "n). activation: 'silu', 'gelu' (with erf) or 'gelu_tanh'. float32, float16 or bfloat16, both\n"
        "the same. On SM 90, with 16-bit types, k and n in whole 8, sums stay in float32 and are\n"
        "rounded once; elsewhere the products are rounded before they are multiplied. Raises\n"
        "InvalidValueError for shapes that do not fit, InvalidTypeError for other dtypes.");
    m.def(
        "gated_linear",
        [](const Array& x, const QuantizedWeight& weight, const std::string& activation, ArrayArg out_) {
            const GluOp op = read_gate("gated_linear", "activation", activation);
            const Array* out = read_out("gated_linear", out_);
            return run_on(x.device(), [&] { return ops::glu(op, ops::linear(x, weight), out); });
        },
        nb::arg("x"), nb::arg("weight"), nb::arg("activation") = "silu", nb::kw_only(),
        nb::arg("out").none() = nb::none(),
        "The same with a QuantizedWeight (2 n, k), in two kernels: the products are rounded to x's dtype.");
    m.def(
        "grouped_linear",
        [](ArrayArg x_, ArrayArg weight_, ArrayArg offsets_, const std::optional<std::string>& gate,
           ArrayArg out_) {
            const Array& x = read_array("grouped_linear", "x", x_);
            const Array& weight = read_array("grouped_linear", "weight", weight_);
            const Array& offsets = read_array("grouped_linear", "offsets", offsets_);
            const std::optional<GluOp> op =
                gate ? std::optional(read_gate("grouped_linear", "gate", *gate)) : std::nullopt;
            const Array* out = read_out("grouped_linear", out_);
            return run_on(x.device(), [&] { return ops::grouped_linear(x, weight, offsets, op, out); });
        },
        nb::arg("x"), nb::arg("weight"), nb::arg("offsets"), nb::kw_only(),
        nb::arg("gate").none() = nb::none(), nb::arg("out").none() = nb::none(),
        "x[r] @ weight[e].T for each row r of expert e: the products of a mixture of experts.\n\n"
        "x is (rows, k), its rows sorted by expert; weight (experts, n, k); offsets int32 (experts +\n"
        "1): expert e has the rows offsets[e] to offsets[e + 1], any number of them. gate='silu',\n"
        "'gelu' or 'gelu_tanh': as gated_linear, with weight (experts, 2 n, k). The result is (rows,\n"
        "n); what rows hold that no expert has is not defined. The host never reads offsets, so a\n"
        "graph may capture it. float32, float16 or bfloat16, both the same. Raises InvalidValueError\n"
        "for shapes that do not fit, InvalidTypeError for other dtypes.");
}

void bind_routing(nb::module_& m) {
    m.def(
        "route",
        [](const Array& logits, std::int64_t k, bool normalize) {
            const ops::Routes routes =
                run_on(logits.device(), [&] { return ops::route(logits, k, normalize); });
            return nb::make_tuple(routes.weights, routes.experts);
        },
        nb::arg("logits"), nb::arg("k"), nb::kw_only(), nb::arg("normalize") = true,
        nb::sig("def route(logits: Array, k: int, *, normalize: bool = True) -> tuple[Array, Array]"),
        "Which experts each token goes to: (weights, experts), float32 and int32 (tokens, k).\n\n"
        "Softmax over logits (tokens, experts) of float32, float16 or bfloat16, of which the k\n"
        "largest are kept, from the largest down; normalize: divided by their sum (norm_topk_prob). A\n"
        "NaN counts as the largest; of equals the lower expert is first. Up to 1024 experts and k =\n"
        "32. Raises InvalidValueError for others, InvalidTypeError for other dtypes.");
    m.def(
        "sort_by_expert",
        [](const Array& experts, std::int64_t num_experts) {
            const ops::ExpertOrder order =
                run_on(experts.device(), [&] { return ops::sort_by_expert(experts, num_experts); });
            return nb::make_tuple(order.tokens, order.places, order.offsets);
        },
        nb::arg("experts"), nb::arg("num_experts"),
        nb::sig("def sort_by_expert(experts: Array, num_experts: int) -> tuple[Array, Array, Array]"),
        "The rows of grouped_linear for int32 experts (tokens, k): (tokens, places, offsets), int32.\n\n"
        "tokens (tokens * k) is the token of each sorted row, for gp.take; places (tokens, k) the\n"
        "sorted row of each choice; offsets (num_experts + 1) the first row of each expert. The sort\n"
        "is stable. Experts outside 0 to num_experts - 1 are left out: their place is -1, as is the\n"
        "token of the rows past the last. Up to 1024 experts. Raises InvalidValueError for others,\n"
        "InvalidTypeError for other dtypes.");
    m.def(
        "combine_experts",
        [](ArrayArg y_, ArrayArg places_, ArrayArg weights_, ArrayArg residual_, ArrayArg out_) {
            constexpr const char* kCall = "combine_experts";
            const Array& y = read_array(kCall, "y", y_);
            const Array& places = read_array(kCall, "places", places_);
            const Array& weights = read_array(kCall, "weights", weights_);
            const Array* residual = residual_.is_none() ? nullptr : &read_array(kCall, "residual", residual_);
            const Array* out = read_out(kCall, out_);
            return run_on(y.device(),
                          [&] { return ops::combine_experts(y, places, weights, residual, out); });
        },
        nb::arg("y"), nb::arg("places"), nb::arg("weights"), nb::kw_only(),
        nb::arg("residual").none() = nb::none(), nb::arg("out").none() = nb::none(),
        "The sum over k of weights[t, k] * y[places[t, k]], plus residual[t]: (tokens, n).\n\n"
        "y is (rows, n) of float32, float16 or bfloat16, places and weights (tokens, k) of int32 and\n"
        "float32, residual (tokens, n) of y's dtype. Sums are float32, rounded once; places outside\n"
        "the rows add nothing. `out` may be residual. Raises InvalidValueError for shapes that do not\n"
        "fit, InvalidTypeError for other dtypes.");
}

}  // namespace

void bind_experts(nb::module_& m) {
    bind_linear(m);
    bind_routing(m);
}

}  // namespace gpk::python
