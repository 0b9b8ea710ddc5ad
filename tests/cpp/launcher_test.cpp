// Launcher: the hook sees every kind of work, in order, with its cost.
#include "runtime/launcher.hpp"

#include <string>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/graph.hpp"
#include "runtime/kernel.hpp"
#include "runtime/trace.hpp"
#include "sim_support.hpp"
#include "support.hpp"

using namespace gpk;
using namespace sim;

namespace {

std::shared_ptr<LaunchHook> unowned(LaunchHook* hook) { return {std::shared_ptr<void>(), hook}; }

class Recorder : public LaunchHook {
   public:
    explicit Recorder(Launcher& launcher) : launcher_(launcher) { launcher.add_hook(unowned(this)); }
    ~Recorder() override { launcher_.remove_hook(this); }
    void before(const WorkRecord& work) override {
        if (refuse) throw error(ErrorKind::value, {.call = "hook", .got = "work"});
        seen.push_back("before " + std::string(work.name));
        records.push_back(work);
    }
    void after(const WorkRecord& work, bool queued) noexcept override {
        seen.push_back((queued ? "after " : "refused ") + std::string(work.name));
    }

    std::vector<std::string> seen;
    std::vector<WorkRecord> records;
    bool refuse = false;

   private:
    Launcher& launcher_;
};

struct Memory {
    explicit Memory(Device& device)
        : driver(device.driver()), a(driver.allocate(64)), b(driver.allocate(64)) {}
    ~Memory() {
        driver.free(a);
        driver.free(b);
    }
    Driver& driver;
    DevicePtr a, b;
};

const Kernel affine_kernel{kAffine};

}  // namespace

TEST(Launcher, TheHookSeesEveryKindOfWorkInOrder) {
    Device& device = test_device();
    const Memory memory(device);
    const auto stream = Stream::create(device);
    Launcher& launcher = device.launcher();
    char host[64] = {1};
    const auto graph = Graph::capture(stream, [&] { launcher.fill(*stream, memory.a, 7, 64); });
    Recorder recorder(launcher);
    launcher.copy_to_device(*stream, memory.a, host, 64);
    launcher.copy_on_device(*stream, memory.b, memory.a, 32);
    launcher.copy_to_host(*stream, host, memory.b, 16);
    launcher.fill(*stream, memory.a, 2, 8);
    graph->launch(stream);
    stream->synchronize();
    const std::vector<std::string> expected = {
        "before copy_to_device", "after copy_to_device", "before copy_on_device", "after copy_on_device",
        "before copy_to_host",   "after copy_to_host",   "before fill",           "after fill",
        "before graph",          "after graph",
    };
    EXPECT_EQ(recorder.seen, expected);
    const WorkKind kinds[] = {WorkKind::copy_to_device, WorkKind::copy_on_device, WorkKind::copy_to_host,
                              WorkKind::fill, WorkKind::graph};
    const double bytes[] = {64, 64, 16, 8, 64};
    ASSERT_EQ(recorder.records.size(), 5u);
    for (std::size_t i = 0; i < 5; ++i) {
        EXPECT_EQ(recorder.records[i].kind, kinds[i]);
        EXPECT_EQ(recorder.records[i].cost.bytes, bytes[i]) << i;
        EXPECT_EQ(recorder.records[i].stream, stream.get());
    }
}

TEST(Launcher, TheHookSeesKernelsWithTheirConfigAndCost) {
    TestDevice target;
    const Memory memory(target.device);
    const auto& stream = target.device.default_stream();
    Launcher& launcher = target.device.launcher();
    Recorder recorder(launcher);
    const AffineParams params{reinterpret_cast<std::int64_t*>(memory.a), 2, 1, 8};
    launcher.fill(*stream, memory.a, 0, 64);
    launcher.launch(*stream, affine_kernel, {.grid = {3, 2, 1}, .block = {64, 1, 1}}, params,
                    {.flops = 16, .bytes = 128});
    ASSERT_EQ(recorder.records.size(), 2u);
    const WorkRecord& work = recorder.records[1];
    EXPECT_EQ(work.kind, WorkKind::kernel);
    EXPECT_EQ(work.name, "affine");
    EXPECT_EQ(work.config.grid.x, 3u);
    EXPECT_EQ(work.config.block.x, 64u);
    EXPECT_EQ(work.cost.flops, 16);
    std::int64_t got[8];
    launcher.copy_to_host(*stream, got, memory.a, 64);
    for (const std::int64_t word : got) EXPECT_EQ(word, 1);
}

TEST(Launcher, NothingToDoIsNoWork) {
    Device& device = test_device();
    Recorder recorder(device.launcher());
    Stream& stream = *device.default_stream();
    device.launcher().copy_to_device(stream, 0, nullptr, 0);
    device.launcher().copy_to_host(stream, nullptr, 0, 0);
    device.launcher().copy_on_device(stream, 0, 0, 0);
    device.launcher().fill(stream, 0, 0, 0);
    EXPECT_TRUE(recorder.seen.empty());
}

TEST(Launcher, AHookThatRefusesKeepsTheWorkFromTheDevice) {
    Device& device = test_device();
    const Memory memory(device);
    Stream& stream = *device.default_stream();
    device.launcher().fill(stream, memory.a, 1, 64);
    {
        Recorder recorder(device.launcher());
        recorder.refuse = true;
        expect_kind(ErrorKind::value, [&] { device.launcher().fill(stream, memory.a, 2, 64); });
        EXPECT_TRUE(recorder.seen.empty());
    }
    char host[64];
    device.launcher().copy_to_host(stream, host, memory.a, 64);
    EXPECT_EQ(host[63], 1);
}

TEST(Launcher, WorkThatFailsIsNotToldAsDone) {
    TestDevice target;
    Recorder recorder(target.device.launcher());
    EXPECT_THROW(target.device.launcher().fill(*target.device.default_stream(), 256, 2, 64), DriverError);
    const std::vector<std::string> expected = {"before fill", "refused fill"};
    EXPECT_EQ(recorder.seen, expected);
}

TEST(Launcher, SeveralHooksAreToldInReverse) {
    Device& device = test_device();
    const Memory memory(device);
    Recorder first(device.launcher()), second(device.launcher());
    const Trace trace(device);
    second.refuse = true;
    expect_kind(ErrorKind::value, [&] { device.launcher().fill(*device.default_stream(), memory.a, 1, 64); });
    second.refuse = false;
    device.launcher().fill(*device.default_stream(), memory.a, 1, 64);
    const std::vector<std::string> expected = {"before fill", "refused fill", "before fill", "after fill"};
    EXPECT_EQ(first.seen, expected);
    EXPECT_EQ(second.seen, std::vector<std::string>(expected.begin() + 2, expected.end()));
    EXPECT_EQ(trace.entries().size(), 1u);
    device.synchronize();
}

TEST(Launcher, WorkUnderWayKeepsItsHookUntilItWasTold) {
    struct Hook : LaunchHook {
        explicit Hook(std::function<void()> call) : call(std::move(call)) {}
        void before(const WorkRecord&) override { call(); }
        void after(const WorkRecord&, bool) noexcept override { ++told; }
        std::function<void()> call;
        int told = 0;
    };
    Device& device = test_device();
    const Memory memory(device);
    std::weak_ptr<Hook> kept;
    // Another thread drops the hook while this one's work is under way.
    auto hook = std::make_shared<Hook>([&] { device.launcher().remove_hook(kept.lock().get()); });
    hook->call = [&, call = hook->call] {
        call();
        hook.reset();
        EXPECT_FALSE(kept.expired());
    };
    kept = hook;
    device.launcher().add_hook(hook);
    device.launcher().fill(*device.default_stream(), memory.a, 1, 64);
    EXPECT_TRUE(kept.expired());
    device.synchronize();
}
