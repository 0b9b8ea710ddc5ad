// Convolution along a sequence.
#include "bindings/common.hpp"

#include "ops/conv1d.hpp"

namespace gpk::python {

namespace {

Array conv1d(const Array& x, const Array& weight, ArrayArg bias, std::int64_t stride, std::int64_t padding,
             std::int64_t dilation, std::int64_t groups) {
    const Array* added = bias.is_none() ? nullptr : &read_array("conv1d", "bias", bias);
    return run_on(x.device(), [&] {
        return ops::conv1d(x, weight, added,
                           {.stride = stride, .padding = padding, .dilation = dilation, .groups = groups});
    });
}

}  // namespace

void bind_conv1d(nb::module_& m) {
    m.def("conv1d", &conv1d, nb::arg("x"), nb::arg("weight"), nb::arg("bias").none() = nb::none(),
          nb::kw_only(), nb::arg("stride") = 1, nb::arg("padding") = 0, nb::arg("dilation") = 1,
          nb::arg("groups") = 1,
          "Convolution along the last axis (cross-correlation, as in all frameworks):\n"
          "y[b, o, l] = bias[o] + sum of weight[o, c, t] * x[b, c, l * stride + t * dilation - padding].\n\n"
          "x: (batch, channels, length) or (channels, length). weight: (outputs, channels / groups, taps); "
          "the\n"
          "g-th part of the outputs sees the g-th part of the channels. bias: (outputs,). padding: zeros at\n"
          "each end. All of one dtype: float32, float16 or bfloat16; sums are in float32. Gives (batch, "
          "outputs,\n"
          "positions) with positions = (length + 2 padding - dilation (taps - 1) - 1) // stride + 1. Raises\n"
          "InvalidValueError or InvalidTypeError for what does not fit.");
}

}  // namespace gpk::python
