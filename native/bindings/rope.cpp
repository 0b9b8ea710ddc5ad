// Rotary position embedding and its frequencies.
#include "bindings/common.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <limits>

#include "ops/attention.hpp"
#include "ops/creation.hpp"
#include "ops/rope_frequencies.hpp"

namespace gpk::python {

namespace {

using Frequencies = nb::typed<nb::tuple, Array, double>;

Frequencies frequencies(std::int64_t d, const std::string& variant, double theta, double factor,
                        double original_max_positions, double sequence_length, double low_freq_factor,
                        double high_freq_factor, double beta_fast, double beta_slow, bool truncate,
                        double mscale, double mscale_all_dim, std::optional<double> attention_factor,
                        std::vector<double> short_factor, std::vector<double> long_factor, DeviceArg device) {
    constexpr const char* kCall = "rope_frequencies";
    Device& on = read_device(device);
    const ops::RopeFrequencies made =
        ops::rope_frequencies(kCall, {.variant = ops::rope_variant(kCall, variant),
                                      .d = d,
                                      .theta = theta,
                                      .factor = factor,
                                      .original_max_positions = original_max_positions,
                                      .sequence_length = sequence_length,
                                      .low_freq_factor = low_freq_factor,
                                      .high_freq_factor = high_freq_factor,
                                      .beta_fast = beta_fast,
                                      .beta_slow = beta_slow,
                                      .truncate = truncate,
                                      .mscale = mscale,
                                      .mscale_all_dim = mscale_all_dim,
                                      .attention_factor = attention_factor,
                                      .short_factor = std::move(short_factor),
                                      .long_factor = std::move(long_factor)});
    Array table = Array::empty(on, {static_cast<std::int64_t>(made.inv_freq.size())}, DType::float32);
    table.copy_from_host(made.inv_freq.data());
    return Frequencies(nb::make_tuple(std::move(table), made.attention_factor));
}

// The position of the first token, as a number.
Scalar read_position(nb::handle value) {
    const auto number = read_number(value);
    if (!number || number->value.kind() != ScalarKind::integer) {
        throw error(ErrorKind::type, {.call = "rope",
                                      .argument = "position",
                                      .expected = "an int or an int32 array",
                                      .got = kind_of(value)});
    }
    if (!number->value.fits(DType::int32) || number->value.as_int64() < 0) {
        throw error(ErrorKind::value, {.call = "rope",
                                       .argument = "position",
                                       .expected = "a number from 0 to 2^31 - 1",
                                       .got = nb::cast<std::string>(nb::str(value))});
    }
    return number->value;
}

Array rope(const Array& x, nb::handle position, const Array& inv_freq, double factor, ArrayArg out) {
    const Array* target = read_out("rope", out);
    if (const Array* positions = try_array(position))
        return run_on(x.device(), [&] { return ops::rope(x, *positions, {inv_freq, factor}, target); });
    const Scalar first = read_position(position);
    return run_on(x.device(), [&] {
        return ops::rope(x, ops::full(x.device(), {1}, first, DType::int32), {inv_freq, factor}, target);
    });
}

}  // namespace

void bind_rope(nb::module_& m) {
    m.def(
        "rope_frequencies", &frequencies, nb::arg("d"), nb::arg("variant") = "plain", nb::kw_only(),
        nb::arg("theta") = 10000.0, nb::arg("factor") = 1.0, nb::arg("original_max_positions") = 8192.0,
        nb::arg("sequence_length") = 0.0, nb::arg("low_freq_factor") = 1.0, nb::arg("high_freq_factor") = 4.0,
        nb::arg("beta_fast") = 32.0, nb::arg("beta_slow") = 1.0, nb::arg("truncate") = true,
        nb::arg("mscale") = 0.0, nb::arg("mscale_all_dim") = 0.0,
        nb::arg("attention_factor").none() = nb::none(), nb::arg("short_factor") = std::vector<double>(),
        nb::arg("long_factor") = std::vector<double>(), nb::arg("device").none() = nb::none(),
        "(inv_freq, factor) for gp.nn.rope: float32 of shape (d / 2,), and what cosine and sine are "
        "multiplied by.\n\n"
        "d: elements of a head that turn. Pair i turns by position / theta ** (2 i / d), of which variant "
        "makes:\n"
        "  plain     nothing (Su et al. 2021, arXiv:2104.09864)\n"
        "  linear    its factor-th part (Chen et al. 2023, arXiv:2306.15595)\n"
        "  dynamic   that of a theta that grows with sequence_length over original_max_positions ('NTK')\n"
        "  yarn      plain where it turns beta_fast times over original_max_positions or more, linear below\n"
        "            beta_slow, between them in between (Peng et al. 2023, arXiv:2309.00071)\n"
        "  longrope  its short_factor[i]-th part; long_factor's for a sequence_length above\n"
        "            original_max_positions (Ding et al. 2024, arXiv:2402.13753)\n"
        "  llama3    as yarn, between the wavelengths original_max_positions / high_freq_factor and\n"
        "            / low_freq_factor\n"
        "attention_factor, where given, is the factor; else yarn and longrope have their own, and it is 1.\n"
        "Arguments are named as in Hugging Face's configurations, and the arithmetic is float32 as there.\n"
        "Raises InvalidValueError for numbers that make no table.");
    m.def(
        "rope", &rope, nb::arg("x"), nb::arg("position").none(), nb::arg("inv_freq"), nb::arg("factor") = 1.0,
        nb::kw_only(), nb::arg("out").none() = nb::none(),
        nb::sig("def rope(x: Array, position: Array | int, inv_freq: Array, factor: float = 1.0, *, "
                "out: Array | None = None) -> Array"),
        "Rotary position embedding: element i of each head turns with element i + pairs by the angle\n"
        "position * inv_freq[i], in float32; elements from 2 * pairs on stay (arXiv:2104.09864).\n\n"
        "x: (tokens, heads, d) or (batch, tokens, heads, d), float32, float16 or bfloat16, d even.\n"
        "position: of the first token, as an int or an int32 array of shape (1,), which a captured graph\n"
        "reads anew; or of every token, int32 of shape (tokens,). inv_freq: float32, (pairs,), at most d / "
        "2.\n"
        "factor multiplies cosine and sine. out may be x. Raises InvalidValueError or InvalidTypeError for\n"
        "shapes and dtypes that do not fit.");
}

}  // namespace gpk::python
