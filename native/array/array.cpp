#include "array/array.hpp"

#include <algorithm>

#include "array/array_transfer.hpp"
#include "base/error.hpp"
#include "memory/pinned.hpp"

namespace gpk {

namespace {

// Throws Error (value) for a shape whose bytes, or whose strides in bytes where it has no elements, leave
// int64.
void check_bytes(const char* call, const Dims& shape, DType dtype) {
    element_count(shape);
    std::int64_t bytes = static_cast<std::int64_t>(itemsize(dtype));
    for (const std::int64_t extent : shape) {
        if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(extent, 1), &bytes)) {
            throw error(ErrorKind::value, {.call = call,
                                           .argument = "shape",
                                           .expected = "fewer than 2**63 bytes",
                                           .got = str(to_string(shape), " of ", name(dtype))});
        }
    }
}

}  // namespace

Array Array::empty(Device& device, const Dims& shape, DType dtype) {
    check_bytes("empty", shape, dtype);
    const auto bytes = static_cast<std::size_t>(element_count(shape)) * itemsize(dtype);
    return Array(Storage::allocate(device, bytes), dtype, shape, contiguous_strides(shape));
}

bool Array::is_contiguous() const noexcept {
    std::int64_t step = 1;
    bool gaps = false;
    for (int i = rank() - 1; i >= 0; --i) {
        if (shape_[i] == 0) return true;
        gaps |= shape_[i] != 1 && strides_[i] != step;
        step *= shape_[i];
    }
    return !gaps;
}

Array Array::readonly() const {
    Array view = *this;
    view.writable_ = false;
    return view;
}

Array Array::transpose(const Dims& axes) const {
    Dims order = axes;
    if (axes.empty()) {
        for (int i = rank() - 1; i >= 0; --i) order.push_back(i);
    }
    if (order.size() != rank()) {
        throw error(ErrorKind::value, {.call = "transpose",
                                       .argument = "axes",
                                       .expected = str(rank(), " axes, each once"),
                                       .got = to_string(axes)});
    }
    Array view = *this;
    unsigned seen = 0;
    for (int i = 0; i < rank(); ++i) {
        const int axis = normalize_axis("transpose", order[i], rank());
        if (seen & (1u << axis)) {
            throw error(ErrorKind::value, {.call = "transpose",
                                           .argument = "axes",
                                           .expected = "each axis once",
                                           .got = to_string(axes)});
        }
        seen |= 1u << axis;
        view.shape_[i] = shape_[axis];
        view.strides_[i] = strides_[axis];
    }
    return view;
}

Array Array::broadcast_to(const Dims& shape) const {
    if (shape == shape_) return *this;
    const int added = shape.size() - rank();
    bool fits = added >= 0;
    for (int i = 0; fits && i < rank(); ++i) fits = shape_[i] == shape[i + added] || shape_[i] == 1;
    if (!fits) {
        throw error(ErrorKind::value, {.call = "broadcast_to",
                                       .argument = "shape",
                                       .expected = str("a shape that ", to_string(shape_), " broadcasts to"),
                                       .got = to_string(shape)});
    }
    check_bytes("broadcast_to", shape, dtype_);
    Array view = *this;
    view.shape_ = shape;
    view.strides_ = Dims::filled(shape.size(), 0);
    for (int i = 0; i < rank(); ++i) view.strides_[i + added] = shape_[i] == 1 ? 0 : strides_[i];
    view.writable_ = false;  // one element may stand in several places
    return view;
}

Array Array::expand_dims(int axis) const {
    const int position = normalize_axis("expand_dims", axis, rank() + 1);
    Array view = *this;
    view.shape_.insert(position, 1);
    view.strides_.insert(position, 0);
    return view;
}

Array Array::squeeze(int axis) const {
    const int position = normalize_axis("squeeze", axis, rank());
    if (shape_[position] != 1) {
        throw error(ErrorKind::value, {.call = "squeeze",
                                       .argument = "axis",
                                       .expected = "an axis of extent 1",
                                       .got = str("axis ", axis, " of shape ", to_string(shape_))});
    }
    Array view = *this;
    view.shape_.erase(position);
    view.strides_.erase(position);
    return view;
}

Array Array::slice(int axis, std::int64_t start, std::int64_t step, std::int64_t count) const {
    const int position = normalize_axis("slice", axis, rank());
    const std::int64_t extent = shape_[position];
    const bool inside = count == 0 || (count > 0 && start >= 0 && start < extent && step != 0 &&
                                       (step > 0 ? (extent - 1 - start) / step >= count - 1
                                                 : step != INT64_MIN && start / -step >= count - 1));
    if (!inside) {
        throw error(ErrorKind::index, {.call = "slice",
                                       .expected = str("elements inside an axis of extent ", extent),
                                       .got = str("start ", start, ", step ", step, ", count ", count)});
    }
    Array view = *this;
    view.shape_[position] = count;
    view.strides_[position] = count > 1 ? strides_[position] * step : strides_[position];
    if (count > 0) view.offset_ += start * strides_[position];
    return view;
}

Array Array::select(int axis, std::int64_t index) const {
    const int position = normalize_axis("select", axis, rank());
    const std::int64_t extent = shape_[position];
    if (index < -extent || index >= extent) {
        throw error(ErrorKind::index, {.call = "index",
                                       .expected = str(-extent, " to ", extent - 1, " on axis ", position),
                                       .got = str(index)});
    }
    Array view = *this;
    view.offset_ += (index < 0 ? index + extent : index) * strides_[position];
    view.shape_.erase(position);
    view.strides_.erase(position);
    return view;
}

Dims resolve_reshape(const Dims& shape, std::int64_t size) {
    Dims out = shape;
    int inferred = -1;
    std::int64_t known = 1;
    bool valid = true;
    for (int i = 0; i < shape.size(); ++i) {
        if (shape[i] == -1 && inferred < 0) {
            inferred = i;
        } else {
            valid &=
                shape[i] >= 0 && !__builtin_mul_overflow(known, std::max<std::int64_t>(shape[i], 0), &known);
        }
    }
    if (valid && inferred >= 0) {
        valid = known > 0 && size % known == 0;
        if (valid) out[inferred] = size / known;
    } else if (valid) {
        valid = known == size;
    }
    if (!valid) {
        throw error(ErrorKind::value, {.call = "reshape",
                                       .argument = "shape",
                                       .expected = str("a shape of ", size, " elements"),
                                       .got = to_string(shape)});
    }
    return out;
}

std::optional<Array> Array::reshape_view(const Dims& wanted) const {
    const Dims shape = resolve_reshape(wanted, size());
    check_bytes("reshape", shape, dtype_);
    Array view = *this;
    view.shape_ = shape;
    view.strides_ = contiguous_strides(shape);
    if (size() == 0 || is_contiguous()) return view;
    // Walk both shapes from the left in groups of equal products; inside a group of old axes the
    // strides must chain (NumPy's attempt_nocopy_reshape does the same).
    Dims old_shape, old_strides;
    for (int i = 0; i < rank(); ++i) {
        if (shape_[i] == 1) continue;
        old_shape.push_back(shape_[i]);
        old_strides.push_back(strides_[i]);
    }
    int from = 0, to = 0;
    while (from < old_shape.size() && to < shape.size()) {
        int from_end = from + 1, to_end = to + 1;
        std::int64_t old_count = old_shape[from], new_count = shape[to];
        while (old_count != new_count) {
            if (new_count < old_count) {
                new_count *= shape[to_end++];
            } else {
                old_count *= old_shape[from_end++];
            }
        }
        for (int i = from; i + 1 < from_end; ++i) {
            if (old_strides[i] != old_strides[i + 1] * old_shape[i + 1]) return std::nullopt;
        }
        std::int64_t step = old_strides[from_end - 1];
        for (int i = to_end - 1; i >= to; --i) {
            view.strides_[i] = step;
            step *= shape[i];
        }
        from = from_end;
        to = to_end;
    }
    return view;
}

namespace {

void refuse_in_capture(const char* call, const Stream& stream) {
    if (stream.capture() == nullptr) return;
    throw error(ErrorKind::unsupported, {.call = call,
                                         .got = "a copy between host and device during a graph capture",
                                         .fix = "copy before the capture, or after a launch"});
}

}  // namespace

void Array::copy_from_host(const void* source) const {
    const auto& stream = current_stream(device());
    refuse_in_capture("from_numpy", *stream);
    if (copies_by_transfer(device(), TransferKind::to_device, nbytes())) {
        transfer_to_device(*this, source, {.waited_for = true})->get();
        return;
    }
    const UseScope scope;
    storage_->before_write(stream);
    device().launcher().copy_to_device(*stream, data(), source, nbytes());
    // A pinned source may be read later than the call returns.
    if (nbytes() > 0 && PinnedPool::of(device()).contains(source, nbytes())) stream->synchronize();
}

void Array::copy_to_host(void* target) const {
    const auto& stream = current_stream(device());
    refuse_in_capture("to_numpy", *stream);
    if (copies_by_transfer(device(), TransferKind::to_host, nbytes())) {
        transfer_to_host(*this, target, {.waited_for = true})->get();
        return;
    }
    const UseScope scope;
    storage_->before_read(stream);
    device().launcher().copy_to_host(*stream, target, data(), nbytes());
    stream->synchronize();
}

}  // namespace gpk
