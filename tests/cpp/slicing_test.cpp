// Slices: long products and attention in several launches, with the same bits as in one.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <random>
#include <thread>

#include "memory/pool.hpp"
#include "ops/attention.hpp"
#include "ops/matmul_variants.hpp"
#include "runtime/graph.hpp"
#include "runtime/meter.hpp"
#include "scheduler/partition.hpp"
#include "sim_support.hpp"
#include "values.hpp"

namespace {

using namespace gpk;
using namespace sim;
using values::random_array;

constexpr std::int64_t kUs = 1'000, kMs = 1'000'000;

// A governor that asks for so many slices, whatever the work.
class Asking final : public LaunchHook {
   public:
    explicit Asking(std::int64_t slices) : wanted(slices) {}
    void before(const WorkRecord& work) override { launches += work.kind == WorkKind::kernel; }
    void after(const WorkRecord&, bool) noexcept override {}
    std::int64_t slices(const WorkRecord& whole, std::int64_t most) override {
        asked = true;
        captured = whole.captured;
        allowed = most;
        return wanted;
    }
    std::int64_t wanted;
    int launches = 0;
    bool asked = false, captured = false;
    std::int64_t allowed = 0;
};

// A stream of a tenant with a governor.
std::shared_ptr<Stream> governed(Device& device, std::shared_ptr<LaunchHook> governor) {
    return Stream::create_for(Tenant::create({.name = "sliced", .governor = std::move(governor)}), device);
}

std::vector<unsigned char> bytes_of(const Array& view) {
    const Array array = ops::contiguous(view);
    std::vector<unsigned char> bytes(array.nbytes());
    if (!bytes.empty()) array.copy_to_host(bytes.data());
    return bytes;
}

// How many bytes differ and from where on; nothing where they are equal.
std::string difference(const std::vector<unsigned char>& a, const std::vector<unsigned char>& b) {
    if (a.size() != b.size()) return str(a.size(), " bytes, not ", b.size());
    std::size_t count = 0, first = 0, last = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (a[i] == b[i]) continue;
        if (count++ == 0) first = i;
        last = i;
    }
    return count == 0 ? "" : str(count, " of ", a.size(), " bytes differ, from ", first, " to ", last);
}

class Slices : public testing::TestWithParam<int> {
   protected:
    const ops::GemmVariant& variant() const {
        return ops::gemm_variants()[static_cast<std::size_t>(GetParam())];
    }
};

// So that all that share the k of a tile have some.
std::int64_t least_k(const ops::GemmVariant& v) {
    if (v.wgmma == nullptr) return 0;
    return 128 * (v.wgmma->turns == WgmmaTurns::k ? 1 : v.wgmma->split - 1);
}

}  // namespace

// Every kernel, on random shapes, layouts and batches: the bits are those of one launch.
TEST_P(Slices, GiveTheBitsOfOneLaunch) {
    const ops::GemmVariant& v = variant();
    const int sm = test_device().info().sm;
    if (is_float8(v.dtype)) GTEST_SKIP() << "in scaled_matmul_test";
    if (v.wgmma != nullptr && sm != 0 && sm != 90) GTEST_SKIP() << "needs another GPU";
    std::mt19937 random(17u + static_cast<unsigned>(GetParam()));
    const auto from = [&](std::int64_t low, std::int64_t high) {
        return std::uniform_int_distribution<std::int64_t>(low, high)(random);
    };
    const bool bulk = ops::is_bulk(v.gemv);
    // The tiles of gemm_wgmma have one twin: simulated, a few rounds of each are enough.
    const int rounds = v.wgmma != nullptr && sm == 0 ? 8 : 30;
    int cut = 0;
    for (int round = 0; round < rounds; ++round) {
        const std::int64_t m = v.max_m > 0 ? from(1, v.max_m) : from(1, 400), n = from(1, 700),
                           k = bulk ? 64 * from(1, 2) : from(1, 96) + least_k(v);
        Dims batch;
        for (std::int64_t i = bulk ? 0 : from(0, 2); i > 0; --i) batch.push_back(from(1, 4));
        // A matrix along k or across it, padded to 16-byte units, its batches its own or one for all.
        const auto operand = [&](std::int64_t lines, bool lines_first, bool along_k, unsigned seed) {
            const std::int64_t inner = along_k ? k : lines, pad = (16 - inner % 16) % 16 + 16 * from(0, 1);
            Dims shape = from(0, 2) == 0 ? Dims{} : batch;
            shape.push_back(along_k ? lines : k);
            shape.push_back(inner + pad);
            const int rank = shape.size();
            Array array = random_array(shape, v.dtype, seed).slice(rank - 1, 0, 1, inner);
            if (along_k == lines_first) return array;
            Dims axes;
            for (int i = 0; i < rank; ++i) axes.push_back(i);
            std::swap(axes[rank - 2], axes[rank - 1]);
            return array.transpose(axes);
        };
        const auto either = [&](ops::GemmLayout layout) {
            return layout == ops::GemmLayout::any ? from(0, 1) == 1 : layout == ops::GemmLayout::along_k;
        };
        const Array a = operand(m, true, either(v.a), 2), b = operand(n, false, either(v.b), 3);
        const bool turned = v.wgmma != nullptr && v.a == v.b && round % 2 == 1;
        const auto whole = ops::matmul_with(v, a, b, turned);
        if (!whole) continue;  // batches of one b became rows, more than this kernel makes
        const auto governor = std::make_shared<Asking>(from(2, 12));
        std::optional<Array> sliced;
        {
            const StreamScope scope(governed(test_device(), governor));
            sliced = ops::matmul_with(v, a, b, turned);
        }
        EXPECT_EQ(difference(bytes_of(*sliced), bytes_of(*whole)), "")
            << m << " x " << n << " x " << k << "; the whole one again: "
            << difference(bytes_of(*ops::matmul_with(v, a, b, turned)), bytes_of(*whole));
        EXPECT_LE(governor->launches, 3 * governor->wanted + 2);
        cut += governor->launches > 1;
    }
    EXPECT_GE(cut, rounds / 3);
}

INSTANTIATE_TEST_SUITE_P(Matmul, Slices, testing::Range(0, static_cast<int>(ops::gemm_variants().size())),
                         [](const testing::TestParamInfo<int>& parameter) {
                             const ops::GemmVariant& v =
                                 ops::gemm_variants()[static_cast<std::size_t>(parameter.param)];
                             return v.kernel().name() +
                                    std::string(v.gemv == ops::GemvForm::columns_split ? "_split" : "");
                         });

TEST(Slices, OfAttentionGiveTheBitsOfOneLaunch) {
    std::mt19937 random(5);
    const auto from = [&](std::int64_t low, std::int64_t high) {
        return std::uniform_int_distribution<std::int64_t>(low, high)(random);
    };
    for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
        for (int round = 0; round < 12; ++round) {
            const std::int64_t kv_heads = from(1, 3), heads = kv_heads * from(1, 3);
            const std::int64_t d = 2 * from(1, round % 4 == 0 ? 128 : 40), tokens = from(9, 300);
            const std::int64_t capacity = tokens + from(1, 40);
            // Queries as a part of a fused array; a cache that is longer than it need be.
            const Array q = random_array({tokens, heads, d + 6}, dtype, 1).slice(2, 2, 1, d);
            const Array k = random_array({kv_heads, capacity, d}, dtype, 2);
            const Array v = random_array({kv_heads, capacity, d}, dtype, 3);
            const Array position = values::upload({static_cast<double>(from(0, 30))}, {1}, DType::int32);
            const auto attend = [&] {
                return ops::attention_cached(q.expand_dims(0), k.expand_dims(0), v.expand_dims(0), position,
                                             {}, {.scale = 0.3});
            };
            const Array whole = attend();
            const auto governor = std::make_shared<Asking>(from(2, 6));
            Array sliced;
            {
                const StreamScope scope(governed(test_device(), governor));
                sliced = attend();
            }
            EXPECT_EQ(bytes_of(sliced), bytes_of(whole)) << tokens << " tokens, heads of " << d;
            // `contiguous` of the queries may be one more.
            if (tokens >= 128) {
                EXPECT_GE(governor->launches, 2) << tokens;
            }
            EXPECT_TRUE(governor->asked);
        }
    }
}

TEST(Slices, OfACaptureAreNodes) {
    const Array a = random_array({256, 64}, DType::float32, 1),
                b = random_array({64, 256}, DType::float32, 2);
    const Array expected = ops::matmul(a, b);
    const auto governor = std::make_shared<Asking>(4);
    const auto stream = governed(test_device(), governor);
    Array c = Array::empty(test_device(), {256, 256}, DType::float32);
    const auto graph = Graph::capture(stream, [&] { ops::matmul(a, b, &c); });
    EXPECT_TRUE(governor->captured);
    EXPECT_EQ(graph->node_count(), 4u);
    EXPECT_NEAR(graph->cost().flops, 2.0 * 256 * 256 * 64, 1);
    graph->launch(stream);
    stream->synchronize();
    EXPECT_EQ(bytes_of(c), bytes_of(expected));
}

TEST(Slices, KeepABlockForEachSm) {
    TestDevice target({.multiprocessors = 4});
    const auto governor = std::make_shared<Asking>(1);
    const StreamScope scope(governed(target.device, governor));
    const Array a = Array::empty(target.device, {1024, 16}, DType::float32);
    const Array b = Array::empty(target.device, {16, 1024}, DType::float32);
    ops::matmul(a, b);  // 8 x 4 tiles of 128 x 256
    EXPECT_EQ(governor->allowed, 8);
    EXPECT_EQ(governor->launches, 1);
    ops::matmul(Array::empty(target.device, {8, 16}, DType::float32), b);
    EXPECT_EQ(governor->allowed, 1);
}

TEST(SliceConfig, IsChecked) {
    for (const std::int64_t bad :
         {std::int64_t{0}, std::int64_t{999}, std::int64_t{-1}, INT64_MAX, INT64_MIN}) {
        expect_kind(ErrorKind::value, [&] { check(SliceConfig{bad}); });
        expect_kind(ErrorKind::value, [&] { PartitionLimits().slicing({bad}); });
        if (bad == 0) continue;  // none
        expect_kind(ErrorKind::value, [&] { check(PacingConfig{.slicing = {bad}}); });
    }
    EXPECT_EQ(PartitionLimits().slicing({200 * kUs}).slicing().max_ns, 200 * kUs);
}

TEST(KernelTimes, OtherSizesOfAKernelGoAtItsRate) {
    KernelTimes times(1e12);
    const char* name = "product";
    const auto work = [&](double flops, WorkKind kind = WorkKind::kernel) {
        return WorkRecord{kind, name, nullptr, {.grid = {7, 1, 1}}, {.flops = flops}, false};
    };
    const auto expected = [&](double flops) { return static_cast<double>(times.expected_ns(work(flops))); };
    EXPECT_NEAR(expected(1e10), 1e6, 1e4);             // at the rate that is assumed, 1e13 a second
    times.learn(times.of(work(1e10)).key, 4'000'000);  // it is four times as slow
    EXPECT_EQ(expected(1e10), 4e6);
    EXPECT_NEAR(expected(1e11), 4e7, 1e5);
    EXPECT_NEAR(static_cast<double>(times.of(work(1e9)).ns), 4e5, 1e4);
    // Short runs, which are mostly their launch, say little.
    for (int i = 0; i < 3; ++i) times.learn(times.of(work(1e5)).key, 5'000);
    EXPECT_NEAR(expected(1e11), 4e7, 1e6);
    // Graphs of one name have nothing in common.
    times.learn(times.of(work(1e10, WorkKind::graph)).key, 9'000'000);
    EXPECT_NEAR(static_cast<double>(times.expected_ns(work(1e11, WorkKind::graph))), 1e7, 1e4);
}

namespace {

// A best-effort tenant's product of 5.4 ms, in the middle of which a protected tenant's kernel comes.
struct Meeting {
    std::int64_t waited_ns = 0;
    std::uint64_t launches = 0, sliced = 0;
    std::vector<unsigned char> result;
};

Meeting meet(const SliceConfig& slicing) {
    const auto clock = std::make_shared<VirtualClock>();
    TestDevice target({.multiprocessors = 4, .clock = clock, .rates = {.flops = 1e11, .bytes = 1e12}});
    Device& device = target.device;
    device.launcher().add_hook(std::make_shared<DeclaredCosts>());
    const auto guard =
        std::make_shared<KernelPacingEngine>(device, PacingConfig{.is_protected = true}, *clock);
    const auto victim = Tenant::create({.name = "victim", .governor = guard});
    guard->protect(victim);
    const auto precious = Stream::create_for(victim, device);
    const Array small = Array::empty(device, {64}, DType::float32);

    std::int64_t arrival = 0, came = -1, done = -1;
    const auto look = [&] {
        if (came < 0 && arrival > 0 && clock->now_ns() >= arrival) {
            std::thread([&] { device.launcher().fill(*precious, small.data(), 1, 256); }).join();
            came = clock->now_ns();
        }
        if (came >= 0 && done < 0 && precious->query()) done = clock->now_ns();
    };
    const auto engine = std::make_shared<KernelPacingEngine>(
        device, PacingConfig{.slicing = slicing}, *clock, [&](std::int64_t, std::int64_t until) {
            if (arrival > clock->now_ns()) clock->advance_to(std::min(arrival, until));
            look();
            clock->advance_to(until);
            look();
        });
    // As on a GPU nothing is preempted: what was launched first is done first, here by its priority.
    const auto stream = Stream::create_for(Tenant::create({.name = "neighbour", .governor = engine}), device,
                                           device.info().highest_priority);
    Meeting meeting;
    {
        const StreamScope scope(stream);
        const auto matrix = [&](std::int64_t rows, std::int64_t columns, unsigned seed) {
            std::vector<float> numbers;
            for (const double each : values::random(rows * columns, DType::float32, seed)) {
                numbers.push_back(static_cast<float>(each));
            }
            Array array = Array::empty(device, {rows, columns}, DType::float32);
            array.copy_from_host(numbers.data());
            return array;
        };
        const Array a = matrix(1024, 128, 1), b = matrix(128, 2048, 2);
        ops::matmul(a, b);
        stream->synchronize();  // its time is known from here on
        const std::uint64_t before = engine->stats().launches;
        arrival = clock->now_ns() + 1'100 * kUs;
        const Array c = ops::matmul(a, b);
        while (done < 0) {
            clock->advance(kUs);
            look();
        }
        stream->synchronize();
        meeting.launches = engine->stats().launches - before;
        meeting.result = bytes_of(c);
    }
    meeting.waited_ns = done - came;
    meeting.sliced = engine->stats().sliced;
    return meeting;
}

}  // namespace

TEST(Slices, AProtectedKernelWaitsForOneAndNotForTheWhole) {
    const Meeting whole = meet({});
    EXPECT_EQ(whole.launches, 1u);
    EXPECT_EQ(whole.sliced, 0u);
    EXPECT_GE(whole.waited_ns, 4'000 * kUs);
    const Meeting sliced = meet({400 * kUs});
    EXPECT_EQ(sliced.launches, 16u);  // of 336 us
    EXPECT_EQ(sliced.sliced, 1u);
    EXPECT_LE(sliced.waited_ns, 350 * kUs);
    EXPECT_EQ(sliced.result, whole.result);
    const Meeting longer = meet({2 * kMs});
    EXPECT_EQ(longer.launches, 4u);
    EXPECT_LE(longer.waited_ns, 1'360 * kUs);
    EXPECT_EQ(longer.result, whole.result);
}

// As users ask for it; a task or another tenant below the partition has it too.
TEST(Slices, OfAPartition) {
    TestDevice target({.multiprocessors = 4});
    PartitionManager manager({.device = &target.device});
    const auto partition =
        manager.create("sliced", "", PartitionLimits().qos(QosClass::best_effort).slicing({kUs}));
    const Array a = Array::empty(target.device, {1024, 64}, DType::float32);
    const Array b = Array::empty(target.device, {64, 1024}, DType::float32);
    target.device.synchronize();
    const auto task = Tenant::create({.name = "task", .shown = false}, partition->tenant());
    const auto launches = [&](const std::shared_ptr<Stream>& stream) {
        const StreamScope scope(stream);
        target.driver.set_faults({});
        ops::matmul(a, b);
        return target.driver.call_counts().at("launch");
    };
    const auto stream = Stream::create_for(partition->tenant(), target.device);
    EXPECT_EQ(launches(stream), 8);
    EXPECT_EQ(launches(Stream::create_for(task, target.device)), 8);
    EXPECT_EQ(partition->pacing().sliced, 2u);
    manager.resize(*partition, PartitionLimits().qos(QosClass::best_effort));
    EXPECT_EQ(launches(stream), 1);
    manager.destroy("sliced");
    const StreamScope scope(stream);
    expect_kind(ErrorKind::unsupported, [&] { ops::matmul(a, b); });
}

// Each launch of a sliced product fails in turn: nothing leaks, and the next product is right.
TEST(Slices, MayFail) {
    TestDevice target({.multiprocessors = 2});
    std::weak_ptr<KernelPacingEngine> gone;
    {
        const auto engine =
            std::make_shared<KernelPacingEngine>(target.device, PacingConfig{.slicing = {kUs}});
        gone = engine;
        const StreamScope scope(governed(target.device, engine));
        // Not so large that its copies go by the transfer engine, which would keep the tenant.
        std::vector<float> ones(1024 * 64, 1.0f);
        const Array a = Array::empty(target.device, {1024, 64}, DType::float32);
        const Array b = Array::empty(target.device, {64, 448}, DType::float32);
        a.copy_from_host(ones.data());
        b.copy_from_host(ones.data());
        int failures = 0;
        for (int nth = 1; nth <= 9; ++nth) {
            target.driver.set_faults(
                {{.call = "launch", .nth = nth, .code = 1, .code_name = "CUDA_ERROR_INVALID_VALUE"}});
            try {
                ops::matmul(a, b);
            } catch (const DriverError&) {
                ++failures;
            }
            target.driver.set_faults({});
            std::vector<float> c(1024 * 448);
            ops::matmul(a, b).copy_to_host(c.data());
            EXPECT_EQ(c, std::vector<float>(1024 * 448, 64.0f));
        }
        EXPECT_EQ(failures, 8);
        // Those before each failure, one run that none met, and the right ones.
        EXPECT_EQ(current_stream(target.device)->meter()[Count::kernels], 28u + 8 + 9 * 8);
    }
    target.device.synchronize();
    MemoryPool::of(target.device).trim();  // what it kept of the stream's memory keeps the stream, too
    EXPECT_TRUE(gone.expired());
    EXPECT_EQ(target.driver.live_events(), 0u);
    EXPECT_EQ(target.driver.invalid_frees(), 0u);
}
