// How an op hands work to the device: order the storages on the current stream, then launch.
#pragma once

#include <initializer_list>

#include "array/array.hpp"
#include "runtime/kernel.hpp"
#include "runtime/launcher.hpp"

namespace gpk::ops {

// The device that all of `arrays` are on. Throws Error (value), naming `call`, where they differ.
Device& common_device(const char* call, std::initializer_list<const Array*> arrays);

// Checks `out` (shape, dtype, device, writable, and no partial overlap with an input) or makes it.
Array prepare_output(const char* call, Device& device, const Dims& shape, DType dtype, const Array* out);

template <class Params>
void launch(const Kernel& kernel, const LaunchConfig& config, const Params& params, const Cost& cost,
            std::initializer_list<const Array*> reads, std::initializer_list<const Array*> writes) {
    Device& device = (*writes.begin())->device();
    const auto& stream = current_stream(device);
    for (const Array* array : reads) array->storage()->before_read(stream);
    for (const Array* array : writes) array->storage()->before_write(stream);
    device.launcher().launch(*stream, kernel, config, params, cost);
}

// Blocks of `threads` for `items`, at most `max_blocks` (the kernel loops over the rest).
LaunchConfig grid_for(std::int64_t items, int threads = 256, std::int64_t max_blocks = 1 << 20);

}  // namespace gpk::ops
