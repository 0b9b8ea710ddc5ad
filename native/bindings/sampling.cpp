// Choosing tokens and the largest elements.
#include "ops/sampling.hpp"

#include "bindings/common.hpp"

namespace gpk::python {

namespace {

// A number, or an array with one for each row.
template <class Value>
ops::RowOption<Value> option(const char* call, const char* argument, nb::handle given) {
    if (const Array* array = try_array(given)) return {Value(), array};
    Value value{};
    if (!nb::try_cast(given, value)) {
        throw error(ErrorKind::type, {.call = call,
                                      .argument = argument,
                                      .expected = "a number in range, or an array with one for each row",
                                      .got = kind_of(given)});
    }
    return value;
}

const Array* optional(const char* call, const char* argument, nb::handle given) {
    return given.is_none() ? nullptr : &read_array(call, argument, given);
}

}  // namespace

void bind_sampling(nb::module_& m) {
    m.def(
        "sample",
        [](const Array& logits, nb::object temperature, nb::object top_k, nb::object top_p, nb::object min_p,
           nb::object seed, std::uint64_t step, nb::object position, nb::object counts) {
            const ops::SampleOptions options{
                .temperature = option<double>("sample", "temperature", temperature),
                .top_k = option<std::int64_t>("sample", "top_k", top_k),
                .top_p = option<double>("sample", "top_p", top_p),
                .min_p = option<double>("sample", "min_p", min_p),
                .seed = option<std::uint64_t>("sample", "seed", seed),
                .step = step,
                .position = optional("sample", "position", position),
                .counts = optional("sample", "counts", counts)};
            return run_on(logits.device(), [&] { return ops::sample(logits, options); });
        },
        nb::arg("logits"), nb::kw_only(), nb::arg("temperature") = 1.0, nb::arg("top_k") = 0,
        nb::arg("top_p") = 1.0, nb::arg("min_p") = 0.0, nb::arg("seed") = 0, nb::arg("step") = 0,
        nb::arg("position").none() = nb::none(), nb::arg("counts").none() = nb::none(),
        nb::sig(
            "def sample(logits: Array, *, temperature: float | Array = 1.0, top_k: int | Array = 0, "
            "top_p: float | Array = 1.0, min_p: float | Array = 0.0, seed: int | Array = 0, step: int = 0, "
            "position: Array | None = None, counts: Array | None = None) -> Array"),
        "A token for each row of logits (..., n) of float32, float16 or bfloat16: int32 of shape (...).\n\n"
        "Drawn from softmax(logits / temperature), of which stay, in this order: the top_k likeliest (0: "
        "all); of\n"
        "these the fewest whose probabilities reach top_p of theirs together; of these what is at least "
        "min_p\n"
        "times as likely as the likeliest (the order of transformers' generate). Equals rank by the lower "
        "id.\n"
        "temperature 0 takes the largest logit. Each of these options, and the seed, may be an array on the\n"
        "device of shape (...), with one for each row: float32, top_k int32, seed uint64.\n\n"
        "The draw is number `step` of the seed's (Philox4x32-10, Salmon et al., SC 2011), a stream for each "
        "row\n"
        "(stream 0 where each has its own seed), and the same on every device and in every run. `position`, "
        "an\n"
        "int32 array of shape (1,) or (...) on the device, is added to `step`, for graphs. `counts`, int32 "
        "of "
        "the\n"
        "logits' shape, is told: that of each drawn token grows by one (see penalize), but not in rows "
        "whose\n"
        "position is below 0. A row with a NaN, "
        "whose\n"
        "largest logit is infinite, or whose own options are out of range, gives -1. Raises "
        "InvalidValueError for\n"
        "options out of range or more than 2**23 logits a row, InvalidTypeError for other dtypes.");
    m.def(
        "penalize",
        [](const Array& logits, nb::object counts, nb::object prompt, nb::object bias, nb::object repetition,
           nb::object presence, nb::object frequency) {
            const ops::PenalizeOptions options{
                .counts = optional("penalize", "counts", counts),
                .prompt = optional("penalize", "prompt", prompt),
                .bias = optional("penalize", "bias", bias),
                .repetition = option<double>("penalize", "repetition", repetition),
                .presence = option<double>("penalize", "presence", presence),
                .frequency = option<double>("penalize", "frequency", frequency)};
            return run_on(logits.device(), [&] { return ops::penalize(logits, options); });
        },
        nb::arg("logits"), nb::arg("counts").none() = nb::none(), nb::kw_only(),
        nb::arg("prompt").none() = nb::none(), nb::arg("bias").none() = nb::none(),
        nb::arg("repetition") = 1.0, nb::arg("presence") = 0.0, nb::arg("frequency") = 0.0,
        nb::sig("def penalize(logits: Array, counts: Array | None = None, *, prompt: Array | None = None, "
                "bias: Array | None = None, repetition: float | Array = 1.0, presence: float | Array = 0.0, "
                "frequency: float | Array = 0.0) -> Array"),
        "Logits (..., n) as float32, with the penalties of what each row holds already, for `sample`.\n\n"
        "In this order, which is vLLM's: bias (float32, (n,) or (..., n)) is added; a logit whose token is "
        "in "
        "the\n"
        "prompt (bool, (..., n)) or the output (counts above 0) is divided by `repetition` where it is "
        "positive\n"
        "and multiplied by it elsewhere (Keskar et al. 2019, arXiv:1909.05858); frequency * count is taken "
        "from\n"
        "it, and presence where the count is not 0. counts: int32 (..., n), how often the output has each "
        "token;\n"
        "`sample` keeps it up. repetition, presence and frequency may be float32 arrays of shape (...), with "
        "one\n"
        "for each row. Raises InvalidValueError for shapes that do not fit and a repetition that is not "
        "above 0,\n"
        "InvalidTypeError for other dtypes.");
    m.def(
        "top_k",
        [](const Array& x, std::int64_t k) {
            const auto [values, indices] = run_on(x.device(), [&] { return ops::top_k(x, k); });
            return nb::make_tuple(values, indices);
        },
        nb::arg("x"), nb::arg("k"), nb::sig("def top_k(x: Array, k: int) -> tuple[Array, Array]"),
        "The k largest of each row of x (..., n), from the largest down, and their int32 indices, both (..., "
        "k).\n\n"
        "x is float32, float16 or bfloat16. A NaN counts as the largest; of equals the lower index comes "
        "first.\n"
        "Raises InvalidValueError unless 1 <= k <= min(n, 2048).");
}

}  // namespace gpk::python
