// Allocations, copies, launches, graphs: every driver call that a program makes is made to fail, one after
// another, with every error code. Each failure arrives as an exception, leaks nothing, leaves the device
// usable unless it is lost for good, and a second attempt succeeds.
#include <functional>
#include <vector>

#include "array/array.hpp"
#include "fault_support.hpp"
#include "memory/pool.hpp"
#include "runtime/graph.hpp"
#include "runtime/kernel.hpp"
#include "sim_support.hpp"

using namespace gpk;
using namespace sim;

namespace {

constexpr std::int64_t kCount = 16;

const Kernel affine_kernel{kAffine};

Array make(Device& device, std::int64_t value) {
    Array array = Array::empty(device, {kCount}, DType::int64);
    const std::vector<std::int64_t> host(kCount, value);
    array.copy_from_host(host.data());
    return array;
}

std::int64_t first_of(const Array& array) {
    std::vector<std::int64_t> host(kCount);
    array.copy_to_host(host.data());
    for (const std::int64_t word : host) EXPECT_EQ(word, host[0]);
    return host[0];
}

void affine(const Array& array, std::int64_t factor, std::int64_t term) {
    const auto& stream = current_stream(array.device());
    array.storage()->before_write(stream);
    array.device().launcher().launch(*stream, affine_kernel, {},
                                     AffineParams{array.as<std::int64_t>(), factor, term, kCount}, {});
}

// What a program returns must be `expected` whenever it returns at all.
struct Case {
    const char* name;
    std::int64_t expected;
    std::function<std::int64_t(Device&)> program;
};

const Case kCases[] = {
    {"allocate, copy, launch", 7,
     [](Device& device) {
         const Array a = make(device, 3);
         affine(a, 2, 1);
         return first_of(a);
     }},
    {"copy on the device, fill", 0x0202020202020202 * 2,
     [](Device& device) {
         const Array a = make(device, 3), b = make(device, 4);
         const auto& stream = current_stream(device);
         a.storage()->before_write(stream);
         device.launcher().fill(*stream, a.data(), 2, a.nbytes());
         a.storage()->before_read(stream);
         b.storage()->before_write(stream);
         device.launcher().copy_on_device(*stream, b.data(), a.data(), a.nbytes());
         affine(b, 2, 0);
         return first_of(b);
     }},
    {"two streams", 61,
     [](Device& device) {
         const auto one = Stream::create(device), two = Stream::create(device, -1);
         Array a;
         {
             const StreamScope scope(one);
             a = make(device, 3);
             affine(a, 2, 0);
         }
         const StreamScope scope(two);
         affine(a, 10, 1);
         Event event(device, true);
         event.record(*two);
         one->wait(event);
         one->synchronize();
         EXPECT_TRUE(event.query());
         return first_of(a);
     }},
    {"memory reused by another stream", 5,
     [](Device& device) {
         const auto one = Stream::create(device), two = Stream::create(device);
         {
             const StreamScope scope(one);
             const Array a = make(device, 3);
             const StreamScope inner(two);
             affine(a, 2, 0);
         }
         const StreamScope scope(two);
         const Array b = make(device, 4);
         affine(b, 1, 1);
         return first_of(b);
     }},
    {"a graph", 43,
     [](Device& device) {
         const auto stream = Stream::create(device);
         const StreamScope scope(stream);
         const Array a = make(device, 5);
         Array b;
         const auto graph = Graph::capture(stream, [&] {
             affine(a, 2, 1);
             b = Array::empty(device, {kCount}, DType::int64);
             b.storage()->before_write(stream);
             device.launcher().copy_on_device(*stream, b.data(), a.data(), a.nbytes());
             affine(b, 1, 20);
         });
         EXPECT_EQ(graph->node_count(), 3u);
         graph->launch(stream);
         graph->launch(stream);
         return first_of(b);
     }},
    {"trim and the limit", 9,
     [](Device& device) {
         MemoryPool& pool = MemoryPool::of(device);
         make(device, 1);
         pool.trim();
         const Array a = make(device, 8);
         affine(a, 1, 1);
         device.synchronize();
         return first_of(a);
     }},
};

}  // namespace

class FaultSweep : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Programs, FaultSweep, ::testing::Range(0, static_cast<int>(std::size(kCases))));

// A failure may be mended on the way (memory found elsewhere, an event done without), but then the result is
// right.
TEST_P(FaultSweep, EveryCallMayFailWithEveryCode) {
    const Case& each = kCases[GetParam()];
    faults::Watchdog watchdog;
    const faults::Swept swept = faults::sweep(
        {.name = each.name,
         .program = [&](faults::Run& run) { EXPECT_EQ(each.program(run.device), each.expected); },
         .options = {.seed = 5}},
        watchdog);
    EXPECT_GT(swept.thrown, swept.planned * 3 / 4);
    EXPECT_EQ(swept.codes.size(), faults::kCodesMet);
    EXPECT_GT(swept.planned, 10 * static_cast<int>(faults::kCodesMet));
}

// A launch that the driver refuses is never swallowed.
TEST(FaultSweep, AFailedLaunchIsAlwaysAnException) {
    for (const Case& each : kCases) {
        TestDevice target;
        for (const char* call : {"launch", "copy_to_device", "copy_to_host"}) {
            target.driver.set_faults(
                {{.call = call, .nth = 1, .code = 1, .code_name = "CUDA_ERROR_INVALID_VALUE"}});
            EXPECT_THROW(each.program(target.device), DriverError) << each.name << ", " << call;
        }
    }
}
