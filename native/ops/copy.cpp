// Copies, conversions and fills: what astype, contiguous and assign are made of.
#include <algorithm>

#include "base/error.hpp"
#include "kernels/elementwise/copy.hpp"
#include "kernels/elementwise/fill.hpp"
#include "ops/collapse.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/scalar_bits.hpp"
#include "ops/transpose.hpp"

namespace gpk::ops {

namespace {

bool is_one_run(const kernels::Layout<2>& layout) {
    return layout.rank == 1 && layout.axis[0].stride[0] == 1 && layout.axis[0].stride[1] == 1;
}

void copy_elements(const Array& to, const Array& from, const kernels::Layout<2>& layout) {
    Device& device = to.device();
    const int element_bytes = static_cast<int>(itemsize(to.dtype()));
    if (is_one_run(layout)) {
        const auto& stream = current_stream(device);
        const UseScope scope;
        from.storage()->before_read(stream);
        to.storage()->before_write(stream);
        device.launcher().copy_on_device(*stream, to.data(), from.data(), to.nbytes());
        return;
    }
    kernels::CopyParams params{
        .layout = layout, .to = to.as(), .from = from.as(), .element_bytes = element_bytes};
    params.element_bytes = widen<2>(params.layout, element_bytes, {to.data(), from.data()});
    if (copy_transposed(params.layout, params.element_bytes, to, from)) return;
    launch(kernels::copy_kernel(), streaming_grid(to.device(), params.layout.count), params,
           {.bytes = 2.0 * static_cast<double>(to.nbytes())}, {&from}, {&to});
}

void convert_elements(const Array& to, const Array& from, const kernels::Layout<2>& layout) {
    const Cost cost{.flops = static_cast<double>(layout.count),
                    .bytes = static_cast<double>(layout.count) *
                             static_cast<double>(itemsize(to.dtype()) + itemsize(from.dtype()))};
    const Kernel* contiguous_kernel = kernels::convert_contiguous(from.dtype(), to.dtype());
    if (contiguous_kernel != nullptr && is_one_run(layout) && (to.data() | from.data()) % 16 == 0) {
        const std::int64_t pack =
            16 / static_cast<std::int64_t>(std::max(itemsize(to.dtype()), itemsize(from.dtype())));
        launch(*contiguous_kernel, packs_grid(layout.count, pack),
               kernels::ConvertContiguousParams{.count = layout.count, .to = to.as(), .from = from.as()},
               cost, {&from}, {&to});
        return;
    }
    launch(kernels::convert_strided(kernels::compute_type(from.dtype())),
           streaming_grid(to.device(), layout.count),
           kernels::ConvertParams{.layout = layout,
                                  .to = to.as(),
                                  .from = from.as(),
                                  .to_dtype = to.dtype(),
                                  .from_dtype = from.dtype()},
           cost, {&from}, {&to});
}

// to[...] = from, which has to's shape or broadcasts to it and shares no elements with it.
void copy_into(const Array& to, const Array& from) {
    if (to.size() == 0) return;
    if (to.dtype() != from.dtype() && runs_across(from)) return copy_into(to, contiguous(from));
    const auto layout =
        collapse<2>(to.shape(), {to.strides(), broadcast_strides(from.shape(), from.strides(), to.shape())});
    if (to.dtype() == from.dtype()) {
        copy_elements(to, from, layout);
    } else {
        convert_elements(to, from, layout);
    }
}

// NumPy lets an assignment drop leading axes of extent 1.
Array without_leading_ones(Array from, int rank) {
    while (from.rank() > rank && from.shape()[0] == 1) from = from.squeeze(0);
    return from;
}

}  // namespace

Array astype(const Array& x, DType dtype) {
    Array out = Array::empty(x.device(), x.shape(), dtype);
    copy_into(out, x);
    return out;
}

Array contiguous(const Array& x) { return x.is_contiguous() ? x : astype(x, x.dtype()); }

void assign(const Array& to, const Array& from) {
    common_device("assign", {&to, &from});
    require_writable("assign", "to", to);
    Array source = without_leading_ones(from, to.rank());
    if (source.shape() != to.shape()) source.broadcast_to(to.shape());  // throws where it does not fit
    if (writes_over(to, source)) source = astype(source, to.dtype());
    copy_into(to, source);
}

void assign(const Array& to, const Scalar& value) {
    require_writable("assign", "to", to);
    const std::uint64_t bits = scalar_bits("assign", value, to.dtype());
    if (to.size() == 0) return;
    Device& device = to.device();
    const Pattern pattern = repeat_bits(bits, to.dtype());
    kernels::FillParams params{.layout = collapse<1>(to.shape(), {to.strides()}),
                               .value = {pattern.words[0], pattern.words[1]},
                               .to = to.as(),
                               .element_bytes = static_cast<std::int32_t>(itemsize(to.dtype()))};
    const bool one_byte = repeat_bits(bits & 0xff, DType::uint8).words[0] == pattern.words[0];
    if (one_byte && params.layout.rank == 1 && params.layout.axis[0].stride[0] == 1) {
        const auto& stream = current_stream(device);
        const UseScope scope;
        to.storage()->before_write(stream);
        device.launcher().fill(*stream, to.data(), static_cast<std::uint8_t>(bits), to.nbytes());
        return;
    }
    params.element_bytes = widen<1>(params.layout, params.element_bytes, {to.data()});
    launch(kernels::fill_kernel(), streaming_grid(to.device(), params.layout.count), params,
           {.bytes = static_cast<double>(to.nbytes())}, {}, {&to});
}

}  // namespace gpk::ops
