// Trace: what it keeps, in which order, within its bounds; and what its file says.
#include "runtime/trace.hpp"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/clock.hpp"
#include "base/platform.hpp"
#include "io/json.hpp"
#include "runtime/graph.hpp"
#include "runtime/kernel.hpp"
#include "runtime/stream.hpp"
#include "sim_support.hpp"
#include "support.hpp"

using namespace gpk;
using namespace sim;

namespace {

const Kernel affine_kernel{kAffine};
const Kernel failing_kernel{kFailing};

// A device with memory for the kernels, and a stream of a tenant.
struct Bench {
    explicit Bench(std::string tenant_name = "a")
        : tenant(Tenant::create({.name = std::move(tenant_name), .qos = QosClass::best_effort})),
          stream(Stream::create_for(tenant, target.device)),
          memory(target.driver.allocate(1024)) {}
    ~Bench() { target.driver.free(memory); }
    void launch(Stream& on, const Kernel& kernel = affine_kernel) {
        target.device.launcher().launch(on, kernel, {.grid = {2, 1, 1}},
                                        AffineParams{reinterpret_cast<std::int64_t*>(memory), 1, 1, 4},
                                        {.flops = 8, .bytes = 64});
    }
    TestDevice target;
    std::shared_ptr<Tenant> tenant;
    std::shared_ptr<Stream> stream;
    DevicePtr memory;
};

std::string written(const Trace& trace) {
    const platform::TemporaryFolder folder;
    const std::string path = folder.path() + "/trace.json";
    trace.write(path);
    EXPECT_EQ(platform::list_files(folder.path(), "").size(), 1u);  // no temporary file
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST(Trace, KeepsWhatReachedTheDevice) {
    Device& device = test_device();
    const DevicePtr memory = device.driver().allocate(128);
    const auto stream = Stream::create(device);
    Trace trace(device);
    device.launcher().fill(*stream, memory, 1, 64);
    device.launcher().copy_on_device(*stream, memory + 64, memory, 64);
    trace.stop();
    device.launcher().fill(*stream, memory, 2, 64);
    const auto entries = trace.entries();
    ASSERT_EQ(entries.size(), 2u);
    EXPECT_EQ(entries[0].name, "fill");
    EXPECT_EQ(entries[1].name, "copy_on_device");
    EXPECT_EQ(entries[1].stream_id, stream->id());
    EXPECT_EQ(entries[1].cost.bytes, 128);
    EXPECT_LE(entries[0].start_ns, entries[0].end_ns);
    EXPECT_LE(entries[0].end_ns, entries[1].start_ns);
    stream->synchronize();
    device.driver().free(memory);
}

TEST(Trace, OfOneDeviceLeavesOutTheOthers) {
    Bench here, there;
    const Trace one(here.target.device), all(TraceOptions{});
    here.launch(*here.stream);
    there.launch(*there.stream);
    EXPECT_EQ(one.entries().size(), 1u);
    EXPECT_EQ(all.entries().size(), 2u);
}

TEST(Trace, WorkThatFailsIsNoEntryButInTheFile) {
    Bench bench;
    const Trace trace(bench.target.device);
    EXPECT_THROW(bench.launch(*bench.stream, failing_kernel), Error);
    EXPECT_TRUE(trace.entries().empty());
    EXPECT_EQ(trace.event_count(), 1u);
    EXPECT_NE(written(trace).find("\"failed\":true"), std::string::npos);
}

TEST(Trace, CapturedWorkIsMarkedAndItsGraphIsOnePiece) {
    Bench bench;
    const Trace trace(bench.target.device);
    const auto graph = Graph::capture(bench.stream, [&] { bench.launch(*bench.stream); });
    graph->launch(bench.stream);
    const auto entries = trace.entries();
    ASSERT_EQ(entries.size(), 2u);
    EXPECT_EQ(entries[0].kind, WorkKind::kernel);
    EXPECT_EQ(entries[1].kind, WorkKind::graph);
    EXPECT_EQ(entries[1].cost.flops, 8);
    EXPECT_NE(written(trace).find("\"captured\":true"), std::string::npos);
}

TEST(Trace, ItsMemoryIsBoundedAndWhatIsDroppedIsCounted) {
    Bench bench;
    const Trace trace(TraceOptions{.only = &bench.target.device, .max_events = 256});
    for (int i = 0; i < 1000; ++i) bench.launch(*bench.stream);
    EXPECT_EQ(trace.event_count(), 256u);
    EXPECT_EQ(trace.dropped(), 744u);
    EXPECT_NE(written(trace).find("\"dropped_events\":744"), std::string::npos);
    for (const std::size_t bad : {std::size_t{0}, ~std::size_t{0}}) {
        expect_kind(ErrorKind::value, [&] { const Trace none(TraceOptions{.max_events = bad}); });
    }
}

TEST(Trace, ItsFileIsJsonWithATrackAStream) {
    Bench bench("quote \" slash \\ line\n bad \xff end");
    const auto other = Stream::create_for(nullptr, bench.target.device);
    const Trace trace(TraceOptions{});
    bench.launch(*bench.stream);
    bench.launch(*other);
    observe::instant(observe::Topic::admission, "rejected", {bench.target.device, bench.tenant.get()}, 0,
                     "why");
    observe::level("queue length", bench.target.device, 2.5);
    const std::string text = written(trace);
    const io::Json root = io::Json::parse(text, "trace");
    const auto text_of = [](const io::Json& object, const char* key) { return *object.find(key)->string(); };
    int spans = 0, instants = 0, levels = 0;
    std::vector<std::string> names;
    std::vector<std::int64_t> pids;
    for (const io::Json& event : *root.find("traceEvents")->array()) {
        const std::string phase = text_of(event, "ph");
        if (phase == "M") names.push_back(text_of(*event.find("args"), "name"));
        if (phase == "X") pids.push_back(*event.find("pid")->integer());
        spans += phase == "X";
        instants += phase == "i";
        levels += phase == "C";
    }
    EXPECT_EQ(spans, 2);
    EXPECT_EQ(instants, 1);
    EXPECT_EQ(levels, 1);
    ASSERT_EQ(pids.size(), 2u);
    EXPECT_NE(pids[0], pids[1]);  // one of the tenant, one of none
    const std::vector<std::string> expected = {
        bench.target.device.name() + ": quote \" slash \\ line\n bad \xef\xbf\xbd end (best_effort)",
        str("stream ", bench.stream->id()), bench.target.device.name(), str("stream ", other->id()),
        "admission"};
    EXPECT_EQ(names, expected);
}

TEST(Trace, AFileThatCannotBeWrittenIsAnErrorAndChangesNothing) {
    const Trace trace(TraceOptions{});
    const platform::TemporaryFolder folder;
    for (const std::string& path : {folder.path(), folder.path() + "/none/trace.json", std::string(),
                                    std::string("/dev/full/trace"), folder.path() + std::string(300, 'x')}) {
        expect_kind(ErrorKind::file, [&] { trace.write(path); });
    }
    EXPECT_TRUE(platform::list_files(folder.path(), "").empty());
}

TEST(Trace, ThreadsRecordBesideOneAnotherAndMayBeRead) {
    Bench bench;
    constexpr int kThreads = 4, kEach = 500;
    Trace trace(bench.target.device);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
        threads.emplace_back([&] {
            const auto stream = Stream::create_for(bench.tenant, bench.target.device);
            const DevicePtr mine = bench.target.driver.allocate(64);
            for (int n = 0; n < kEach; ++n) {
                bench.target.device.launcher().fill(*stream, mine, 1, 64);
                if (n % 100 == 0) {
                    const Trace inner(bench.target.device);
                    observe::instant(observe::Topic::task, "step", *stream);
                }
            }
            bench.target.driver.free(mine);
        });
    }
    std::size_t last = 0;
    while (last < kThreads * kEach) {
        const std::size_t now = trace.entries().size();
        ASSERT_GE(now, last);
        last = now;
    }
    for (auto& each : threads) each.join();
    const auto entries = trace.entries();
    ASSERT_EQ(entries.size(), std::size_t{kThreads} * kEach);
    for (std::size_t i = 1; i < entries.size(); ++i) EXPECT_LE(entries[i - 1].end_ns, entries[i].end_ns);
}

TEST(Trace, DeviceTimesFollowTheOrderOfAStream) {
    for (const bool interleaved : {false, true}) {
        TestDevice target({.interleaved = interleaved, .seed = 3});
        const auto stream = Stream::create(target.device);
        const DevicePtr memory = target.driver.allocate(1024);
        {
            Trace trace(TraceOptions{.only = &target.device, .device_times = true});
            constexpr int kLaunches = 200;
            for (int i = 0; i < kLaunches; ++i) target.device.launcher().fill(*stream, memory, 1, 64);
            const auto graph =
                Graph::capture(stream, [&] { target.device.launcher().fill(*stream, memory, 2, 64); });
            graph->launch(stream);
            stream->synchronize();
            const std::int64_t done = steady_clock().now_ns();
            trace.stop();
            std::int64_t last = 0;
            const auto entries = trace.entries();
            ASSERT_EQ(entries.size(), kLaunches + 2u);
            for (const TraceEntry& each : entries) {
                if (each.kind != WorkKind::graph && &each == &entries[kLaunches]) {
                    EXPECT_EQ(each.device_start_ns, 0);  // captured: it does not run yet
                    continue;
                }
                // The float milliseconds of the driver are exact to some 0.2 us.
                EXPECT_GE(each.device_start_ns + 1000, last);
                EXPECT_LE(each.device_start_ns, each.device_end_ns);
                EXPECT_LE(each.device_end_ns, done + 1'000'000);
                EXPECT_GE(each.device_start_ns, entries[0].start_ns - 1'000'000);
                last = each.device_end_ns;
            }
            EXPECT_GT(last, 0);
            // Host and device each have their track, and an arrow leads from one to the other.
            const std::string text = written(trace);
            const auto count = [&](std::string_view part) {
                int found = 0;
                for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
                return found;
            };
            EXPECT_EQ(count("\"timed\":true"), kLaunches + 1);
            EXPECT_EQ(count("\"ph\":\"s\""), kLaunches + 1);
            EXPECT_EQ(count("\"ph\":\"f\",\"bp\":\"e\""), kLaunches + 1);
        }
        EXPECT_EQ(target.driver.live_events(), 0u);
        target.driver.free(memory);
    }
}

// Timing is beside the work: whatever of it fails, the work runs, and nothing is left behind.
TEST(Trace, DeviceTimesThatFailLeaveTheWorkAlone) {
    for (const char* call : {"event_create", "event_record", "event_query", "event_synchronize",
                             "event_elapsed_ms", "stream_create"}) {
        for (int nth = 1; nth <= 12; ++nth) {
            Bench bench;
            std::int64_t first = 0;
            bench.target.device.launcher().fill(*bench.stream, bench.memory, 0, 1024);
            const auto streams = bench.target.driver.live_streams();
            {
                Trace trace(TraceOptions{.only = &bench.target.device, .device_times = true});
                bench.target.driver.set_faults({{.call = call, .nth = nth, .code = 999, .code_name = "X"}});
                for (int i = 0; i < 3; ++i) bench.launch(*bench.stream);
                trace.stop();
                EXPECT_EQ(trace.entries().size(), 3u) << call << " " << nth;
                bench.target.driver.set_faults({});
            }
            bench.target.device.launcher().copy_to_host(*bench.stream, &first, bench.memory, 8);
            EXPECT_EQ(first, 3) << call << " " << nth;
            EXPECT_EQ(bench.target.driver.live_events(), 0u) << call << " " << nth;
            EXPECT_EQ(bench.target.driver.live_streams(), streams) << call << " " << nth;
        }
    }
}

// Printed for the record; the bounds are loose, since machines differ and are shared.
TEST(Trace, CostsLittle) {
    Bench bench;
    const auto noop = [](const void*, const LaunchConfig&) {};
    static const KernelDef def{.name = "noop", .twin = noop};
    static const Kernel kernel{def};
    const auto ns_each = [&] {
        constexpr int kLaunches = 2000;
        std::int64_t best = INT64_MAX;
        for (int round = 0; round < 15; ++round) {
            const auto start = std::chrono::steady_clock::now();
            for (int i = 0; i < kLaunches; ++i) bench.launch(*bench.stream, kernel);
            const auto took = std::chrono::steady_clock::now() - start;
            best = std::min<std::int64_t>(best, std::chrono::nanoseconds(took).count() / kLaunches);
        }
        return best;
    };
    const std::int64_t idle = ns_each();
    std::int64_t traced = 0;
    {
        const Trace trace(bench.target.device);
        traced = ns_each();
        EXPECT_EQ(trace.dropped(), 0u);
    }
    RecordProperty("idle_ns", static_cast<int>(idle));
    RecordProperty("traced_ns", static_cast<int>(traced));
    EXPECT_LT(traced - idle, 3000 + 5 * idle) << "idle " << idle << " ns a launch, traced " << traced;
}
