// How an op hands work to the device: order the storages on the current stream, then launch.
#pragma once

#include <initializer_list>
#include <utility>

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

// Orders the storages (of both lists of reads, null ones aside) on the current stream and calls `work` with
// it, to launch one kernel or several.
template <class Work>
void with_storages(std::initializer_list<const Array*> reads, std::initializer_list<const Array*> more_reads,
                   std::initializer_list<const Array*> writes, Work&& work) {
    const auto& stream = current_stream((*writes.begin())->device());
    const UseScope scope;
    for (const auto& list : {reads, more_reads}) {
        for (const Array* array : list) {
            if (array != nullptr) array->storage()->before_read(stream);
        }
    }
    for (const Array* array : writes) array->storage()->before_write(stream);
    work(*stream);
}
template <class Work>
void with_storages(std::initializer_list<const Array*> reads, std::initializer_list<const Array*> writes,
                   Work&& work) {
    with_storages(reads, {}, writes, std::forward<Work>(work));
}

template <class Params>
void launch(const Kernel& kernel, const LaunchConfig& config, const Params& params, const Cost& cost,
            std::initializer_list<const Array*> reads, std::initializer_list<const Array*> writes) {
    with_storages(reads, writes, [&](Stream& stream) {
        stream.device().launcher().launch(stream, kernel, config, params, cost);
    });
}

// In how many launches the stream's tenant wants this work, which can be cut; 1 but for a tenant with a
// SliceConfig. Never so many that a launch has less than a block for each SM: it would take as long.
// `blocks`: how many there would be, were each to make one part of the work, where those of `whole` make
// several.
std::int64_t slices_for(const Stream& stream, const Kernel& kernel, const LaunchConfig& whole,
                        const Cost& cost, std::int64_t blocks = 0);

// Blocks of `threads` for `items`, at most `max_blocks` (the kernel loops over the rest).
LaunchConfig grid_for(std::int64_t items, int threads = 256, std::int64_t max_blocks = 1 << 20);
// The grid of element-wise kernels that loop: enough blocks to fill the device several times.
LaunchConfig streaming_grid(Device& device, std::int64_t items);
// Of those that do not: a thread for each of `count` elements in packs, and for each that fills none. Where a
// thread has little to set up, that was the fastest.
LaunchConfig packs_grid(std::int64_t count, std::int64_t pack);

}  // namespace gpk::ops
