// What a kernel compiled for the host calls back: loops over all cores, and, where its threads must meet,
// a block whose threads are fibers of one processor thread.
#pragma once

#include <cstdint>

namespace gpk::jit {

// Laid out as gpk_runtime in host_shim.cpp.
struct HostRuntime {
    void (*parallel)(std::int64_t count, void (*body)(void*, std::int64_t, std::int64_t), void* context);
    // Runs thread(context, 0 .. threads - 1), each as a fiber. Throws Error (driver) where they wait for
    // one another for ever.
    void (*run_block)(std::uint32_t threads, void (*thread)(void*, std::uint32_t), void* context);
    // All threads of the block that have not returned. The number of those, and in the lower half of those
    // whose predicate is not 0.
    std::uint64_t (*block_barrier)(std::uint32_t predicate);
    // The lanes of `mask` in the caller's warp: each gives a value and gets all 32 (0 for a lane that is
    // not there). Returns the lanes that took part.
    std::uint32_t (*warp_exchange)(std::uint32_t mask, std::uint64_t value, std::uint64_t* values);
    // Ends the kernel with Error (driver).
    void (*fail)(const char* message);
};

const HostRuntime& host_runtime();

}  // namespace gpk::jit
