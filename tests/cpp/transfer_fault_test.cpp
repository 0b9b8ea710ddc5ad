// Every driver call that a transfer makes is made to fail, with every error code, in each direction, staged
// and pinned: the failure arrives, nothing leaks or hangs, and the next transfer works.
#include "fault_support.hpp"
#include "transfer_support.hpp"

using namespace gpk;
using namespace sim;
using namespace transfers;

namespace {

constexpr std::size_t kBytes = 3 * kChunk + 11;
// Of a program whose number of polls depends on its threads.
constexpr int kMostPolls = 6;

using Bytes = std::vector<std::uint8_t>;

// What was copied to the device, by a copy on the current stream.
Bytes on_host(const Array& array) {
    Bytes host(static_cast<std::size_t>(array.size()));
    array.copy_to_host(host.data());
    return host;
}

Array from_host(Device& device, const Bytes& host) {
    Array array = bytes_on(device, host.size());
    array.copy_from_host(host.data());
    return array;
}

// A failed one leaves no state but `failed`, and the next of its lane works.
void carry_out(faults::Run& run, const std::function<std::shared_ptr<Transfer>()>& start) {
    std::shared_ptr<Transfer> transfer;
    run.whole(
        [&] {
            transfer = start();
            transfer->get();
        },
        [&] {
            if (transfer) {
                EXPECT_EQ(transfer->state(), TransferState::failed);
                EXPECT_FALSE(transfer->cancel());
            }
            start()->get();
        });
    EXPECT_EQ(transfer->bytes_done(), transfer->bytes());
}

void staged_up(faults::Run& run) {
    const auto source = std::make_shared<Bytes>(pattern(kBytes));
    const Array a = bytes_on(run.device, kBytes);
    carry_out(run, [&] { return transfer_to_device(a, source->data(), {.keep = {source}}); });
    EXPECT_EQ(on_host(a), *source);
}

void staged_down(faults::Run& run) {
    const Bytes source = pattern(kBytes);
    const auto back = std::make_shared<Bytes>(kBytes);
    const Array a = from_host(run.device, source);
    carry_out(run, [&] { return transfer_to_host(a, back->data(), {.keep = {back}}); });
    EXPECT_EQ(*back, source);
}

void pinned_up(faults::Run& run) {
    const Bytes source = pattern(kBytes);
    const auto from = std::make_shared<Pinned>(run.device, kBytes);
    std::memcpy(from->data(), source.data(), kBytes);
    const Array a = bytes_on(run.device, kBytes);
    carry_out(run, [&] { return transfer_to_device(a, from->data(), {.priority = -1, .keep = {from}}); });
    EXPECT_EQ(on_host(a), source);
}

void pinned_down(faults::Run& run) {
    const Bytes source = pattern(kBytes);
    const auto to = std::make_shared<Pinned>(run.device, kBytes);
    const Array a = from_host(run.device, source);
    carry_out(run, [&] { return transfer_to_host(a, to->data(), {.priority = -1, .keep = {to}}); });
    EXPECT_EQ(std::memcmp(to->data(), source.data(), kBytes), 0);
}

void on_device(faults::Run& run) {
    const Bytes source = pattern(kBytes);
    const Array a = from_host(run.device, source), b = bytes_on(run.device, kBytes);
    carry_out(run, [&] { return transfer_on_device(a, b); });
    EXPECT_EQ(on_host(b), source);
}

// Three that follow each other. Where a later one cannot be made, earlier ones still run: they keep their
// host memory themselves.
void one_after_another(faults::Run& run) {
    const auto source = std::make_shared<Bytes>(pattern(kBytes));
    const auto back = std::make_shared<Bytes>(kBytes);
    const Array a = bytes_on(run.device, kBytes), b = bytes_on(run.device, kBytes);
    const std::shared_ptr<Transfer> all[] = {
        transfer_to_device(a, source->data(), {.keep = {source}}),
        transfer_on_device(a, b),
        transfer_to_host(b, back->data(), {.priority = -1, .keep = {back}}),
    };
    for (const auto& each : all) each->wait();
    for (const auto& each : all) each->get();
    EXPECT_EQ(*back, *source);
}

void cancelled(faults::Run& run) {
    const auto source = std::make_shared<Bytes>(pattern(kBytes));
    const Array a = bytes_on(run.device, kBytes);
    const auto transfer = transfer_to_device(a, source->data(), {.keep = {source}});
    const bool stopped = transfer->cancel();
    transfer->wait();
    if (stopped) {
        EXPECT_TRUE(transfer->state() == TransferState::cancelled ||
                    transfer->state() == TransferState::failed);
    } else {
        transfer->get();
    }
    carry_out(run, [&] { return transfer_to_device(a, source->data(), {.keep = {source}}); });
    EXPECT_EQ(on_host(a), *source);
}

void drained(TestDevice& target, const std::string& where) {
    TransferEngine::of(target.device).drain();
    const TransferStats stats = TransferEngine::of(target.device).stats();
    EXPECT_EQ(stats.queued + stats.in_progress, 0u) << where;
}

faults::Scenario scenario(const char* name, void (*program)(faults::Run&), std::size_t lanes = 1) {
    return {.name = name,
            .program = program,
            .options = {.seed = 5},
            .prepare = [](TestDevice& target) { TransferEngine::of(target.device).configure(kSmall); },
            .settle = drained,
            .most_streams = 1 + lanes,
            .most_events = 1 + 4 * lanes,
            .most_polls = kMostPolls,
            .threads = true};
}

const faults::Scenario kScenarios[] = {
    scenario("staged, to the device", staged_up),
    scenario("staged, to the host", staged_down, 2),
    scenario("pinned, to the device", pinned_up, 2),
    scenario("pinned, to the host", pinned_down, 2),
    scenario("on the device", on_device, 2),
    scenario("one after another", one_after_another, 3),
    scenario("cancelled", cancelled),
};

class TransferFault : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Programs, TransferFault,
                         ::testing::Range(0, static_cast<int>(std::size(kScenarios))));

}  // namespace

TEST_P(TransferFault, EveryCallMayFailWithEveryCode) {
    faults::Watchdog watchdog;
    const faults::Swept swept = faults::sweep(kScenarios[GetParam()], watchdog);
    EXPECT_EQ(swept.codes.size(), faults::kCodesMet);
    EXPECT_GT(swept.planned, 200);
    EXPECT_GT(swept.reached, swept.planned / 2);
    EXPECT_GT(swept.thrown, swept.planned / 4);
}

TEST(TransferFault, ABrokenDeviceFailsAllAndHangsNone) {
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
