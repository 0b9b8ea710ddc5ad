// Attention, as gp.nn gives it.
#include "ops/attention.hpp"

#include <nanobind/stl/optional.h>

#include "bindings/common.hpp"

namespace gpk::python {

namespace {

[[noreturn]] void refuse_window(const char* call, nb::handle got) {
    throw error(ErrorKind::value,
                {.call = call,
                 .argument = "window",
                 .expected = "a number of keys that is not negative, (before, after) or None",
                 .got = nb::cast<std::string>(nb::repr(got))});
}

// None, the keys seen on either side of a query's place, or (before, after), of which each may be None.
void read_window(const char* call, nb::handle window, ops::AttentionOptions& options) {
    const auto read = [&](nb::handle value) -> std::int64_t {
        if (value.is_none()) return -1;
        std::int64_t keys = -1;
        if (PyBool_Check(value.ptr()) || !nb::try_cast<std::int64_t>(value, keys) || keys < 0)
            refuse_window(call, window);
        return keys;
    };
    if (nb::isinstance<nb::tuple>(window) || nb::isinstance<nb::list>(window)) {
        if (nb::len(window) != 2) refuse_window(call, window);
        options.left = read(window[0]);
        options.right = read(window[1]);
    } else {
        options.left = options.right = read(window);
    }
}

// A number, or an array of one for each head.
ops::AttentionScale read_scale(const char* call, const char* argument, nb::handle scale) {
    double value = 1;
    const bool is_number =
        PyFloat_Check(scale.ptr()) || (PyLong_Check(scale.ptr()) && !PyBool_Check(scale.ptr()));
    if (is_number && nb::try_cast<double>(scale, value)) return {.value = value};
    return {.each = &read_array(call, argument, scale)};
}

// What both calls take, with the arrays that the options name kept alive.
struct Options {
    Options(const char* call, bool causal, std::optional<double> scale, nb::handle window,
            std::optional<double> soft_cap, nb::handle slopes) {
        values.causal = causal;
        values.scale = scale;
        read_window(call, window, values);
        values.soft_cap = soft_cap.value_or(0);
        if (!slopes.is_none()) values.alibi_slopes = &read_array(call, "alibi_slopes", slopes);
    }
    ops::AttentionOptions values;
};

constexpr const char* kOptions =
    "scale: of the products before the softmax; 1 / sqrt(d) by default. window: how many keys before and "
    "after\n"
    "its own place a query sees: one number, or (before, after), where None is all. causal: none after. "
    "soft_cap:\n"
    "scores become soft_cap * tanh(score / soft_cap). alibi_slopes: float32 (heads,); slope * |key - place| "
    "is\n"
    "taken from the scores (Press et al. 2021, arXiv:2108.12409).";

}  // namespace

void bind_attention(nb::module_& m) {
    using Scale = std::optional<double>;
    m.def(
        "attention",
        [](ArrayArg q, ArrayArg k, ArrayArg v, bool causal, Scale scale, nb::object window, Scale soft_cap,
           nb::object slopes, nb::object mask, nb::object q_scale, nb::object k_scale, nb::object v_scale,
           nb::object dtype, ArrayArg out) {
            constexpr const char* kCall = "attention";
            Options options(kCall, causal, scale, window, soft_cap, slopes);
            if (!mask.is_none()) options.values.mask = &read_array(kCall, "mask", mask);
            options.values.q_scale = read_scale(kCall, "q_scale", q_scale);
            options.values.k_scale = read_scale(kCall, "k_scale", k_scale);
            options.values.v_scale = read_scale(kCall, "v_scale", v_scale);
            if (!dtype.is_none()) options.values.dtype = read_dtype(dtype);
            const Array &query = read_array(kCall, "q", q), &key = read_array(kCall, "k", k),
                        &value = read_array(kCall, "v", v);
            const Array* target = read_out(kCall, out);
            return run_on(query.device(),
                          [&] { return ops::attention(query, key, value, options.values, target); });
        },
        nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::kw_only(), nb::arg("causal") = false,
        nb::arg("scale").none() = nb::none(), nb::arg("window").none() = nb::none(),
        nb::arg("soft_cap").none() = nb::none(), nb::arg("alibi_slopes").none() = nb::none(),
        nb::arg("mask").none() = nb::none(), nb::arg("q_scale") = 1.0, nb::arg("k_scale") = 1.0,
        nb::arg("v_scale") = 1.0, nb::arg("dtype").none() = nb::none(), nb::arg("out").none() = nb::none(),
        str("softmax(q k^T * scale) v, for each head.\n\n"
            "q: (batch, heads, tokens, d); k and v: (batch, kv_heads, keys, d) of the same dtype, float32, "
            "float16\n"
            "or bfloat16; heads is a multiple of kv_heads, of which each serves as many heads, d at most "
            "256.\n"
            "Gives the shape of q. The last query stands at the last key's place, each other one key before "
            "the\n"
            "next; a query that sees no key gives zeros. mask: broadcasts to (batch, heads, tokens, keys); "
            "bool:\n"
            "which keys are seen; the dtype of q or float32: added to the scores.\n",
            kOptions,
            "\n\nq, k and v may all be float8_e4m3: each number stands for q_scale, k_scale or v_scale times "
            "itself, a\n"
            "positive number or a float32 array that broadcasts to (batch, heads), of k and v (batch, "
            "kv_heads). The\n"
            "result is then of `dtype`, float16 or bfloat16 (the default), and an added mask is float32. On "
            "SM 90\n"
            "the weights of the softmax are rounded to float8_e4m3 too, so that the relative error is near "
            "3 %.\n"
            "What has a d that is no multiple of 16, or another GPU, is multiplied in 16 bits.\n\n"
            "The fast kernels want d and strides in multiples of 8 elements; what has others is copied "
            "or goes\n"
            "slower. Raises InvalidValueError for shapes and InvalidTypeError for dtypes that do not fit.")
            .c_str());
    m.def(
        "attention_packed",
        [](ArrayArg q, ArrayArg k, ArrayArg v, ArrayArg q_starts, ArrayArg k_starts, std::int64_t max_tokens,
           bool causal, Scale scale, nb::object window, Scale soft_cap, nb::object slopes, ArrayArg out) {
            constexpr const char* kCall = "attention_packed";
            const Options options(kCall, causal, scale, window, soft_cap, slopes);
            const Array &query = read_array(kCall, "q", q), &key = read_array(kCall, "k", k),
                        &value = read_array(kCall, "v", v),
                        &first_q = read_array(kCall, "q_starts", q_starts),
                        &first_k = read_array(kCall, "k_starts", k_starts);
            const Array* target = read_out(kCall, out);
            return run_on(query.device(), [&] {
                return ops::attention_packed(query, key, value, first_q, first_k, max_tokens, options.values,
                                             target);
            });
        },
        nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("q_starts"), nb::arg("k_starts"),
        nb::arg("max_tokens"), nb::kw_only(), nb::arg("causal") = false, nb::arg("scale").none() = nb::none(),
        nb::arg("window").none() = nb::none(), nb::arg("soft_cap").none() = nb::none(),
        nb::arg("alibi_slopes").none() = nb::none(), nb::arg("out").none() = nb::none(),
        str("Attention of sequences of different lengths, one after the other.\n\n"
            "q: (tokens, heads, d); k and v: (keys, kv_heads, d). q_starts and k_starts: int32 (sequences + "
            "1,),\n"
            "where each sequence begins, and the last one's end. max_tokens: the most queries that a "
            "sequence\n"
            "has; of a longer one the rest, and what belongs to no sequence, is not set. Otherwise as "
            "attention.\n",
            kOptions,
            "\n\nRaises InvalidValueError for shapes and InvalidTypeError for dtypes that do not fit.")
            .c_str());
    m.def(
        "attention_cached",
        [](ArrayArg q, ArrayArg keys, ArrayArg values, ArrayArg positions, nb::object pages, double key_scale,
           double value_scale, Scale scale, std::optional<std::int64_t> window, Scale soft_cap,
           nb::object slopes, ArrayArg out) {
            constexpr const char* kCall = "attention_cached";
            ops::AttentionOptions options{.scale = scale, .soft_cap = soft_cap.value_or(0)};
            if (window && *window < 0) refuse_window(kCall, nb::cast(*window));
            options.left = window.value_or(-1);
            if (!slopes.is_none()) options.alibi_slopes = &read_array(kCall, "alibi_slopes", slopes);
            ops::CacheOptions cache{.key_scale = key_scale, .value_scale = value_scale};
            if (!pages.is_none()) cache.pages = &read_array(kCall, "pages", pages);
            const Array &query = read_array(kCall, "q", q), &key = read_array(kCall, "keys", keys),
                        &value = read_array(kCall, "values", values),
                        &position = read_array(kCall, "positions", positions);
            const Array* target = read_out(kCall, out);
            return run_on(query.device(), [&] {
                return ops::attention_cached(query, key, value, position, cache, options, target);
            });
        },
        nb::arg("q"), nb::arg("keys"), nb::arg("values"), nb::arg("positions"), nb::kw_only(),
        nb::arg("pages").none() = nb::none(), nb::arg("key_scale") = 1.0, nb::arg("value_scale") = 1.0,
        nb::arg("scale").none() = nb::none(), nb::arg("window").none() = nb::none(),
        nb::arg("soft_cap").none() = nb::none(), nb::arg("alibi_slopes").none() = nb::none(),
        nb::arg("out").none() = nb::none(),
        "Attention of new tokens, a step's or a prompt's, over each sequence's cache of keys and values.\n\n"
        "q: (batch, tokens, heads, d), float32, float16 or bfloat16. keys and values: (batch, kv_heads, "
        "capacity,\n"
        "d) of q's dtype, or, for 16-bit ones, float8_e4m3, of which each number stands for key_scale or\n"
        "value_scale times itself. With pages, int32 (batch, pages of a sequence): (pages, kv_heads, "
        "page_tokens,\n"
        "d), and pages[b, i] says which holds the keys i * page_tokens and on of sequence b. positions: "
        "int32\n"
        "(batch,), where the first token stands among its sequence's keys; the others follow it, and each "
        "sees\n"
        "the keys up to its own place, of those before it the nearest `window` where that is given. Gives "
        "the\n"
        "shape of q. scale, soft_cap and alibi_slopes are those of attention.\n\n"
        "positions and pages may be written by earlier work on the device; numbers outside are taken for "
        "the\n"
        "nearest that are not. Raises InvalidValueError for shapes and InvalidTypeError for dtypes that do "
        "not "
        "fit.");
}

}  // namespace gpk::python
