// Device: names, choice by thread, devices of a test's own, and kernels' functions on each.
#include "runtime/device.hpp"

#include <algorithm>
#include <thread>
#include <vector>

#include "memory/pool.hpp"
#include "runtime/kernel.hpp"
#include "runtime/stream.hpp"
#include "sim_support.hpp"
#include "support.hpp"

using namespace gpk;
using namespace sim;

TEST(Device, IsFoundByName) {
    Device& cpu = device("cpu");
    EXPECT_EQ(&device("cpu"), &cpu);
    EXPECT_EQ(cpu.name(), "cpu");
    EXPECT_FALSE(cpu.is_cuda());
    EXPECT_EQ(cpu.info().sm, 0);
    for (const char* wrong : {"", "gpu", "CPU", "cpu:0", "cud", "cudas", "cuda0"}) {
        expect_kind(ErrorKind::value, [&] { device(wrong); });
    }
    const auto names = device_names();
    EXPECT_NE(std::find(names.begin(), names.end(), "cpu"), names.end());
}

TEST(Device, CudaSaysWhyNot) {
    if (cuda_device_count() == 0) {
        EXPECT_FALSE(why_no_cuda().empty());
        try {
            device("cuda");
            FAIL() << "a GPU was given where there is none";
        } catch (const Error& failure) {
            EXPECT_EQ(failure.kind(), ErrorKind::unsupported);
            EXPECT_NE(std::string(failure.what()).find(why_no_cuda()), std::string::npos);
        }
    } else {
        EXPECT_TRUE(why_no_cuda().empty());
        Device& first = device("cuda");
        EXPECT_TRUE(first.is_cuda());
        EXPECT_EQ(&device(first.name()), &first);
        EXPECT_GE(first.info().sm, 80);
        for (const char* wrong : {"cuda:", "cuda:x", "cuda:-1", "cuda:999", "cuda:0000", "cuda: 0"}) {
            expect_kind(ErrorKind::value, [&] { device(wrong); });
        }
    }
}

TEST(Device, TheSuitesDeviceWorks) {
    Device& suite = test_device();
    EXPECT_GT(suite.info().memory_bytes, 0u);
    EXPECT_GE(suite.info().multiprocessors, 1);
    EXPECT_LE(suite.info().highest_priority, suite.info().lowest_priority);
    suite.synchronize();
}

TEST(Device, IsChosenByThread) {
    Device& before = current_device();
    TestDevice mine;
    set_device(mine.device);
    EXPECT_EQ(&current_device(), &mine.device);
    std::thread([&] { EXPECT_EQ(&current_device(), &before); }).join();
    set_device(before);
    EXPECT_EQ(&current_device(), &before);
}

TEST(Device, ARemovedOneIsChosenNoMore) {
    Device& before = current_device();
    std::string name;
    int slot = 0;
    {
        TestDevice mine;
        name = mine.device.name();
        slot = mine.device.slot();
        set_device(mine.device);
        expect_kind(ErrorKind::value, [&] { add_device(name, make_sim_driver({.memory_bytes = 1024})); });
    }
    EXPECT_EQ(&current_device(), &before);
    expect_kind(ErrorKind::value, [&] { device(name); });
    TestDevice next;
    EXPECT_GT(next.device.slot(), slot);  // never reused
}

TEST(Device, HasOnePoolWhoeverAsksFirst) {
    TestDevice mine;
    std::vector<MemoryPool*> pools(4);
    std::vector<std::thread> threads;
    for (auto& pool : pools) threads.emplace_back([&] { pool = &MemoryPool::of(mine.device); });
    for (auto& thread : threads) thread.join();
    for (const MemoryPool* pool : pools) EXPECT_EQ(pool, pools[0]);
}

TEST(Device, AKernelHasAFunctionOnEach) {
    const Kernel kernel{kAffine};
    TestDevice a, b;
    const FunctionHandle on_a = kernel.on(a.device), on_b = kernel.on(b.device);
    EXPECT_NE(on_a, nullptr);
    EXPECT_NE(on_a, on_b);
    EXPECT_EQ(kernel.on(a.device), on_a);
    EXPECT_EQ(kernel.on(b.device), on_b);
    EXPECT_EQ(a.driver.live_functions(), 1u);
}
