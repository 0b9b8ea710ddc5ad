// Every driver call that a transfer makes is made to fail: the failure arrives, nothing leaks or hangs, and
// the next transfer works.
#include "transfer_support.hpp"

using namespace gpk;
using namespace sim;
using namespace transfers;

namespace {

constexpr std::size_t kBytes = 7 * kChunk + 11;
constexpr int kMostPolls = 6;  // calls of event_query and of the like, whose number depends on the threads

struct Case {
    const char* name;
    void (*program)(Device& device);  // checks its values
};

// Where a later one cannot be made, earlier ones still run: they keep their host memory themselves.
void staged_both_ways(Device& device) {
    const auto source = std::make_shared<std::vector<std::uint8_t>>(pattern(kBytes));
    const auto back = std::make_shared<std::vector<std::uint8_t>>(kBytes);
    const Array a = bytes_on(device, kBytes);
    const auto up = transfer_to_device(a, source->data(), {.keep = {source}});
    const auto down = transfer_to_host(a, back->data(), {.priority = -1, .keep = {back}});
    up->wait();
    down->wait();
    up->get();
    down->get();
    EXPECT_EQ(*back, *source);
}

void pinned_and_across(Device& device) {
    const auto source = pattern(kBytes);
    const auto from = std::make_shared<Pinned>(device, kBytes), to = std::make_shared<Pinned>(device, kBytes);
    std::memcpy(from->data(), source.data(), kBytes);
    const Array a = bytes_on(device, kBytes), b = bytes_on(device, kBytes);
    const std::shared_ptr<Transfer> all[] = {
        transfer_to_device(a, from->data(), {.priority = -1, .keep = {from}}), transfer_on_device(a, b),
        transfer_to_host(b, to->data(), {.keep = {to}})};
    for (const auto& each : all) each->wait();
    for (const auto& each : all) each->get();
    EXPECT_EQ(std::memcmp(to->data(), source.data(), kBytes), 0);
}

const Case kCases[] = {{"staged both ways", staged_both_ways}, {"pinned and across", pinned_and_across}};

void expect_nothing_alive(TestDevice& target, const std::string& where) {
    TransferEngine::of(target.device).drain();
    EXPECT_EQ(MemoryPool::of(target.device).stats().live_blocks, 0u) << where;
    MemoryPool::of(target.device).trim();
    EXPECT_EQ(target.driver.live_allocations(), 0u) << where;
    EXPECT_EQ(PinnedPool::of(target.device).stats().live_bytes % kChunk, 0u) << where;  // rings at most
    EXPECT_EQ(target.driver.invalid_frees(), 0u) << where;
    EXPECT_LE(target.driver.live_streams(), 6u) << where;  // the default one and the lanes
    const TransferStats stats = TransferEngine::of(target.device).stats();
    EXPECT_EQ(stats.queued + stats.in_progress, 0u) << where;
}

int sweep(const Case& each, bool interleaved, int code, const char* code_name) {
    TestDevice target({.interleaved = interleaved, .seed = 5});
    TransferEngine::of(target.device).configure(kSmall);
    target.driver.set_faults({});
    each.program(target.device);
    expect_nothing_alive(target, each.name);
    const auto counts = target.driver.call_counts();
    int met = 0;
    for (const auto& [call, count] : counts) {
        if (call == "free" || call == "free_host" || call == "unload" || call.ends_with("_destroy")) continue;
        const int most = call.ends_with("_query") ? std::min(count, kMostPolls) : count;
        for (int nth = 1; nth <= most; ++nth) {
            const std::string where = str(each.name, ", ", call, " number ", nth, ", ", code_name);
            PinnedPool::of(target.device).trim();
            target.driver.set_faults({{.call = call, .nth = nth, .code = code, .code_name = code_name}});
            try {
                each.program(target.device);
            } catch (const DriverError& failure) {
                EXPECT_EQ(failure.code_name(), code_name) << where;
                ++met;
            } catch (const Error& failure) {
                EXPECT_EQ(static_cast<int>(failure.kind()), static_cast<int>(ErrorKind::memory)) << where;
                EXPECT_EQ(code, 2) << where << ": " << failure.what();
                ++met;
            }
            target.driver.set_faults({});
            expect_nothing_alive(target, where);
            each.program(target.device);
            expect_nothing_alive(target, where);
        }
    }
    return met;
}

}  // namespace

TEST(TransferFaults, EveryCallMayFail) {
    for (const Case& each : kCases) {
        for (const bool interleaved : {false, true}) {
            EXPECT_GE(sweep(each, interleaved, 700, "CUDA_ERROR_ILLEGAL_ADDRESS"), 8) << each.name;
            EXPECT_GE(sweep(each, interleaved, 2, "CUDA_ERROR_OUT_OF_MEMORY"), 8) << each.name;
        }
    }
}

TEST(TransferFaults, ABrokenDeviceFailsAllAndHangsNone) {
    for (const bool interleaved : {false, true}) {
        TestDevice target({.interleaved = interleaved, .seed = 8});
        TransferEngine::of(target.device).configure(kSmall);
        const auto source = pattern(kBytes);
        const Array a = bytes_on(target.device, kBytes), b = bytes_on(target.device, kBytes);
        target.driver.set_faults({{.call = "copy_to_device",
                                   .nth = 4,
                                   .code = 700,
                                   .code_name = "CUDA_ERROR_ILLEGAL_ADDRESS",
                                   .sticky = true}});
        int failed = 0;
        for (int i = 0; i < 6; ++i) {
            try {
                transfer_to_device(i % 2 == 0 ? a : b, source.data())->get();
            } catch (const DriverError& failure) {
                EXPECT_EQ(failure.code_name(), "CUDA_ERROR_ILLEGAL_ADDRESS");
                ++failed;
            }
        }
        EXPECT_EQ(failed, 6);
        // It is lost to the process, whatever the driver would say.
        target.driver.set_faults({});
        EXPECT_THROW(transfer_to_device(a, source.data())->get(), DeviceLostError);
        TransferEngine::of(target.device).drain();
    }
}
