// Tenant: the memory account, the streams, and the governor that its work passes.
#include "runtime/tenant.hpp"

#include <thread>
#include <vector>

#include "runtime/launcher.hpp"
#include "runtime/stream.hpp"
#include "sim_support.hpp"
#include "support.hpp"

using namespace gpk;
using namespace sim;

TEST(Tenant, ChargesItselfAndAllAboveItOrNone) {
    const auto top = Tenant::create({.name = "top", .memory_limit = 100});
    const auto a = Tenant::create({.name = "a", .memory_limit = 80}, top);
    const auto b = Tenant::create({.name = "b"}, top);
    EXPECT_EQ(a->charge(60), nullptr);
    EXPECT_EQ(a->charge(21), a.get());
    EXPECT_EQ(b->charge(41), top.get());
    EXPECT_EQ(b->memory_used(), 0u);
    EXPECT_EQ(top->memory_used(), 60u);
    EXPECT_EQ(b->charge(40), nullptr);
    EXPECT_EQ(top->memory_used(), 100u);
    EXPECT_EQ(a->charge(~std::size_t{0}), a.get());
    a->uncharge(60);
    EXPECT_EQ(top->memory_used(), 40u);
    EXPECT_EQ(top->memory_peak(), 100u);
    top->set_memory_limit(30);
    EXPECT_EQ(b->charge(1), top.get());
    b->uncharge(40);
    EXPECT_EQ(b->charge(30), nullptr);
    b->uncharge(30);
}

TEST(Tenant, ThreadsThatChargeAtOnceStayWithinTheLimit) {
    const auto top = Tenant::create({.name = "top", .memory_limit = 5});
    const auto low = Tenant::create({.name = "low"}, top);
    std::atomic<int> inside{0}, most{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < 5000; ++i) {
                if (low->charge(2) != nullptr) continue;
                const int now = ++inside;
                int seen = most.load();
                while (seen < now && !most.compare_exchange_weak(seen, now)) {
                }
                --inside;
                low->uncharge(2);
            }
        });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_LE(most, 2);
    EXPECT_GE(most, 1);
    EXPECT_EQ(top->memory_used(), 0u);
    EXPECT_LE(top->memory_peak(), 5u);
}

TEST(Tenant, HasAsManyStreamsAsItMay) {
    TestDevice target;
    const auto top = Tenant::create({.name = "top", .max_streams = 2});
    const auto low = Tenant::create({.name = "low"}, top);
    auto one = Stream::create_for(low, target.device);
    {
        // A new stream belongs to whom the current one belongs to.
        const StreamScope scope(one);
        const auto two = Stream::create(target.device);
        EXPECT_EQ(two->tenant(), low);
        expect_kind(ErrorKind::unsupported, [&] { Stream::create(target.device); });
    }
    EXPECT_EQ(Stream::create(target.device)->tenant(), nullptr);
    target.driver.set_faults(
        {{.call = "stream_create", .nth = 1, .code = 2, .code_name = "CUDA_ERROR_OUT_OF_MEMORY"}});
    EXPECT_THROW(Stream::create_for(low, target.device), DriverError);
    EXPECT_EQ(top->live_streams(), 1);
    one.reset();
    EXPECT_EQ(top->live_streams(), 0);
}

TEST(Tenant, ItsGovernorIsAskedAndTold) {
    struct Governor : LaunchHook {
        void before(const WorkRecord&) override { asked += 1; }
        void after(const WorkRecord&, bool queued) noexcept override { queued ? ++done : ++refused; }
        int asked = 0, done = 0, refused = 0;
    };
    Device& device = test_device();
    const auto governor = std::make_shared<Governor>();
    const auto top = Tenant::create({.name = "top", .governor = governor});
    const auto low = Tenant::create({.name = "low"}, top);
    EXPECT_EQ(low->governor(), governor.get());
    const auto stream = Stream::create_for(low, device);
    const DevicePtr memory = device.driver().allocate(64);
    device.launcher().fill(*stream, memory, 1, 64);
    device.launcher().fill(*device.default_stream(), memory, 1, 64);
    stream->synchronize();
    EXPECT_EQ(governor->asked, 1);
    EXPECT_EQ(governor->done, 1);
    EXPECT_EQ(governor->refused, 0);
    device.synchronize();
    device.driver().free(memory);
}
