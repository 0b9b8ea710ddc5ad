// JitKernel: a kernel that a user wrote, compiled for one device. On the simulated device the machine's C++
// compiler makes its host twin; launches go the way of every other kernel.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "jit/signature.hpp"
#include "runtime/cost.hpp"
#include "runtime/kernel.hpp"
#include "runtime/stream.hpp"

namespace gpk::jit {

struct JitOptions {
    std::vector<std::string> flags;  // NVRTC's: "-DTILE=16", "-I/folder", "--use_fast_math"
};

class JitKernel : public std::enable_shared_from_this<JitKernel> {
   public:
    static std::shared_ptr<JitKernel> compile(Device& device, const std::string& source,
                                              const std::string& function, const JitOptions& options = {});
    ~JitKernel();
    JitKernel(const JitKernel&) = delete;
    JitKernel& operator=(const JitKernel&) = delete;

    Device& device() const noexcept { return device_; }
    const Signature& signature() const noexcept { return signature_; }
    const Kernel& kernel() const noexcept { return *kernel_; }
    bool from_cache() const noexcept { return from_cache_; }
    FunctionInfo info() const;  // of the compiled function

    // `params` holds signature().params_bytes bytes, packed (pack_scalar, pack_pointer). Throws Error
    // (value) for a grid or block that the device cannot run. A graph that captures it keeps the kernel.
    void launch(Stream& stream, const LaunchConfig& config, const void* params, const Cost& cost = {});

   private:
    JitKernel(Device& device, Signature signature) : device_(device), signature_(std::move(signature)) {}
    void check(const LaunchConfig& config) const;

    Device& device_;
    Signature signature_;
    std::string symbol_;
    std::string code_;  // what image_ points to
    Image image_;
    bool from_cache_ = false;
    std::unique_ptr<Kernel> kernel_;
    std::uint32_t max_threads_ = 1024;
    std::uint64_t max_shared_bytes_ = 0;
};

}  // namespace gpk::jit
