// Virtual memory of the simulated device: what it refuses, and what it finds out about queued work.
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/platform.hpp"
#include "sim_support.hpp"

using namespace gpk;
using namespace sim;

namespace {

const std::size_t kUnit = platform::page_bytes();

std::int64_t* words(DevicePtr pointer) { return reinterpret_cast<std::int64_t*>(pointer); }

class SimVirtualMemoryModes : public testing::TestWithParam<bool> {
   protected:
    PhysicalHandle mapped(DevicePtr at) {
        const PhysicalHandle memory = driver->physical_create(kUnit);
        driver->map(at, memory, kUnit);
        driver->allow_access(at, kUnit);
        return memory;
    }
    void affine(DevicePtr x, std::int64_t factor, std::int64_t term, std::int64_t count = 1) {
        const AffineParams params{words(x), factor, term, count};
        driver->launch(stream, driver->function(kAffine), {}, &params, sizeof params);
    }
    std::int64_t word(DevicePtr from) {
        std::int64_t value = 0;
        driver->copy_to_host(stream, &value, from, sizeof value);
        return value;
    }

    std::unique_ptr<SimDriver> driver = make_sim_driver(
        {.memory_bytes = 16 * kUnit, .interleaved = GetParam(), .seed = 3, .physical_granularity = kUnit});
    StreamHandle stream = driver->stream_create(0);
};
INSTANTIATE_TEST_SUITE_P(Modes, SimVirtualMemoryModes, ::testing::Bool(),
                         [](const auto& mode) { return mode.param ? "interleaved" : "immediate"; });

const char* const kInvalid = "CUDA_ERROR_INVALID_VALUE";
const char* const kIllegal = "CUDA_ERROR_ILLEGAL_ADDRESS";

}  // namespace

TEST_P(SimVirtualMemoryModes, ItCountsWithAllocations) {
    EXPECT_EQ(driver->info().physical_granularity, kUnit);
    const DevicePtr plain = driver->allocate(10 * kUnit);
    const PhysicalHandle memory = driver->physical_create(6 * kUnit);
    EXPECT_EQ(driver->memory_info().free_bytes, 0u);
    expect_code("CUDA_ERROR_OUT_OF_MEMORY", [&] { driver->physical_create(kUnit); });
    expect_code("CUDA_ERROR_OUT_OF_MEMORY", [&] { driver->allocate(1); });
    const DevicePtr at = driver->reserve_address(100 * kUnit);  // addresses cost nothing
    driver->map(at, memory, 6 * kUnit);
    driver->physical_destroy(memory);
    EXPECT_EQ(driver->memory_info().free_bytes, 0u);
    EXPECT_EQ(driver->live_physical(), 1u);
    driver->unmap(at, 6 * kUnit);
    EXPECT_EQ(driver->memory_info().free_bytes, 6 * kUnit);
    EXPECT_EQ(driver->live_physical(), 0u);
    driver->release_address(at, 100 * kUnit);
    driver->free(plain);
    EXPECT_EQ(driver->bytes_in_use(), 0u);
    EXPECT_EQ(driver->live_reservations(), 0u);
    EXPECT_EQ(driver->invalid_frees(), 0u);
}

TEST_P(SimVirtualMemoryModes, RangesAreCheckedOverSeveralMaps) {
    const DevicePtr at = driver->reserve_address(4 * kUnit);
    expect_code(kInvalid, [&] { driver->fill(stream, at, 1, 1); });
    const PhysicalHandle a = mapped(at), b = mapped(at + kUnit), d = mapped(at + 3 * kUnit);
    driver->fill(stream, at, 1, 2 * kUnit);
    driver->copy_on_device(stream, at + 3 * kUnit, at + kUnit / 2, kUnit);
    expect_code(kInvalid, [&] { driver->fill(stream, at + 1, 1, 2 * kUnit); });
    expect_code(kInvalid, [&] { driver->fill(stream, at + 2 * kUnit, 1, 1); });
    expect_code(kInvalid, [&] { driver->fill(stream, at + 3 * kUnit, 1, kUnit + 1); });
    expect_code(kInvalid, [&] { driver->fill(stream, at, 1, SIZE_MAX); });
    EXPECT_EQ(word(at + 4 * kUnit - 8), 0x0101010101010101);
    // Mapped is not yet accessible.
    const PhysicalHandle c = driver->physical_create(kUnit);
    driver->map(at + 2 * kUnit, c, kUnit);
    expect_code(kInvalid, [&] { driver->fill(stream, at + 2 * kUnit, 1, 1); });
    expect_code(kInvalid, [&] { driver->allow_access(at + 2 * kUnit, 3 * kUnit); });
    driver->allow_access(at, 4 * kUnit);
    driver->fill(stream, at, 2, 4 * kUnit);
    EXPECT_EQ(word(at + 2 * kUnit - 4), 0x0202020202020202);
    driver->unmap(at, 4 * kUnit);  // several whole maps at once
    expect_code(kInvalid, [&] { driver->fill(stream, at, 1, 1); });
    for (const PhysicalHandle each : {a, b, c, d}) driver->physical_destroy(each);
    driver->release_address(at, 4 * kUnit);
    expect_code(kInvalid, [&] { driver->fill(stream, at, 1, 1); });
    EXPECT_EQ(driver->bytes_in_use(), 0u);
    EXPECT_EQ(driver->invalid_frees(), 0u);
}

TEST_P(SimVirtualMemoryModes, OneMemoryIsAtOneAddress) {
    const DevicePtr at = driver->reserve_address(2 * kUnit);
    const PhysicalHandle memory = mapped(at);
    expect_code("CUDA_ERROR_NOT_SUPPORTED", [&] { driver->map(at + kUnit, memory, kUnit); });
    const PhysicalHandle large = driver->physical_create(2 * kUnit);
    expect_code(kInvalid, [&] { driver->map(at, large, 2 * kUnit); });          // overlaps
    expect_code(kInvalid, [&] { driver->map(at + kUnit, large, 2 * kUnit); });  // leaves the reservation
    expect_code(kInvalid, [&] { driver->map(at + kUnit, large, kUnit); });      // not the whole
    driver->unmap(at, kUnit);
    driver->map(at, large, 2 * kUnit);
    driver->allow_access(at, 2 * kUnit);
    expect_code(kInvalid, [&] { driver->map(at + kUnit, memory, kUnit); });
}

TEST_P(SimVirtualMemoryModes, WrongCallsAreCountedAndHarmless) {
    const DevicePtr at = driver->reserve_address(2 * kUnit);
    const PhysicalHandle memory = driver->physical_create(2 * kUnit);
    driver->map(at, memory, 2 * kUnit);
    driver->allow_access(at, 2 * kUnit);
    driver->fill(stream, at, 7, 2 * kUnit);
    driver->stream_synchronize(stream);
    driver->unmap(at, kUnit);          // part of a map
    driver->unmap(at + kUnit, kUnit);  // the other part
    driver->unmap(at, SIZE_MAX);
    driver->unmap(12345, kUnit);
    driver->release_address(at, 2 * kUnit);  // still mapped
    driver->release_address(at, kUnit);
    driver->physical_destroy(reinterpret_cast<PhysicalHandle>(driver.get()));
    EXPECT_EQ(driver->invalid_frees(), 7u);
    EXPECT_EQ(word(at + kUnit), 0x0707070707070707);
    driver->unmap(at, 2 * kUnit);
    driver->unmap(at, 2 * kUnit);
    driver->physical_destroy(memory);
    driver->physical_destroy(memory);
    driver->release_address(at, 2 * kUnit);
    driver->release_address(at, 2 * kUnit);
    EXPECT_EQ(driver->invalid_frees(), 10u);
    EXPECT_EQ(driver->bytes_in_use(), 0u);
    driver->unmap(0, kUnit);
    driver->release_address(0, kUnit);
    driver->physical_destroy(nullptr);
    EXPECT_EQ(driver->invalid_frees(), 10u);
}

TEST_P(SimVirtualMemoryModes, TheCallsMayFail) {
    for (const char* call : {"reserve_address", "physical_create", "map", "allow_access"}) {
        driver->set_faults({{.call = call, .nth = 1, .code = 2, .code_name = "CUDA_ERROR_OUT_OF_MEMORY"}});
        DevicePtr at = 0;
        PhysicalHandle memory = nullptr;
        bool is_mapped = false;
        expect_code("CUDA_ERROR_OUT_OF_MEMORY", [&] {
            at = driver->reserve_address(kUnit);
            memory = driver->physical_create(kUnit);
            driver->map(at, memory, kUnit);
            is_mapped = true;
            driver->allow_access(at, kUnit);
        });
        if (is_mapped) driver->unmap(at, kUnit);
        driver->physical_destroy(memory);
        driver->release_address(at, kUnit);
        EXPECT_EQ(driver->call_counts().at(call), 1) << call;
        EXPECT_EQ(driver->live_physical(), 0u) << call;
        EXPECT_EQ(driver->live_reservations(), 0u) << call;
        EXPECT_EQ(driver->bytes_in_use(), 0u) << call;
        EXPECT_EQ(driver->invalid_frees(), 0u) << call;
    }
    for (const char* call : {"release_address", "physical_destroy", "unmap", "sm_partition_destroy"}) {
        EXPECT_FALSE(can_fail(call));
    }
}

TEST_P(SimVirtualMemoryModes, AForkedChildHasItsOwn) {
    const DevicePtr at = driver->reserve_address(2 * kUnit);
    const PhysicalHandle memory = mapped(at);
    *words(at) = 41;
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        *words(at) += 1;
        driver->unmap(at, kUnit);
        driver->map(at + kUnit, memory, kUnit);
        _exit(*words(at + kUnit) == 42 ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_EQ(*words(at), 41);
}

TEST_P(SimVirtualMemoryModes, GraphsRunAfterTheirMemoryWasMappedAnew) {
    const DevicePtr at = driver->reserve_address(kUnit);
    const PhysicalHandle a = mapped(at);
    driver->fill(stream, at, 0, 8);
    driver->capture_begin(stream);
    affine(at, 1, 5);
    driver->fill(stream, at + 8, 9, 8);
    const GraphHandle graph = driver->capture_end(stream);
    driver->graph_launch(graph, stream);
    EXPECT_EQ(word(at), 5);
    driver->unmap(at, kUnit);
    expect_code(kIllegal, [&] {
        driver->graph_launch(graph, stream);
        driver->stream_synchronize(stream);
    });
    driver->map(at, a, kUnit);
    driver->allow_access(at, kUnit);
    driver->graph_launch(graph, stream);
    EXPECT_EQ(word(at), 10);
    EXPECT_EQ(word(at + 8), 0x0909090909090909);
}

TEST(SimVirtualMemory, FreshMemoryIsNaNInInterleavedMode) {
    const auto driver =
        make_sim_driver({.memory_bytes = 4 * kUnit, .interleaved = true, .physical_granularity = kUnit});
    const DevicePtr at = driver->reserve_address(kUnit);
    driver->map(at, driver->physical_create(kUnit), kUnit);
    driver->allow_access(at, kUnit);
    float last;
    std::memcpy(&last, reinterpret_cast<void*>(at + kUnit - 4), sizeof last);
    EXPECT_TRUE(std::isnan(last));
}

// A missing wait before an unmap is an error of the work, whatever the seed.
TEST(SimVirtualMemory, QueuedWorkThatLosesItsMemoryFails) {
    enum class Use { kernel, fill, copy_from, copy_to };
    for (const Use use : {Use::kernel, Use::fill, Use::copy_from, Use::copy_to}) {
        for (const bool other_memory : {false, true}) {
            for (const bool waits : {false, true}) {
                const auto driver = make_sim_driver(
                    {.memory_bytes = 8 * kUnit, .interleaved = true, .physical_granularity = kUnit});
                const StreamHandle stream = driver->stream_create(0);
                const DevicePtr at = driver->reserve_address(kUnit), plain = driver->allocate(64);
                driver->map(at, driver->physical_create(kUnit), kUnit);
                driver->allow_access(at, kUnit);
                driver->fill(stream, at, 0, kUnit);
                driver->stream_synchronize(stream);
                const AffineParams params{words(at), 2, 1, 4};
                switch (use) {
                    case Use::kernel:
                        driver->launch(stream, driver->function(kAffine), {}, &params, sizeof params);
                        break;
                    case Use::fill: driver->fill(stream, at, 1, 8); break;
                    case Use::copy_from: driver->copy_on_device(stream, plain, at, 8); break;
                    case Use::copy_to: driver->copy_on_device(stream, at, plain, 8); break;
                }
                if (waits) driver->stream_synchronize(stream);
                driver->unmap(at, kUnit);
                if (other_memory) {
                    driver->map(at, driver->physical_create(kUnit), kUnit);
                    driver->allow_access(at, kUnit);
                }
                if (waits) {
                    driver->stream_synchronize(stream);
                } else {
                    expect_code(kIllegal, [&] { driver->stream_synchronize(stream); });
                }
            }
        }
    }
}

// A kernel that is given the end of its array does not use what lies there.
TEST(SimVirtualMemory, APointerPastTheEndIsNoUse) {
    const auto driver =
        make_sim_driver({.memory_bytes = 8 * kUnit, .interleaved = true, .physical_granularity = kUnit});
    const StreamHandle stream = driver->stream_create(0);
    const DevicePtr at = driver->reserve_address(2 * kUnit);
    driver->map(at, driver->physical_create(kUnit), kUnit);
    driver->allow_access(at, kUnit);
    const AffineParams none{words(at + kUnit), 2, 1, 0};
    driver->launch(stream, driver->function(kAffine), {}, &none, sizeof none);
    driver->stream_synchronize(stream);
    const AffineParams beyond{words(at + kUnit + 8), 2, 1, 0};
    driver->launch(stream, driver->function(kAffine), {}, &beyond, sizeof beyond);
    expect_code(kIllegal, [&] { driver->stream_synchronize(stream); });
}

TEST(SimVirtualMemory, ADeviceMayLackIt) {
    const auto driver = make_sim_driver({.memory_bytes = 1 << 20, .physical_granularity = 0});
    EXPECT_EQ(driver->info().physical_granularity, 0u);
    expect_kind(ErrorKind::unsupported, [&] { driver->reserve_address(4096); });
    expect_kind(ErrorKind::unsupported, [&] { driver->physical_create(4096); });
    expect_kind(ErrorKind::unsupported, [&] { driver->map(4096, nullptr, 4096); });
    expect_kind(ErrorKind::unsupported, [&] { driver->allow_access(4096, 4096); });
    for (const std::size_t bad : {kUnit / 2, kUnit + 1, 3 * kUnit}) {
        expect_kind(ErrorKind::value, [&] { make_sim_driver({.physical_granularity = bad}); });
    }
    EXPECT_EQ(make_sim_driver({.memory_bytes = 1 << 20})->info().physical_granularity, std::size_t{2} << 20);
}
