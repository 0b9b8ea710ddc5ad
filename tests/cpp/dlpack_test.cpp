// DLPack: what is lent stays where it is, what is borrowed is given back once, and both are in order with the
// other side's work.
#include "array/dlpack.hpp"

#include <future>
#include <limits>
#include <numeric>
#include <thread>
#include <vector>

#include "array/exchange.hpp"
#include "evict_support.hpp"
#include "runtime/graph.hpp"
#include "support.hpp"

using namespace gpk;
using namespace sim;
using Waits = dlpack::Borrower::Waits;

namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

dlpack::ManagedVersioned* lend(const Array& array, dlpack::Borrower borrower = {}) {
    return dlpack::lend(array, borrower, dlpack::kVersion, 0);
}
void give_back(dlpack::ManagedVersioned* lent) { lent->deleter(lent); }

// A borrower's own stream, of which the library knows nothing.
struct ForeignStream {
    Device& device;
    StreamHandle handle = device.driver().stream_create(0);

    explicit ForeignStream(Device& on) : device(on) {}
    ~ForeignStream() { device.driver().stream_destroy(handle); }
    dlpack::Borrower borrower() const { return {Waits::on_stream, handle, handle}; }
    void affine(const dlpack::Tensor& x, std::int64_t factor, std::int64_t term) const {
        const AffineParams params{static_cast<std::int64_t*>(x.data), factor, term, x.shape[0]};
        Driver& driver = device.driver();
        driver.launch(handle, driver.function(kAffine), {}, &params, sizeof params);
    }
};

struct Foreign {  // host memory of a producer's
    std::vector<std::int64_t> words;
    std::int64_t shape[1];
    int borrowed = 0, released = 0;
    std::promise<std::vector<std::int64_t>> end;  // what it held when it was given back

    explicit Foreign(std::int64_t count, std::int64_t value = 1)
        : words(static_cast<std::size_t>(count), value), shape{count} {}
    dlpack::Tensor tensor() { return {words.data(), {dlpack::kCpu, 0}, 1, {0, 64, 1}, shape, nullptr, 0}; }
    Array borrow(Device& device) {
        ++borrowed;
        return dlpack::borrow(device, dlpack::read(tensor()), false, [this] {
            if (++released == 1) end.set_value(words);
        });
    }
    std::vector<std::int64_t> at_the_end() { return end.get_future().get(); }
};

}  // namespace

TEST(DLPack, TellsAViewAsItIs) {
    Device& device = test_device();
    const Array base = Array::empty(device, {6, 8}, DType::bfloat16);
    const Array view = base.slice(0, 5, -2, 3).slice(1, 1, 3, 2).readonly();
    auto* lent = lend(view);
    const dlpack::Tensor& tensor = lent->tensor;
    EXPECT_EQ(lent->flags, dlpack::kReadOnly);
    EXPECT_EQ(reinterpret_cast<DevicePtr>(tensor.data), base.data() + 2 * (5 * 8 + 1));
    EXPECT_EQ(tensor.device, dlpack::device_id(device));
    EXPECT_EQ(tensor.ndim, 2);
    EXPECT_EQ(tensor.dtype.code, 4);
    EXPECT_EQ(tensor.dtype.bits, 16);
    EXPECT_EQ(tensor.dtype.lanes, 1);
    EXPECT_EQ(Dims(std::span<const std::int64_t>(tensor.shape, 2)), (Dims{3, 2}));
    EXPECT_EQ(Dims(std::span<const std::int64_t>(tensor.strides, 2)), (Dims{-16, 3}));
    const dlpack::Layout layout = dlpack::read(tensor);
    EXPECT_EQ(layout.dtype, DType::bfloat16);
    EXPECT_EQ(layout.shape, view.shape());
    EXPECT_EQ(layout.strides, view.strides());
    EXPECT_EQ(layout.pointer, base.data() + 2 * (8 + 1));
    EXPECT_EQ(layout.offset, 32);
    EXPECT_EQ(layout.bytes, 2u * (32 + 3 + 1));
    give_back(lent);
}

TEST(DLPack, EachDtypeComesBackAsItself) {
    for (int i = 0; i < kDTypeCount; ++i) {
        const auto dtype = static_cast<DType>(i);
        auto* lent = lend(Array::empty(test_device(), {2}, dtype));
        EXPECT_EQ(dlpack::read(lent->tensor).dtype, dtype);
        give_back(lent);
    }
}

TEST(DLPack, TheOlderFormHasNoReadOnlyArrays) {
    const Array array = Array::empty(test_device(), {2}, DType::int8);
    expect_kind(ErrorKind::exchange, [&] { dlpack::lend_unversioned(array.readonly(), {}); });
    auto* lent = dlpack::lend_unversioned(array, {});
    EXPECT_EQ(reinterpret_cast<DevicePtr>(lent->tensor.data), array.data());
    lent->deleter(lent);
}

TEST(DLPack, WorkOfBothSidesIsInOrderOnTheDevice) {
    Device& device = test_device();
    const ForeignStream other(device);
    constexpr std::size_t kBytes = 1 << 20;
    for (int round = 1; round < 8; ++round) {
        Array array = Array::empty(device, {kBytes}, DType::uint8);
        {
            const UseScope scope;
            const auto& stream = current_stream(device);
            array.storage()->before_write(stream);
            device.launcher().fill(*stream, array.data(), 0xff, kBytes);
        }
        auto* lent = lend(array, other.borrower());
        device.driver().fill(other.handle, array.data(), static_cast<std::uint8_t>(round), kBytes);
        give_back(lent);
        std::vector<std::uint8_t> host(kBytes);
        array.copy_to_host(host.data());
        EXPECT_EQ(std::count(host.begin(), host.end(), round), std::ptrdiff_t{kBytes});
    }
}

TEST(DLPack, MemoryOfTheDriverIsBorrowed) {
    Device& device = test_device();
    constexpr std::int64_t kCount = 1000;
    const DevicePtr memory = device.driver().allocate(kCount);
    std::promise<void> released;
    {
        const Array array = dlpack::borrow(
            device,
            {.dtype = DType::uint8, .shape = {kCount}, .strides = {1}, .pointer = memory, .bytes = kCount},
            false, [&] { released.set_value(); });
        const UseScope scope;
        const auto& stream = current_stream(device);
        array.storage()->before_write(stream);
        device.launcher().fill(*stream, array.data(), 9, kCount);
        std::vector<std::uint8_t> host(kCount);
        array.copy_to_host(host.data());
        EXPECT_EQ(host, std::vector<std::uint8_t>(kCount, 9));
    }
    released.get_future().get();
    device.driver().free(memory);
}

TEST(DLPack, AnAddressThatCudaDoesNotKnowIsRefusedAndReleased) {
    Device& device = test_device();
    if (!device.is_cuda()) GTEST_SKIP() << "the simulated device takes any host memory";
    int released = 0;
    const dlpack::Layout layout{.shape = {4}, .strides = {1}, .pointer = 0x1000, .bytes = 16};
    expect_kind(ErrorKind::value, [&] { dlpack::borrow(device, layout, false, [&] { ++released; }); });
    EXPECT_EQ(released, 1);
    EXPECT_FALSE(device.lost());
}

// -- Eviction ------------------------------------------------------------------------------------------

TEST(DLPack, WhatIsLentIsNotEvicted) {
    TestDevice target(paged());
    MemoryPool& pool = MemoryPool::of(target.device);
    pool.set_limit(8 * kPage);
    pool.set_eviction(true);
    const Array x = counted(target.device, 5, 2);
    auto* first = lend(x);
    auto* second = dlpack::lend_unversioned(x, {});
    const auto* words_there = static_cast<const std::int64_t*>(first->tensor.data);
    std::vector<Array> others;
    for (int i = 0; i < 12; ++i) others.push_back(counted(target.device, 100 * i));
    EXPECT_GT(pool.stats().evictions, 0u);
    EXPECT_FALSE(x.storage()->evict());
    for (std::int64_t i = 0; i < x.size(); ++i) ASSERT_EQ(words_there[i], 5 + i);
    give_back(first);
    EXPECT_FALSE(x.storage()->evict());
    second->deleter(second);
    EXPECT_TRUE(x.storage()->evict());
    EXPECT_TRUE(holds_counted(x, 5));
}

TEST(DLPack, WhatIsAwayComesBackToBeLent) {
    TestDevice target(paged());
    MemoryPool::of(target.device).set_eviction(true);
    const Array x = counted(target.device, 7);
    ASSERT_TRUE(x.storage()->evict());
    auto* lent = lend(x);
    EXPECT_TRUE(x.storage()->on_device());
    EXPECT_EQ(static_cast<const std::int64_t*>(lent->tensor.data)[3], 10);
    give_back(lent);
}

TEST(DLPack, ALoanKeepsItsArray) {
    TestDevice target;
    dlpack::ManagedVersioned* lent = nullptr;
    {
        const Array x = counted(target.device, 3);
        lent = lend(x);
    }
    EXPECT_EQ(MemoryPool::of(target.device).stats().live_blocks, 1u);
    EXPECT_EQ(static_cast<const std::int64_t*>(lent->tensor.data)[1], 4);
    give_back(lent);
    EXPECT_EQ(MemoryPool::of(target.device).stats().live_blocks, 0u);
}

// -- Order, under any interleaving ----------------------------------------------------------------------

TEST(DLPack, EveryInterleavingKeepsTheOrderOfALoan) {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        TestDevice target({.interleaved = true, .seed = seed});
        const ForeignStream other(target.device);
        const auto mine = Stream::create(target.device), third = Stream::create(target.device);
        const Array x = counted(target.device, 0);
        {
            const StreamScope scope(mine);
            affine(x, 3, 1);
        }
        auto* lent = lend(x, other.borrower());
        other.affine(lent->tensor, 5, 2);
        give_back(lent);
        {
            const StreamScope scope(third);
            affine(x, 7, 3);
        }
        const auto host = words(x);
        for (std::int64_t i = 0; i < x.size(); ++i) {
            ASSERT_EQ(host[static_cast<std::size_t>(i)], ((i * 3 + 1) * 5 + 2) * 7 + 3) << "seed " << seed;
        }
    }
}

TEST(DLPack, EveryInterleavingReusesReturnedMemoryBehindTheBorrower) {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        TestDevice target({.interleaved = true, .seed = seed});
        const ForeignStream other(target.device);
        Array x = counted(target.device, 0);
        auto* lent = lend(x, other.borrower());
        other.affine(lent->tensor, 0, 99);
        x = {};
        give_back(lent);  // the block goes back to the pool while the borrower's kernel is queued
        const Array next = counted(target.device, 4);
        affine(next, 2, 0);
        const auto host = words(next);
        for (std::size_t i = 0; i < host.size(); ++i) {
            ASSERT_EQ(host[i], 2 * (4 + static_cast<std::int64_t>(i))) << "seed " << seed;
        }
    }
}

TEST(DLPack, EveryInterleavingReleasesBorrowedMemoryAfterItsLastUse) {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        Foreign foreign(64);
        TestDevice target({.interleaved = true, .seed = seed});
        const auto one = Stream::create(target.device), two = Stream::create(target.device);
        Array x = foreign.borrow(target.device);
        EXPECT_EQ(target.driver.admitted(), 1u);
        for (int i = 0; i < 6; ++i) {
            const StreamScope scope(i % 2 == 0 ? one : two);
            affine(x, 2, 1);
        }
        x = {};
        // 1 -> 3 -> 7 -> ... six times
        ASSERT_EQ(foreign.at_the_end(), std::vector<std::int64_t>(64, 127)) << "seed " << seed;
        EXPECT_EQ(foreign.released, 1);
    }
}

TEST(DLPack, BorrowedMemoryIsReleasedAtOnceWhereNothingUsesIt) {
    TestDevice target;
    Foreign foreign(8);
    Array x = foreign.borrow(target.device);
    affine(x, 2, 3);
    EXPECT_EQ(words(x), std::vector<std::int64_t>(8, 5));
    EXPECT_EQ(MemoryPool::of(target.device).stats().allocations, 0u);
    x = {};
    EXPECT_EQ(foreign.released, 1);
    EXPECT_EQ(target.driver.admitted(), 0u);
    EXPECT_EQ(target.driver.invalid_frees(), 0u);
}

TEST(DLPack, BorrowedMemoryMayBeLentOn) {
    TestDevice target;
    Foreign foreign(8);
    auto* lent = lend(foreign.borrow(target.device));
    EXPECT_EQ(lent->tensor.data, foreign.words.data());
    EXPECT_EQ(foreign.released, 0);
    give_back(lent);
    EXPECT_EQ(foreign.released, 1);
}

// -- Graphs --------------------------------------------------------------------------------------------

TEST(DLPack, AGraphKeepsWhatItBorrowed) {
    TestDevice target;
    Foreign foreign(8);
    const auto stream = Stream::create(target.device);
    const StreamScope scope(stream);
    Array x = foreign.borrow(target.device);
    auto graph = Graph::capture(stream, [&] { affine(x, 2, 0); });
    x = {};
    graph->launch(stream);
    graph->launch(stream);
    stream->synchronize();
    EXPECT_EQ(foreign.released, 0);
    graph = nullptr;
    EXPECT_EQ(foreign.at_the_end(), std::vector<std::int64_t>(8, 4));
}

TEST(DLPack, MemoryReleasedInACaptureGoesAfterIt) {
    TestDevice target({.interleaved = true, .seed = 1});
    Foreign foreign(8);
    const auto stream = Stream::create(target.device);
    const StreamScope scope(stream);
    Array x = foreign.borrow(target.device);
    affine(x, 1, 1);
    const auto graph = Graph::capture(stream, [&] {
        x = {};
        EXPECT_EQ(foreign.released, 0);
    });
    EXPECT_EQ(foreign.at_the_end(), std::vector<std::int64_t>(8, 2));
}

TEST(DLPack, LendingInACaptureIsRefusedUnlessNobodyWaits) {
    TestDevice target;
    const ForeignStream other(target.device);
    const Array x = counted(target.device, 0);
    const auto stream = Stream::create(target.device);
    const auto graph = Graph::capture(stream, [&] {
        expect_kind(ErrorKind::unsupported, [&] { lend(x); });
        expect_kind(ErrorKind::unsupported, [&] { lend(x, other.borrower()); });
        give_back(lend(x, {.waits = Waits::not_at_all}));
        affine(x, 1, 1);
    });
    graph->launch(stream);
    stream->synchronize();
    EXPECT_TRUE(holds_counted(x, 1));
}

TEST(DLPack, AnArrayMayComeBackWhileItsStreamIsCaptured) {
    TestDevice target({.interleaved = true, .seed = 3});
    const ForeignStream other(target.device);
    const Array x = counted(target.device, 0);
    const auto stream = Stream::create(target.device);
    {
        const StreamScope scope(stream);
        affine(x, 1, 0);
    }
    auto* lent = lend(x, other.borrower());
    other.affine(lent->tensor, 2, 1);
    const auto graph = Graph::capture(stream, [&] {
        affine(x, 3, 0);
        give_back(lent);
    });
    graph->launch(stream);
    const auto host = words(x);
    for (std::size_t i = 0; i < host.size(); ++i)
        EXPECT_EQ(host[i], 3 * (2 * static_cast<std::int64_t>(i) + 1));
}

// -- Hostile tensors -----------------------------------------------------------------------------------

namespace {

struct Hostile {
    const char* what;
    std::function<void(dlpack::Tensor&)> spoil;
};

std::int64_t shape_of[2], strides_of[2];
alignas(16) std::int64_t data_of[16];

void set(std::int64_t a, std::int64_t b, std::int64_t s, std::int64_t t) {
    shape_of[0] = a, shape_of[1] = b, strides_of[0] = s, strides_of[1] = t;
}

const Hostile kHostile[] = {
    {"a negative rank", [](dlpack::Tensor& t) { t.ndim = -1; }},
    {"a huge rank", [](dlpack::Tensor& t) { t.ndim = std::numeric_limits<std::int32_t>::max(); }},
    {"a rank past ours", [](dlpack::Tensor& t) { t.ndim = kMaxRank + 1; }},
    {"no shape", [](dlpack::Tensor& t) { t.shape = nullptr; }},
    {"no data", [](dlpack::Tensor& t) { t.data = nullptr; }},
    {"lanes", [](dlpack::Tensor& t) { t.dtype.lanes = 4; }},
    {"no lanes", [](dlpack::Tensor& t) { t.dtype.lanes = 0; }},
    {"complex numbers", [](dlpack::Tensor& t) { t.dtype = {5, 64, 1}; }},
    {"an unknown code", [](dlpack::Tensor& t) { t.dtype.code = 255; }},
    {"four bits", [](dlpack::Tensor& t) { t.dtype.bits = 4; }},
    {"a negative extent", [](dlpack::Tensor&) { set(-1, 4, 4, 1); }},
    {"a negative extent beside 0", [](dlpack::Tensor&) { set(0, -4, 4, 1); }},
    {"too many elements", [](dlpack::Tensor&) { set(kMax, kMax, 0, 0); }},
    {"too many bytes", [](dlpack::Tensor&) { set(kMax / 4, 1, 1, 1); }},
    {"too many bytes of an empty one", [](dlpack::Tensor&) { set(kMax, 0, 1, 1); }},
    {"a long stride", [](dlpack::Tensor&) { set(3, 2, kMax, 1); }},
    {"a long negative stride", [](dlpack::Tensor&) { set(2, 2, kMin, 1); }},
    {"strides whose bytes are too many", [](dlpack::Tensor&) { set(2, 2, kMax / 4, 1); }},
    {"strides to both sides", [](dlpack::Tensor&) { set(2, 2, kMax / 12, -kMax / 12); }},
    {"elements below address 0", [](dlpack::Tensor&) { set(2, 2, -(kMax / 16), 1); }},
    {"elements past the last address",
     [](dlpack::Tensor& t) {
         t.byte_offset = ~std::uint64_t{0} - reinterpret_cast<std::uintptr_t>(t.data) - 7;
         set(2, 2, 2, 1);
     }},
    {"an offset that wraps", [](dlpack::Tensor& t) { t.byte_offset = ~std::uint64_t{0}; }},
    {"an address between elements", [](dlpack::Tensor& t) { t.byte_offset = 4; }},
};

dlpack::Tensor honest() {
    set(2, 4, 4, 1);
    return {data_of, {dlpack::kCpu, 0}, 2, {0, 64, 1}, shape_of, strides_of, 0};
}

}  // namespace

TEST(DLPack, HostileTensorsAreRefused) {
    EXPECT_EQ(dlpack::read(honest()).bytes, 64u);
    for (const Hostile& each : kHostile) {
        dlpack::Tensor tensor = honest();
        each.spoil(tensor);
        SCOPED_TRACE(each.what);
        expect_kind(ErrorKind::exchange, [&] { dlpack::read(tensor); });
    }
}

TEST(DLPack, StridesThatDoNotMatterAreNotRead) {
    dlpack::Tensor tensor = honest();
    set(1, 4, kMin, 1);
    EXPECT_EQ(dlpack::read(tensor).strides, (Dims{4, 1}));
    set(0, 4, kMin, kMax);
    tensor.data = nullptr;
    const dlpack::Layout none = dlpack::read(tensor);
    EXPECT_EQ(none.strides, (Dims{4, 1}));
    EXPECT_EQ(none.bytes, 0u);
    tensor = honest();
    tensor.strides = nullptr;
    tensor.byte_offset = 16;
    EXPECT_EQ(dlpack::read(tensor).pointer, reinterpret_cast<DevicePtr>(data_of + 2));
    tensor = honest();
    set(2, 4, 0, 1);
    EXPECT_FALSE(dlpack::read(tensor).writable);
    tensor.ndim = 0;
    tensor.shape = tensor.strides = nullptr;
    EXPECT_EQ(dlpack::read(tensor).bytes, 8u);
}

TEST(DLPack, DevicesAreNamed) {
    EXPECT_EQ(dlpack::device_of({dlpack::kCpu, 0}), &device("cpu"));
    EXPECT_EQ(dlpack::device_of({dlpack::kCudaHost, 0}), &device("cpu"));
    EXPECT_EQ(dlpack::device_of({10, 0}), nullptr);  // ROCm
    EXPECT_THROW(dlpack::device_of({dlpack::kCuda, 1 << 20}), Error);
    EXPECT_THROW(dlpack::device_of({dlpack::kCuda, -1}), Error);
}

// -- Faults --------------------------------------------------------------------------------------------

namespace {

// 1 -> borrowed, times 2 plus 1 -> lent, times 5 -> times 3 plus 4 -> 49.
std::int64_t borrow_and_lend(TestDevice& target, Foreign& foreign) {
    const ForeignStream other(target.device);
    const auto stream = Stream::create(target.device);
    const StreamScope scope(stream);
    const Array x = foreign.borrow(target.device);
    const Array y = Array::empty(target.device, {foreign.shape[0]}, DType::int64);
    affine(x, 2, 1);
    {
        const UseScope uses;
        x.storage()->before_read(stream);
        y.storage()->before_write(stream);
        target.device.launcher().copy_on_device(*stream, y.data(), x.data(), y.nbytes());
    }
    std::unique_ptr<dlpack::ManagedVersioned, void (*)(dlpack::ManagedVersioned*)> lent(
        lend(y, other.borrower()), [](dlpack::ManagedVersioned* each) { each->deleter(each); });
    other.affine(lent->tensor, 5, 0);
    lent.reset();
    affine(y, 3, 4);
    return words(y)[0];
}

}  // namespace

TEST(DLPack, EveryFaultLeavesNothingLentOrBorrowed) {
    for (const bool interleaved : {false, true}) {
        TestDevice target({.interleaved = interleaved, .seed = 11});
        MemoryPool& pool = MemoryPool::of(target.device);
        Exchange::of(target.device).stream();
        const auto attempt = [&](const std::vector<Fault>& faults) {
            Foreign foreign(16);
            target.driver.set_faults(faults);
            try {
                EXPECT_EQ(borrow_and_lend(target, foreign), 49);
            } catch (const Error& failure) {
                EXPECT_FALSE(faults.empty()) << failure.what();
            }
            const auto counts = target.driver.call_counts();
            target.driver.set_faults({});
            if (foreign.borrowed > 0) foreign.at_the_end();
            EXPECT_EQ(foreign.released, foreign.borrowed);
            EXPECT_EQ(target.driver.admitted(), 0u);
            EXPECT_EQ(pool.stats().live_blocks, 0u);
            EXPECT_EQ(target.driver.invalid_frees(), 0u);
            pool.trim();
            EXPECT_EQ(target.driver.live_streams(), 2u);  // the default one and the exchange's
            EXPECT_EQ(target.driver.live_allocations(), 0u);
            return counts;
        };
        attempt({});
        const auto counts = attempt({});
        int met = 0;
        for (const auto& [call, count] : counts) {
            for (int nth = 1; can_fail(call) && nth <= count; ++nth, ++met) {
                SCOPED_TRACE(str(call, " number ", nth, interleaved ? ", interleaved" : ""));
                attempt({{.call = call, .nth = nth, .code = 999, .code_name = "CUDA_ERROR_UNKNOWN"}});
                attempt({});
            }
        }
        EXPECT_GT(met, 15);
    }
}

TEST(DLPack, ManyThreadsLendAndGiveBack) {
    TestDevice target(paged());
    MemoryPool& pool = MemoryPool::of(target.device);
    pool.set_eviction(true);
    const Array shared = counted(target.device, 1);
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < 200; ++i) {
                auto* lent = lend(shared);
                Foreign foreign(4);
                {
                    const Array x = foreign.borrow(target.device);
                    affine(x, 1, i);
                }
                // While others use the stream, it ends on the exchange's thread.
                wrong += foreign.at_the_end() != std::vector<std::int64_t>(4, 1 + i);
                wrong += static_cast<const std::int64_t*>(lent->tensor.data)[2] != 3;
                give_back(lent);
                shared.storage()->evict();
            }
        });
    }
    for (std::thread& each : threads) each.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_FALSE(shared.storage()->held());
    EXPECT_TRUE(holds_counted(shared, 1));
}
