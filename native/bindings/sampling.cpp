// Choosing tokens and the largest elements.
#include "ops/sampling.hpp"

#include "bindings/common.hpp"

namespace gpk::python {

void bind_sampling(nb::module_& m) {
    m.def(
        "sample",
        [](const Array& logits, double temperature, std::int64_t top_k, double top_p, double min_p,
           std::uint64_t seed, std::uint64_t step, ArrayArg position) {
            const ops::SampleOptions options{
                .temperature = temperature,
                .top_k = top_k,
                .top_p = top_p,
                .min_p = min_p,
                .seed = seed,
                .step = step,
                .position = position.is_none() ? nullptr : &read_array("sample", "position", position)};
            return run_on(logits.device(), [&] { return ops::sample(logits, options); });
        },
        nb::arg("logits"), nb::kw_only(), nb::arg("temperature") = 1.0, nb::arg("top_k") = 0,
        nb::arg("top_p") = 1.0, nb::arg("min_p") = 0.0, nb::arg("seed") = 0, nb::arg("step") = 0,
        nb::arg("position").none() = nb::none(),
        "A token for each row of logits (..., n) of float32, float16 or bfloat16: int32 of shape (...).\n\n"
        "Drawn from softmax(logits / temperature), of which stay, in this order: the top_k likeliest (0: "
        "all); of\n"
        "these the fewest whose probabilities reach top_p of theirs together; of these what is at least "
        "min_p\n"
        "times as likely as the likeliest. Equals rank by the lower id. temperature 0 takes the largest "
        "logit.\n\n"
        "The draw is number `step` of the seed's (Philox4x32-10, Salmon et al., SC 2011), one for each row, "
        "and\n"
        "the same on every device and in every run. `position`, an int32 array of shape (1,) on the device, "
        "is\n"
        "added to `step`, for graphs. A row with a NaN, or whose largest logit is infinite, gives -1. "
        "Raises\n"
        "InvalidValueError for options out of range or more than 2**23 logits a row, InvalidTypeError for "
        "other\n"
        "dtypes.");
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
