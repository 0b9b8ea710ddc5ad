#include "kernels/reduce/variance.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/reduce.hpp"
#include "ops/reduce_layout.hpp"

namespace gpk::ops {

Array variance(const Array& x, const Dims& axes, double correction, bool keepdims, bool root) {
    const char* call = root ? "std" : "var";
    if (is_float8(x.dtype())) {
        throw error(ErrorKind::type, {.call = call,
                                      .argument = "x",
                                      .expected = "a dtype with arithmetic",
                                      .got = std::string(name(x.dtype())),
                                      .fix = "convert with astype first"});
    }
    if (!std::isfinite(correction)) {
        throw error(
            ErrorKind::value,
            {.call = call, .argument = "correction", .expected = "a finite number", .got = str(correction)});
    }
    const ReducedAxes reduced = reduced_axes(call, axes, x.rank());
    const Array input = is_floating(x.dtype()) ? x : astype(x, DType::float64);
    const DType dtype = input.dtype();
    ReduceLayout layout = dimensions_of(input, reduced, true);
    Device& device = x.device();
    const Array result = Array::empty(device, result_shape(x, reduced, keepdims), dtype);
    if (layout.outputs == 0) return result;

    const Stream& stream = *current_stream(device);
    const std::int64_t vector = vector_elements(dtype);
    share(layout, walk_of(layout, input.data(), vector), vector, stream, true);
    const auto params = [&](const Array& from, const Array& to, const ReduceLayout& walked) {
        const double count = static_cast<double>(layout.count);
        return kernels::VarianceParams{.input = from.as<const void>(),
                                       .output = to.as<void>(),
                                       .layout = walked,
                                       .divisor = std::max(count - correction, 0.0),
                                       .root = root};
    };
    const double elements = static_cast<double>(layout.outputs) * static_cast<double>(layout.count);
    const Cost cost{.flops = 4 * elements, .bytes = static_cast<double>(input.nbytes())};
    const Kernel& kernel = kernels::variance(dtype, layout.walk);
    if (layout.parts == 1) {
        launch(kernel, config_of(layout, vector), params(input, result, layout), cost, {&input}, {&result});
        return result;
    }
    const std::int64_t bytes = kernels::moments_bytes(dtype);
    const Array partial = Array::empty(device, {layout.parts, layout.outputs, bytes}, DType::uint8);
    launch(kernel, config_of(layout, vector), params(input, partial, layout), cost, {&input}, {&partial});
    ReduceLayout second = over_parts(layout);
    share(second, ReduceWalk::elements, 1, stream, false);
    launch(kernels::variance_join(dtype), config_of(second, 1), params(partial, result, second),
           {.bytes = static_cast<double>(partial.nbytes())}, {&partial}, {&result});
    return result;
}

}  // namespace gpk::ops
