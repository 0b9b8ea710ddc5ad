// observe: listeners are told of spans, instants and levels; Meter: what is counted.
#include "runtime/observe.hpp"

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "runtime/graph.hpp"
#include "runtime/kernel.hpp"
#include "runtime/meter.hpp"
#include "runtime/stream.hpp"
#include "runtime/tenant.hpp"
#include "sim_support.hpp"
#include "support.hpp"

using namespace gpk;
using namespace sim;

namespace {

class Ear : public observe::Listener {
   public:
    static std::shared_ptr<Ear> listen() {
        auto ear = std::make_shared<Ear>();
        observe::add_listener(ear);
        return ear;
    }
    void began(const observe::Happening& what) noexcept override { heard.push_back("> " + text(what)); }
    void happened(const observe::Happening& what) noexcept override {
        heard.push_back(text(what));
        last = what;
        detail = what.detail;
    }
    static std::string text(const observe::Happening& what) {
        return str(observe::to_string(what.topic), " ", what.name, what.failed ? " failed" : "");
    }
    std::vector<std::string> heard;
    observe::Happening last{};
    std::string detail;
};

const Kernel affine_kernel{kAffine};
const Kernel failing_kernel{kFailing};

}  // namespace

TEST(Observe, NobodyIsToldWhenNobodyListens) {
    EXPECT_FALSE(observe::listening());
    observe::instant(observe::Topic::memory, "evict", {}, 1);
    const auto ear = Ear::listen();
    EXPECT_TRUE(observe::listening());
    observe::remove_listener(ear.get());
    EXPECT_FALSE(observe::listening());
    observe::instant(observe::Topic::memory, "evict", {}, 1);
    EXPECT_TRUE(ear->heard.empty());
}

TEST(Observe, SpansInstantsAndLevelsArriveWithWhatTheySay) {
    TestDevice target;
    const auto tenant = Tenant::create({.name = "a"});
    const auto stream = Stream::create_for(tenant, target.device);
    const auto ear = Ear::listen();
    {
        observe::Span outer(observe::Topic::memory, "evict", {target.device, tenant.get()});
        outer.bytes(512);
        const observe::Span inner(observe::Topic::transfer, "copy", *stream);
        outer.detail("the least recently used");
    }
    EXPECT_EQ(ear->last.amount, 512);
    EXPECT_EQ(ear->detail, "the least recently used");
    EXPECT_EQ(ear->last.who.tenant, tenant.get());
    EXPECT_LE(ear->last.start_ns, ear->last.end_ns);
    observe::instant(observe::Topic::admission, "rejected", *stream, 0, "no room");
    EXPECT_EQ(ear->detail, "no room");
    EXPECT_EQ(ear->last.who.stream, stream.get());
    EXPECT_EQ(ear->last.who.device, &target.device);
    EXPECT_EQ(ear->last.start_ns, ear->last.end_ns);
    observe::level("queue length", target.device, 3);
    EXPECT_EQ(ear->last.form, observe::Form::level);
    EXPECT_EQ(ear->last.amount, 3);
    try {
        const observe::Span span(observe::Topic::task, "task", {});
        throw 1;
    } catch (int) {
    }
    observe::remove_listener(ear.get());
    const std::vector<std::string> expected = {"> memory evict", "> transfer copy",    "transfer copy",
                                               "memory evict",   "admission rejected", "work queue length",
                                               "> task task",    "task task failed"};
    EXPECT_EQ(ear->heard, expected);
}

TEST(Observe, ASpanIsToldToThoseWhoHeardItBegin) {
    auto first = Ear::listen();
    std::shared_ptr<Ear> second;
    {
        const observe::Span span(observe::Topic::wait, "wait", {});
        second = Ear::listen();
        observe::remove_listener(first.get());
    }
    observe::remove_listener(second.get());
    EXPECT_EQ(first->heard, (std::vector<std::string>{"> wait wait", "wait wait"}));
    EXPECT_TRUE(second->heard.empty());
}

TEST(Observe, WorkAndWaitsAreTold) {
    TestDevice target;
    const auto stream = Stream::create(target.device);
    std::int64_t data[4] = {};
    const DevicePtr memory = target.driver.allocate(64);
    const auto ear = Ear::listen();
    target.device.launcher().copy_to_device(*stream, memory, data, 32);
    target.device.launcher().launch(*stream, affine_kernel, {},
                                    AffineParams{reinterpret_cast<std::int64_t*>(memory), 1, 1, 4}, {});
    EXPECT_THROW(target.device.launcher().fill(*stream, 64, 0, 8), DriverError);
    Event event(target.device);
    event.record(*stream);
    event.synchronize();
    stream->synchronize();
    target.device.synchronize();
    observe::remove_listener(ear.get());
    std::erase_if(ear->heard, [](const std::string& text) { return text.front() == '>'; });
    const std::vector<std::string> expected = {"work copy_to_device",     "work affine",
                                               "work fill failed",        "wait Event.synchronize",
                                               "wait Stream.synchronize", "wait Device.synchronize"};
    EXPECT_EQ(ear->heard, expected);
    target.driver.free(memory);
}

TEST(Observe, ListenersMayComeAndGoWhileThreadsTell) {
    struct Counter : observe::Listener {
        void happened(const observe::Happening&) noexcept override { ++count; }
        std::atomic<int> count{0};
    };
    std::atomic<bool> done{false};
    std::vector<std::thread> tellers;
    for (int i = 0; i < 3; ++i) {
        tellers.emplace_back([&] {
            while (!done) {
                const observe::Span span(observe::Topic::task, "task", {});
                observe::instant(observe::Topic::task, "step", {});
            }
        });
    }
    for (int i = 0; i < 300; ++i) {
        const auto counter = std::make_shared<Counter>();
        observe::add_listener(counter);
        while (i % 100 == 0 && counter->count == 0) std::this_thread::yield();
        observe::remove_listener(counter.get());
    }
    done = true;
    for (auto& each : tellers) each.join();
    EXPECT_FALSE(observe::listening());
}

TEST(Meter, CountsWhatTheLauncherQueued) {
    TestDevice target;
    const auto tenant = Tenant::create({.name = "metered", .qos = QosClass::guaranteed});
    const auto stream = Stream::create_for(tenant, target.device);
    Meter& meter = stream->meter();
    EXPECT_EQ(&meter, &meter_of(target.device, tenant.get()));
    EXPECT_NE(&meter, &target.device.default_stream()->meter());
    const DevicePtr memory = target.driver.allocate(256);
    char host[64] = {};
    Launcher& launcher = target.device.launcher();
    launcher.copy_to_device(*stream, memory, host, 64);
    launcher.copy_to_host(*stream, host, memory, 32);
    launcher.copy_on_device(*stream, memory, memory + 128, 16);
    launcher.fill(*stream, memory, 0, 8);
    const AffineParams params{reinterpret_cast<std::int64_t*>(memory), 1, 1, 4};
    const auto graph =
        Graph::capture(stream, [&] { launcher.launch(*stream, affine_kernel, {}, params, {.bytes = 1000}); });
    graph->launch(stream);
    for (int i = 0; i < 33; ++i) launcher.launch(*stream, affine_kernel, {}, params, {.bytes = -5});
    EXPECT_THROW(launcher.launch(*stream, failing_kernel, {}, params, {}), Error);
    stream->synchronize();

    EXPECT_EQ(meter[Count::copies_to_device], 1u);
    EXPECT_EQ(meter[Count::to_device_bytes], 64u);
    EXPECT_EQ(meter[Count::to_host_bytes], 32u);
    EXPECT_EQ(meter[Count::on_device_bytes], 16u);
    EXPECT_EQ(meter[Count::fills], 1u);
    EXPECT_EQ(meter[Count::captured_work], 1u);
    EXPECT_EQ(meter[Count::graphs], 1u);
    EXPECT_EQ(meter[Count::kernels], 33u);
    EXPECT_EQ(meter[Count::refused_work], 1u);
    EXPECT_EQ(meter[Count::declared_bytes], 64u + 32 + 32 + 8 + 1000);
    EXPECT_EQ(meter[Count::host_waits], 1u);
    std::uint64_t timed = 0;
    for (std::size_t i = 0; i <= kLaunchBoundsNs.size(); ++i) timed += meter.launches_within(i);
    EXPECT_EQ(timed, 3u);  // the 1st, the 17th and the 33rd
    EXPECT_GT(meter.launch_ns(), 0u);
    target.driver.free(memory);
}

TEST(Meter, LaunchesFallIntoTheBucketOfTheirTime) {
    Meter meter;
    for (const std::int64_t ns :
         {std::int64_t{-1}, std::int64_t{500}, std::int64_t{501}, std::int64_t{1} << 40}) {
        meter.launch_took(ns);
    }
    EXPECT_EQ(meter.launches_within(0), 2u);
    EXPECT_EQ(meter.launches_within(1), 1u);
    EXPECT_EQ(meter.launches_within(kLaunchBoundsNs.size()), 1u);
    EXPECT_EQ(meter.launch_ns(), 1001u + (std::uint64_t{1} << 40));
}

TEST(Meter, TenantsOfOneNameShareOneAndItsSumStaysAfterThem) {
    TestDevice target;
    const auto count = [&] {
        const auto tenant = Tenant::create({.name = "again"});
        Meter& meter = meter_of(target.device, tenant.get());
        meter.add(Count::evictions, 2);
        meter.change(Level::tasks_running, +1);
        meter.change(Level::tasks_running, -1);
        return meter[Count::evictions];
    };
    EXPECT_EQ(count(), 2u);
    EXPECT_EQ(count(), 4u);
}

TEST(Meter, TenantsThatAreNotShownCountAsTheirParentWithTheirOwnClass) {
    TestDevice target;
    const auto parent = Tenant::create({.name = "parent", .qos = QosClass::guaranteed});
    const auto task =
        Tenant::create({.name = "task 7", .qos = QosClass::best_effort, .shown = false}, parent);
    const auto orphan = Tenant::create({.name = "task 8", .shown = false});
    EXPECT_EQ(task->shown(), parent.get());
    EXPECT_EQ(orphan->shown(), nullptr);
    meter_of(target.device, task.get()).add(Count::fills, 3);
    meter_of(target.device, orphan.get()).add(Count::fills, 5);
    std::map<MeterLabels, std::uint64_t> fills;
    for (const auto& [labels, meter] : meters()) {
        if (labels.device == target.device.name()) fills[labels] = (*meter)[Count::fills];
    }
    const std::string name = target.device.name();
    EXPECT_EQ(fills.size(), 3u);  // with the device's default stream's
    EXPECT_EQ((fills[{name, "parent", "best_effort"}]), 3u);
    EXPECT_EQ((fills[{name, "", "burstable"}]), 5u);
}

TEST(Tenant, LiveOnesAreListed) {
    const auto before = live_tenants().size();
    auto a = Tenant::create({.name = "one"});
    const auto b = Tenant::create({.name = "two"}, a);
    const auto live = live_tenants();
    ASSERT_EQ(live.size(), before + 2);
    EXPECT_EQ(live[before]->name(), "one");
    EXPECT_EQ(live[before + 1], b);
    a.reset();
    EXPECT_EQ(live_tenants().size(), before + 2);  // its child holds it
}
