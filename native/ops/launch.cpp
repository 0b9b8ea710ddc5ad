#include "ops/launch.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "runtime/tenant.hpp"

namespace gpk::ops {

Device& common_device(const char* call, std::initializer_list<const Array*> arrays) {
    Device* device = nullptr;
    for (const Array* array : arrays) {
        if (array == nullptr) continue;
        if (device == nullptr) device = &array->device();
        if (device != &array->device()) {
            throw error(ErrorKind::value, {.call = call,
                                           .expected = "arrays on one device",
                                           .got = str(device->name(), " and ", array->device().name()),
                                           .fix = "copy one of them to the other's device first"});
        }
    }
    return *device;
}

Array prepare_output(const char* call, Device& device, const Dims& shape, DType dtype, const Array* out) {
    if (out == nullptr) return Array::empty(device, shape, dtype);
    if (&out->device() != &device) {
        throw error(ErrorKind::value, {.call = call,
                                       .argument = "out",
                                       .expected = str("an array on ", device.name()),
                                       .got = str("one on ", out->device().name())});
    }
    if (out->dtype() != dtype) {
        throw error(ErrorKind::type, {.call = call,
                                      .argument = "out",
                                      .expected = std::string(name(dtype)),
                                      .got = std::string(name(out->dtype()))});
    }
    if (out->shape() != shape) {
        throw error(ErrorKind::value, {.call = call,
                                       .argument = "out",
                                       .expected = str("shape ", to_string(shape)),
                                       .got = to_string(out->shape())});
    }
    require_writable(call, "out", *out);
    return *out;
}

void require_writable(const char* call, const char* argument, const Array& array) {
    if (array.writable()) return;
    throw error(ErrorKind::value, {.call = call,
                                   .argument = argument,
                                   .expected = "a writable array",
                                   .got = "a read-only one",
                                   .fix = "copy it first"});
}

namespace {

// The bytes that a view touches, from its lowest to its highest element.
std::pair<std::int64_t, std::int64_t> byte_range(const Array& array) {
    const auto size = static_cast<std::int64_t>(itemsize(array.dtype()));
    std::int64_t low = array.offset(), high = low;
    for (int i = 0; i < array.rank(); ++i) {
        const std::int64_t reach = (array.shape()[i] - 1) * array.strides()[i];
        (reach < 0 ? low : high) += reach;
    }
    return {low * size, (high + 1) * size};
}

}  // namespace

bool overlaps(const Array& a, const Array& b) {
    if (a.storage() != b.storage() || a.size() == 0 || b.size() == 0) return false;
    const auto [a_low, a_high] = byte_range(a);
    const auto [b_low, b_high] = byte_range(b);
    return a_low < b_high && b_low < a_high;
}

bool writes_over(const Array& to, const Array& from) {
    const bool same_elements = to.offset() == from.offset() && to.dtype() == from.dtype() &&
                               to.shape() == from.shape() && to.strides() == from.strides();
    return !same_elements && overlaps(to, from);
}

std::int64_t slices_for(const Stream& stream, const Kernel& kernel, const LaunchConfig& whole,
                        const Cost& cost, std::int64_t blocks) {
    LaunchHook* governor = stream.tenant() ? stream.tenant()->governor() : nullptr;
    if (governor == nullptr) return 1;
    if (blocks == 0) blocks = std::int64_t{whole.grid.x} * whole.grid.y * whole.grid.z;
    return governor->slices(
        {WorkKind::kernel, kernel.name(), &stream, whole, cost, stream.capture() != nullptr},
        std::max<std::int64_t>(blocks / std::max(stream.multiprocessors(), 1), 1));
}

LaunchConfig grid_for(std::int64_t items, int threads, std::int64_t max_blocks) {
    LaunchConfig config;
    config.grid.x = static_cast<std::uint32_t>(
        std::clamp<std::int64_t>((items + threads - 1) / threads, 1, std::max<std::int64_t>(max_blocks, 1)));
    config.block.x = static_cast<std::uint32_t>(threads);
    return config;
}

LaunchConfig streaming_grid(Device& device, std::int64_t items) {
    constexpr int kThreads = 256, kBlocksPerMultiprocessor = 32;
    return grid_for(items, kThreads,
                    std::int64_t{kBlocksPerMultiprocessor} * current_stream(device)->multiprocessors());
}

LaunchConfig packs_grid(std::int64_t count, std::int64_t pack) {
    return grid_for(count / pack + count % pack, 256, INT32_MAX);
}

}  // namespace gpk::ops
