// A failure that breaks a device: what comes later fails at once, by name, and everything is still given
// back.
#include <gtest/gtest.h>

#include <thread>

#include "runtime/stream.hpp"
#include "scheduler/pacing.hpp"
#include "scheduler/partition.hpp"
#include "sim_support.hpp"

using namespace gpk;
using namespace sim;

namespace {

Fault breaks(const char* call) {
    return {.call = call, .nth = 1, .code = 700, .code_name = "CUDA_ERROR_ILLEGAL_ADDRESS", .sticky = true};
}

}  // namespace

TEST(DeviceLost, LaterWorkFailsAtOnceAndNamesTheFirstFailure) {
    for (const char* call : {"fill", "stream_synchronize", "stream_query", "event_record", "synchronize"}) {
        TestDevice target;
        Device& device = target.device;
        {
            const auto stream = Stream::create(device);
            const DevicePtr memory = device.driver().allocate(64);
            Event event(device);
            target.driver.set_faults({breaks(call)});
            const auto program = [&] {
                device.launcher().fill(*stream, memory, 1, 64);
                stream->synchronize();
                stream->query();
                event.record(*stream);
                device.synchronize();
            };
            EXPECT_THROW(program(), DriverError);
            EXPECT_TRUE(device.lost()) << call;
            const int made = target.driver.call_counts().at("fill");
            try {
                device.launcher().fill(*stream, memory, 1, 64);
                ADD_FAILURE();
            } catch (const DeviceLostError& failure) {
                EXPECT_EQ(failure.call(), call);
                EXPECT_EQ(failure.code(), 700);
                EXPECT_EQ(failure.code_name(), "CUDA_ERROR_ILLEGAL_ADDRESS");
                EXPECT_NE(std::string(failure.what()).find(device.name()), std::string::npos);
            }
            EXPECT_EQ(target.driver.call_counts().at("fill"), made);  // it did not reach the driver
            device.driver().free(memory);
        }
    }
}

TEST(DeviceLost, ACallThatFailsAloneBreaksNothing) {
    TestDevice target;
    const DevicePtr memory = target.device.driver().allocate(64);
    for (const int code : {1, 2, 700, 719, 999}) {
        target.driver.set_faults({{.call = "fill", .nth = 1, .code = code, .code_name = "CUDA_ERROR_X"}});
        EXPECT_ANY_THROW(target.device.launcher().fill(*target.device.default_stream(), memory, 1, 64));
        EXPECT_FALSE(target.device.lost());
        target.device.launcher().fill(*target.device.default_stream(), memory, 1, 64);
    }
    target.device.driver().free(memory);
}

TEST(DeviceLost, WhoWaitsIsTold) {
    TestDevice target;
    Device& device = target.device;
    const auto engine = std::make_shared<KernelPacingEngine>(
        device, PacingConfig{.bandwidth_share = 1e-9, .device_bandwidth = 1e9});
    const auto stream = Stream::create_for(Tenant::create({.name = "t", .governor = engine}), device);
    const DevicePtr memory = device.driver().allocate(64);
    device.launcher().fill(*stream, memory, 1, 64);
    std::thread waits([&] { EXPECT_THROW(device.launcher().fill(*stream, memory, 1, 64), DriverError); });
    target.driver.set_faults({breaks("synchronize")});
    EXPECT_THROW(device.synchronize(), DriverError);
    waits.join();
    device.driver().free(memory);
}

TEST(DeviceLost, PartitionsCanStillBeDestroyed) {
    TestDevice target;
    Device& device = target.device;
    PartitionManager manager({.device = &device});
    const auto a = manager.create("a", "", PartitionLimits().compute(0.5));
    auto stream = Stream::create_for(a->tenant(), device);
    target.driver.set_faults({breaks("synchronize")});
    EXPECT_THROW(device.synchronize(), DriverError);
    EXPECT_THROW(manager.resize(*a, PartitionLimits().compute(0.25)), DriverError);
    EXPECT_TRUE(a->alive());
    manager.destroy("a");
    EXPECT_FALSE(a->alive());
    stream.reset();
    EXPECT_EQ(target.driver.live_sm_partitions(), 0u);
}
