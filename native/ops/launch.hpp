// How an op hands work to the device: order the storages on the current stream, then launch.
#pragma once

#include <initializer_list>

#include "array/array.hpp"
#include "runtime/kernel.hpp"
#include "runtime/launcher.hpp"

namespace gpk::ops {

// The device that all of `arrays` (null ones aside) are on. Throws Error (value), naming `call`, where they
// differ.
Device& common_device(const char* call, std::initializer_list<const Array*> arrays);

// Checks `out` (shape, dtype, device, writable) or makes it. An op that reads inputs after it has begun
// to write must ask writes_over() too.
Array prepare_output(const char* call, Device& device, const Dims& shape, DType dtype, const Array* out);

// Throws Error (value) for a read-only array.
void require_writable(const char* call, const char* argument, const Array& array);

// Whether two views may share bytes: their ranges are compared, so interleaved views count as overlapping.
bool overlaps(const Array& a, const Array& b);
// Whether writing `to` element by element could change elements of `from` that are still to be read.
bool writes_over(const Array& to, const Array& from);

template <class Params>
void launch(const Kernel& kernel, const LaunchConfig& config, const Params& params, const Cost& cost,
            std::initializer_list<const Array*> reads, std::initializer_list<const Array*> writes) {
    Device& device = (*writes.begin())->device();
    const auto& stream = current_stream(device);
    const UseScope scope;
    for (const Array* array : reads) array->storage()->before_read(stream);
    for (const Array* array : writes) array->storage()->before_write(stream);
    device.launcher().launch(*stream, kernel, config, params, cost);
}

// Blocks of `threads` for `items`, at most `max_blocks` (the kernel loops over the rest).
LaunchConfig grid_for(std::int64_t items, int threads = 256, std::int64_t max_blocks = 1 << 20);
// The grid of element-wise kernels: enough blocks to fill the device several times, then a loop.
LaunchConfig streaming_grid(Device& device, std::int64_t items);

}  // namespace gpk::ops
