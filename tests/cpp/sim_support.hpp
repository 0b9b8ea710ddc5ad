// Simulated devices of a test's own, and small kernels for them.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "driver/sim_driver.hpp"
#include "runtime/device.hpp"

namespace sim {

// Modulo 2**64, so that whatever runs in a wrong order is a wrong number and nothing worse.
inline std::int64_t times_plus(std::int64_t a, std::int64_t b, std::int64_t c) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b) +
                                     static_cast<std::uint64_t>(c));
}

// x[i] = x[i] * factor + term: two of them in a row tell their order.
struct AffineParams {
    std::int64_t* x;
    std::int64_t factor;
    std::int64_t term;
    std::int64_t count;
};
inline void affine_host(const void* params, const gpk::LaunchConfig&) {
    const auto& p = *static_cast<const AffineParams*>(params);
    for (std::int64_t i = 0; i < p.count; ++i) p.x[i] = times_plus(p.x[i], p.factor, p.term);
}
inline constexpr gpk::KernelDef kAffine{.name = "affine", .twin = affine_host};

// to[i] = to[i] * 3 + from[i]
struct MixParams {
    std::int64_t* to;
    const std::int64_t* from;
    std::int64_t count;
};
inline void mix_host(const void* params, const gpk::LaunchConfig&) {
    const auto& p = *static_cast<const MixParams*>(params);
    for (std::int64_t i = 0; i < p.count; ++i) p.to[i] = times_plus(p.to[i], 3, p.from[i]);
}
inline constexpr gpk::KernelDef kMix{.name = "mix", .twin = mix_host};

// A kernel that fails, as one does on bad parameters.
inline void failing_host(const void*, const gpk::LaunchConfig&) {
    throw gpk::error(gpk::ErrorKind::value, {.call = "failing", .got = "a launch"});
}
inline constexpr gpk::KernelDef kFailing{.name = "failing", .twin = failing_host};

// Expects a DriverError of this name.
template <class Call>
void expect_code(const char* code_name, Call&& call) {
    try {
        call();
        ADD_FAILURE() << "expected " << code_name << ", nothing was thrown";
    } catch (const gpk::DriverError& failure) {
        EXPECT_EQ(failure.code_name(), code_name) << failure.what();
    } catch (const gpk::Error& failure) {
        ADD_FAILURE() << "expected " << code_name << ", got " << failure.what();
    }
}

template <class Call>
void expect_kind(gpk::ErrorKind kind, Call&& call) {
    try {
        call();
        ADD_FAILURE() << "nothing was thrown";
    } catch (const gpk::Error& failure) {
        EXPECT_EQ(static_cast<int>(failure.kind()), static_cast<int>(kind)) << failure.what();
    }
}

// Tells a device on a virtual clock what each launch declares of itself.
class DeclaredCosts final : public gpk::LaunchHook {
   public:
    void before(const gpk::WorkRecord& work) override {
        gpk::SimDriver::expect_cost({.flops = work.cost.flops, .bytes = work.cost.bytes});
    }
    void after(const gpk::WorkRecord&, bool) noexcept override { gpk::SimDriver::expect_cost({}); }
};

// A simulated device for the length of a scope.
class TestDevice {
   public:
    explicit TestDevice(gpk::SimOptions options = {})
        : TestDevice(gpk::make_sim_driver(with_memory(options))) {}
    ~TestDevice() { gpk::remove_device(device); }
    TestDevice(const TestDevice&) = delete;
    TestDevice& operator=(const TestDevice&) = delete;

   private:
    static gpk::SimOptions with_memory(gpk::SimOptions options) {
        if (options.memory_bytes == 0) options.memory_bytes = std::size_t{64} << 20;
        return options;
    }
    explicit TestDevice(std::unique_ptr<gpk::SimDriver> made)
        : driver(*made), device(gpk::add_device("sim:" + std::to_string(next_++), std::move(made))) {}
    inline static std::atomic<int> next_{0};

   public:
    gpk::SimDriver& driver;
    gpk::Device& device;
};

}  // namespace sim
