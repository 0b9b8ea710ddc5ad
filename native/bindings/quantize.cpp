// Weights in 8 or 4 bits.
#include "ops/quantize.hpp"

#include <nanobind/stl/optional.h>

#include "bindings/common.hpp"

namespace gpk::python {

using ops::QuantizedWeight;

void bind_quantize(nb::module_& m) {
    nb::class_<QuantizedWeight>(
        m, "QuantizedWeight",
        "A weight (n, k) in 8 or 4 bits, as gp.nn.quantize makes it. gp.nn.linear takes it "
        "as it takes an array.")
        .def_prop_ro(
            "format", [](const QuantizedWeight& w) { return std::string(ops::name(w.format)); },
            "'int8', 'int4', 'fp8' or 'nvfp4'.")
        .def_prop_ro(
            "shape", [](const QuantizedWeight& w) { return nb::make_tuple(w.n, w.k); },
            nb::sig("def shape(self) -> tuple[int, int]"), "(n, k), of the weight that it stands for.")
        .def_prop_ro(
            "dtype", [](const QuantizedWeight& w) { return to_python(w.dtype); },
            nb::sig("def dtype(self) -> DType"), "The dtype of the weight that it was made from.")
        .def_prop_ro(
            "device", [](const QuantizedWeight& w) { return to_python(w.data.device()); },
            nb::sig("def device(self) -> Device"))
        .def_prop_ro(
            "group",
            [](const QuantizedWeight& w) -> std::optional<std::int64_t> {
                if (w.group == 0) return std::nullopt;
                return w.group;
            },
            "How many weights along k share a scale; None where a row does, and for nvfp4.")
        .def_prop_ro("nbytes", &QuantizedWeight::nbytes, "Bytes on the device: codes, scales and offsets.")
        .def(
            "dequantize",
            [](const QuantizedWeight& w, DTypeArg dtype) {
                const DType type = read_dtype_or(dtype, w.dtype);
                return run_on(w.data.device(), [&] { return ops::dequantize(w, type); });
            },
            nb::arg("dtype").none() = nb::none(),
            "The weight as an array (n, k), in the dtype that it was made from or another of float32, "
            "float16 and\n"
            "bfloat16.")
        .def("__repr__", [](const QuantizedWeight& w) {
            return str("QuantizedWeight(", ops::name(w.format), ", shape=(", w.n, ", ", w.k,
                       "), nbytes=", w.nbytes(), ")");
        });
    m.def(
        "quantize",
        [](const Array& weight, const std::string& format, std::optional<std::int64_t> group,
           bool zero_points, bool per_tensor) {
            const QuantFormat wanted = ops::quant_format_from_name(format);
            const ops::QuantizeOptions options{
                .group = group, .zero_points = zero_points, .per_tensor = per_tensor};
            return run_on(weight.device(), [&] { return ops::quantize(weight, wanted, options); });
        },
        nb::arg("weight"), nb::arg("format"), nb::kw_only(), nb::arg("group").none() = nb::none(),
        nb::arg("zero_points") = false, nb::arg("per_tensor") = false,
        "A weight (n, k) of float32, float16 or bfloat16 in fewer bits, made on its device. Each value goes "
        "to the\n"
        "nearest that its scale allows, ties to even:\n\n"
        "  int8   scale = max |w| / 127 of the row\n"
        "  int4   scale = max |w| / 7 of a group of 32, 64 or 128 (the default) along k; with zero_points\n"
        "         (max - min) / 15 and a zero point; scales are rounded to bfloat16 and kept, as zero points "
        "are, in 4 bytes\n"
        "  fp8    e4m3; scale = max |w| / 448 of the row, or with per_tensor of the weight\n"
        "  nvfp4  e2m1; scale = max |w| / 6 of each 16 along k, itself e4m3, times one float32 of the "
        "weight\n\n"
        "A row (group, block, weight) with a NaN or an infinity becomes NaN. Raises InvalidValueError for "
        "another\n"
        "format, shape or group, InvalidTypeError for another dtype.");
    m.def(
        "linear",
        [](const Array& x, const QuantizedWeight& weight, ArrayArg bias, DTypeArg dtype, ArrayArg out_) {
            const Array* offset = bias.is_none() ? nullptr : &read_array("linear", "bias", bias);
            std::optional<DType> type;
            if (!dtype.is_none()) type = read_dtype(dtype);
            const Array* out = read_out("linear", out_);
            return run_on(x.device(), [&] { return ops::linear(x, weight, offset, type, out); });
        },
        nb::arg("x"), nb::arg("weight"), nb::arg("bias").none() = nb::none(), nb::kw_only(),
        nb::arg("dtype").none() = nb::none(), nb::arg("out").none() = nb::none(),
        "x @ weight.T + bias with a QuantizedWeight (n, k): x (..., k) of float32, float16 or bfloat16, bias "
        "(n,).\n\n"
        "Few rows multiply with the codes, which become numbers in registers (up to 256 on SM 90, 48\n"
        "on other GPUs, of float32 16, and 24 on the host); more with parts of the dequantised weight.\n"
        "From 17 rows on the weight may be rounded to x's dtype. Sums are float32; the result has x's\n"
        "dtype, or float32 by dtype=. An infinity in x may make its row NaN, as codes are of numbers with\n"
        "an offset. Raises InvalidValueError where shapes do not fit, InvalidTypeError for other dtypes.");
}

}  // namespace gpk::python
