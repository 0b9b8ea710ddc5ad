// The virtual memory calls of a driver, on either device.
#include <gtest/gtest.h>

#include <vector>

#include "base/error.hpp"
#include "runtime/stream.hpp"
#include "support.hpp"

using namespace gpk;

namespace {

class VirtualMemory : public testing::Test {
   protected:
    void SetUp() override {
        if (unit == 0) GTEST_SKIP() << "no virtual memory calls here";
    }
    std::vector<std::uint8_t> read(DevicePtr from, std::size_t bytes) {
        std::vector<std::uint8_t> host(bytes);
        driver.copy_to_host(stream->handle(), host.data(), from, bytes);
        stream->synchronize();
        return host;
    }
    void map(DevicePtr at, PhysicalHandle physical) {
        driver.map(at, physical, unit);
        driver.allow_access(at, unit);
    }

    Device& device = test_device();
    Driver& driver = device.driver();
    std::size_t unit = device.info().physical_granularity;
    std::shared_ptr<Stream> stream = Stream::create(device);
};

}  // namespace

TEST_F(VirtualMemory, ContentsMoveWithTheMemory) {
    const DevicePtr one = driver.reserve_address(3 * unit), two = driver.reserve_address(unit);
    EXPECT_EQ(one % unit, 0u);
    const PhysicalHandle a = driver.physical_create(unit), b = driver.physical_create(unit);
    map(one + unit, a);
    map(one + 2 * unit, b);
    driver.fill(stream->handle(), one + unit, 0x11, unit);
    driver.fill(stream->handle(), one + 2 * unit, 0x22, unit);
    // One copy over two memories that lie side by side.
    const auto across = read(one + 2 * unit - 4, 8);
    EXPECT_EQ(across, (std::vector<std::uint8_t>{0x11, 0x11, 0x11, 0x11, 0x22, 0x22, 0x22, 0x22}));

    driver.unmap(one + unit, unit);
    driver.unmap(one + 2 * unit, unit);
    map(two, b);
    map(one, a);
    EXPECT_EQ(read(two, unit), std::vector<std::uint8_t>(unit, 0x22));
    EXPECT_EQ(read(one, unit), std::vector<std::uint8_t>(unit, 0x11));
    driver.unmap(two, unit);
    driver.unmap(one, unit);
    map(two, a);
    EXPECT_EQ(read(two, 2), (std::vector<std::uint8_t>{0x11, 0x11}));

    // Destroyed memory lives until it is unmapped.
    driver.physical_destroy(a);
    driver.physical_destroy(b);
    EXPECT_EQ(read(two + unit - 2, 2), (std::vector<std::uint8_t>{0x11, 0x11}));
    driver.unmap(two, unit);
    driver.release_address(one, 3 * unit);
    driver.release_address(two, unit);
}

TEST_F(VirtualMemory, AllOfItComesBack) {
    // What the driver keeps for itself settles in the first rounds.
    std::size_t free_bytes = 0;
    for (int round = 0; round < 500; ++round) {
        const DevicePtr at = driver.reserve_address(4 * unit);
        const PhysicalHandle memory = driver.physical_create(unit);
        map(at + static_cast<std::size_t>(round % 4) * unit, memory);
        if (round % 2 == 0) driver.physical_destroy(memory);
        if (round == 100) free_bytes = driver.memory_info().free_bytes;
        if (round > 100 && round % 50 == 0) {
            EXPECT_EQ(driver.memory_info().free_bytes, free_bytes) << round;
        }
        driver.unmap(at + static_cast<std::size_t>(round % 4) * unit, unit);
        if (round % 2 != 0) driver.physical_destroy(memory);
        driver.release_address(at, 4 * unit);
    }
}

TEST_F(VirtualMemory, WhatIsNoMultipleIsRefused) {
    EXPECT_THROW(driver.reserve_address(0), DriverError);
    EXPECT_THROW(driver.physical_create(0), DriverError);
    EXPECT_THROW(driver.physical_create(unit / 2), DriverError);
    try {
        driver.physical_create(std::size_t{1} << 62);
        ADD_FAILURE();
    } catch (const DriverError& failure) {
        EXPECT_EQ(failure.kind(), ErrorKind::memory) << failure.what();
    }
    const DevicePtr at = driver.reserve_address(2 * unit);
    const PhysicalHandle memory = driver.physical_create(unit);
    EXPECT_THROW(driver.map(at + unit / 2, memory, unit), DriverError);
    EXPECT_THROW(driver.map(at, memory, unit / 2), DriverError);
    EXPECT_THROW(driver.allow_access(at, unit), DriverError);  // nothing is mapped there
    map(at, memory);
    const PhysicalHandle other = driver.physical_create(unit);
    EXPECT_THROW(driver.map(at, other, unit), DriverError);
    driver.unmap(at, unit);
    driver.physical_destroy(other);
    driver.physical_destroy(memory);
    driver.release_address(at, 2 * unit);
}
