// The kernels of the scheduling benchmark: CUDA C++ for a GPU, compiled when the benchmark runs, and a host
// twin for the simulated device. A parameter struct lays its members out as the kernel's parameters are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/image.hpp"
#include "memory/pool.hpp"
#include "runtime/cost.hpp"
#include "runtime/kernel.hpp"
#include "runtime/stream.hpp"

namespace bench {

// One kernel, compiled for one device.
class BenchKernel {
   public:
    BenchKernel(gpk::Device& device, const char* name, gpk::HostTwin twin,
                std::uint32_t max_shared_bytes = 0);
    ~BenchKernel();
    BenchKernel(const BenchKernel&) = delete;
    BenchKernel& operator=(const BenchKernel&) = delete;

    const gpk::Kernel& kernel() const noexcept { return *kernel_; }
    template <class Params>
    void launch(gpk::Stream& stream, const gpk::LaunchConfig& config, const Params& params,
                const gpk::Cost& cost = {}) const {
        device_.launcher().launch(stream, *kernel_, config, params, cost);
    }

   private:
    gpk::Device& device_;
    std::string code_, symbol_;
    gpk::Image image_;
    std::unique_ptr<gpk::Kernel> kernel_;
};

// Each block adds one to its SM's count. span[0] is the first clock reading, span[1] the last.
struct RecordSmidParams {
    std::uint64_t* counts;
    std::uint64_t* span;
};
// Each thread: `rounds` times a load from `data` (where loads is 1) and `steps` fused multiply-adds.
struct VictimParams {
    float* out;
    const float* data;
    std::int64_t count;   // of data, a multiple of 4
    std::int64_t offset;  // where this request begins to read, a multiple of 4
    std::int32_t rounds;
    std::int32_t steps;
    std::int64_t loads;
};
// Eight chains of fused multiply-adds a thread.
struct FmaParams {
    float* out;
    std::int64_t steps;
};
// `count` groups of 16 bytes; each block copies `per_block` of them.
struct StreamCopyParams {
    void* to;
    const void* from;
    std::int64_t count;
    std::int64_t per_block;
};
// Floats in [0.5, 1) of a seed's random bits.
struct FillRandomParams {
    float* x;
    std::int64_t count;
    std::uint64_t seed;
};
// Adds to *sum what depends on every word and on its place.
struct ChecksumParams {
    std::uint64_t* sum;
    const std::uint32_t* x;
    std::int64_t count;
};
struct NothingParams {
    std::uint64_t pointer;
    float factor;
    std::uint32_t n;
};

struct Kernels {
    explicit Kernels(gpk::Device& device);

    BenchKernel record_smid, victim, fma, stream_copy, fill_random, checksum, nothing;
};

// Compiles all of them for an architecture (10 * major + minor), which needs NVRTC and no GPU.
void compile_kernels(int sm);

inline constexpr std::uint32_t kVictimThreads = 1024;
inline constexpr std::uint32_t kVictimSharedBytes = 120 << 10;  // over half an SM's: one block an SM
inline constexpr std::uint32_t kMostSms = 1024;

// Device memory from the pool, for the length of a scope; its stream must be synchronized before its end.
class Memory {
   public:
    Memory(gpk::Device& device, std::size_t bytes, std::shared_ptr<gpk::Stream> stream = nullptr)
        : device_(device),
          block_(gpk::MemoryPool::of(device).allocate(bytes, stream ? stream : device.default_stream())) {}
    ~Memory() { gpk::MemoryPool::of(device_).release(std::move(block_)); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    gpk::DevicePtr pointer() const noexcept { return block_.pointer; }
    std::size_t bytes() const noexcept { return block_.bytes; }
    template <class T>
    T* as() const noexcept {
        return reinterpret_cast<T*>(block_.pointer);
    }

   private:
    gpk::Device& device_;
    gpk::Block block_;
};

// Both wait for the stream.
void fill_random(const Kernels& kernels, gpk::Stream& stream, gpk::DevicePtr pointer, std::size_t bytes,
                 std::uint64_t seed);
std::uint64_t checksum(const Kernels& kernels, gpk::Stream& stream, gpk::DevicePtr pointer,
                       std::size_t bytes);

}  // namespace bench
