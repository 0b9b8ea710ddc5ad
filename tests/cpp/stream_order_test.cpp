// Random programs over several streams, on the simulated device that runs them in any legal order: the
// results are those of a serial run. And the inverse: with the ordering left out they are not, so
// this bench can fail.
#include <algorithm>
#include <random>
#include <vector>

#include "array/storage.hpp"
#include "memory/pool.hpp"
#include "runtime/graph.hpp"
#include "runtime/kernel.hpp"
#include "sim_support.hpp"

using namespace gpk;
using namespace sim;

namespace {

constexpr int kWords = 8;
constexpr std::size_t kBytes = kWords * sizeof(std::int64_t);

const Kernel affine_kernel{kAffine};
const Kernel mix_kernel{kMix};

// A storage and what it holds after everything asked for so far, done serially.
struct Cell {
    std::shared_ptr<Storage> storage;
    std::vector<std::int64_t> expected = std::vector<std::int64_t>(kWords, 0);
};
using CellPtr = std::shared_ptr<Cell>;

enum class Leave { nothing, out_read_waits, out_write_waits };

class Program {
   public:
    Program(std::uint64_t seed, Leave leave)
        : target_({.interleaved = true, .seed = seed}), random_(seed * 7919 + 1), leave_(leave) {
        // Room for little more than what lives, in half of the runs: freed memory is soon used again.
        if (seed % 2 == 0) MemoryPool::of(target_.device).set_limit(20 * 256);
        for (int i = 0; i < 4; ++i) streams_.push_back(Stream::create(target_.device));
        for (int i = 0; i < 5; ++i) cells_.push_back(fresh());
    }

    // The number of words that differ from the serial run.
    int run(int steps) {
        for (int i = 0; i < steps; ++i) step();
        graphs_.clear();
        int wrong = 0;
        for (const CellPtr& cell : cells_) wrong += differences(*cell);
        EXPECT_EQ(target_.driver.invalid_frees(), 0u);
        return wrong;
    }

   private:
    struct Captured {
        std::shared_ptr<Graph> graph;
        CellPtr to, from, result;
    };

    int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }
    const std::shared_ptr<Stream>& any_stream() { return streams_[static_cast<std::size_t>(below(4))]; }
    CellPtr& any_cell() { return cells_[static_cast<std::size_t>(below(static_cast<int>(cells_.size())))]; }
    Launcher& launcher() { return target_.device.launcher(); }

    void reads(Cell& cell, const std::shared_ptr<Stream>& stream) {
        if (leave_ != Leave::out_read_waits) cell.storage->before_read(stream);
    }
    void writes(Cell& cell, const std::shared_ptr<Stream>& stream) {
        if (leave_ != Leave::out_write_waits) cell.storage->before_write(stream);
    }
    std::int64_t* words(Cell& cell) { return reinterpret_cast<std::int64_t*>(cell.storage->pointer()); }

    void fill(Cell& cell, const std::shared_ptr<Stream>& stream, std::uint8_t value) {
        writes(cell, stream);
        launcher().fill(*stream, cell.storage->pointer(), value, kBytes);
        cell.expected.assign(kWords, static_cast<std::int64_t>(value * 0x0101010101010101u));
    }
    void affine(Cell& cell, const std::shared_ptr<Stream>& stream, std::int64_t factor, std::int64_t term) {
        writes(cell, stream);
        launcher().launch(*stream, affine_kernel, {}, AffineParams{words(cell), factor, term, kWords}, {});
        for (auto& word : cell.expected) word = times_plus(word, factor, term);
    }
    void mix(Cell& to, Cell& from, const std::shared_ptr<Stream>& stream) {
        reads(from, stream);
        writes(to, stream);
        launcher().launch(*stream, mix_kernel, {}, MixParams{words(to), words(from), kWords}, {});
        for (int i = 0; i < kWords; ++i) {
            const auto at = static_cast<std::size_t>(i);
            to.expected[at] = times_plus(to.expected[at], 3, from.expected[at]);
        }
    }
    void copy(Cell& to, Cell& from, const std::shared_ptr<Stream>& stream) {
        reads(from, stream);
        writes(to, stream);
        launcher().copy_on_device(*stream, to.storage->pointer(), from.storage->pointer(), kBytes);
        to.expected = from.expected;
    }

    CellPtr fresh() {
        const StreamScope scope(any_stream());
        auto cell = std::make_shared<Cell>();
        cell->storage = Storage::allocate(target_.device, kBytes);
        fill(*cell, current_stream(target_.device), static_cast<std::uint8_t>(below(256)));
        return cell;
    }

    int differences(Cell& cell) {
        const auto& stream = any_stream();
        reads(cell, stream);
        std::vector<std::int64_t> got(kWords);
        launcher().copy_to_host(*stream, got.data(), cell.storage->pointer(), kBytes);
        int wrong = 0;
        for (std::size_t i = 0; i < kWords; ++i) wrong += got[i] != cell.expected[i];
        return wrong;
    }

    // result = (0 * 3 + from) * 3 + to, with a temporary that lives during the capture only; to = to * 5.
    void capture() {
        Captured made;
        made.to = any_cell();
        do made.from = any_cell();
        while (made.from == made.to);
        made.result = std::make_shared<Cell>();
        const auto& stream = any_stream();
        const auto expected_to = made.to->expected;
        made.graph = Graph::capture(stream, [&] {
            made.result->storage = Storage::allocate(target_.device, kBytes);
            Cell temporary{Storage::allocate(target_.device, kBytes)};
            fill(temporary, stream, 0);
            mix(temporary, *made.from, stream);
            copy(*made.result, temporary, stream);
            temporary.storage = nullptr;
            mix(*made.result, *made.to, stream);
            affine(*made.to, stream, 5, 0);
        });
        made.to->expected = expected_to;  // nothing ran yet
        launch(made);
        graphs_.push_back(made);
        cells_.push_back(made.result);
    }
    void launch(Captured& captured) {
        captured.graph->launch(any_stream());
        for (std::size_t i = 0; i < kWords; ++i) {
            captured.result->expected[i] =
                times_plus(captured.from->expected[i], 3, captured.to->expected[i]);
            captured.to->expected[i] = times_plus(captured.to->expected[i], 5, 0);
        }
    }

    void step() {
        CellPtr &a = any_cell(), &b = any_cell();
        const auto& stream = any_stream();
        switch (below(12)) {
            case 0: fill(*a, stream, static_cast<std::uint8_t>(below(256))); break;
            case 1:
            case 2: affine(*a, stream, below(9) + 2, below(9)); break;
            case 3:
            case 4:
            case 5:
                if (a != b) mix(*a, *b, stream);
                break;
            case 6:
                if (a != b) copy(*a, *b, stream);
                break;
            case 7:
            case 8: a = fresh(); break;  // the old one goes back to the pool while work still uses it
            case 9: target_.driver.stream_query(any_stream()->handle()); break;
            case 10:
                if (leave_ != Leave::nothing) break;
                if (graphs_.size() < 2) {
                    capture();
                } else if (below(2) == 0) {
                    launch(graphs_[static_cast<std::size_t>(below(2))]);
                } else {
                    graphs_.erase(graphs_.begin() + below(2));
                    cells_.resize(5);  // their results too, at times
                }
                break;
            case 11: any_stream()->wait(*any_stream()); break;
        }
    }

    TestDevice target_;
    std::mt19937_64 random_;
    Leave leave_;
    std::vector<std::shared_ptr<Stream>> streams_;
    std::vector<CellPtr> cells_;
    std::vector<Captured> graphs_;
};

int wrong_runs(Leave leave, int seeds) {
    int wrong = 0;
    for (int seed = 0; seed < seeds; ++seed) {
        const int words = Program(static_cast<std::uint64_t>(seed), leave).run(60);
        wrong += words > 0;
        EXPECT_TRUE(words == 0 || leave != Leave::nothing) << "seed " << seed << ": " << words << " words";
    }
    return wrong;
}

}  // namespace

TEST(StreamOrder, RandomProgramsGiveWhatASerialRunGives) { EXPECT_EQ(wrong_runs(Leave::nothing, 400), 0); }

TEST(StreamOrder, TheBenchSeesAMissingWaitBeforeAWrite) {
    EXPECT_GT(wrong_runs(Leave::out_write_waits, 40), 10);
}

TEST(StreamOrder, TheBenchSeesAMissingWaitBeforeARead) {
    EXPECT_GT(wrong_runs(Leave::out_read_waits, 40), 10);
}

namespace {

// A block is read on a second stream, freed, and taken by a third. Returns how often the read saw what the
// third wrote.
int reused_too_early(bool tell_the_pool) {
    int wrong = 0;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        TestDevice target({.interleaved = true, .seed = seed});
        MemoryPool& pool = MemoryPool::of(target.device);
        pool.set_limit(512);
        const auto one = Stream::create(target.device), two = Stream::create(target.device),
                   three = Stream::create(target.device);
        Launcher& launcher = target.device.launcher();
        Block seen = pool.allocate(kBytes, one);
        Block block = pool.allocate(kBytes, one);
        launcher.fill(*one, block.pointer, 1, kBytes);
        two->wait(*one);
        launcher.copy_on_device(*two, seen.pointer, block.pointer, kBytes);
        const DevicePtr pointer = block.pointer;
        if (tell_the_pool) {
            pool.release(std::move(block), {two});
        } else {
            pool.release(std::move(block));
        }
        Block next = pool.allocate(kBytes, three);
        EXPECT_EQ(next.pointer, pointer);
        launcher.fill(*three, next.pointer, 2, kBytes);
        target.device.synchronize();
        wrong += *reinterpret_cast<const std::uint8_t*>(seen.pointer) != 1;
        pool.release(std::move(next));
        pool.release(std::move(seen));
    }
    return wrong;
}

}  // namespace

TEST(StreamOrder, FreedMemoryWaitsForEveryStreamThatUsedIt) {
    EXPECT_EQ(reused_too_early(true), 0);
    EXPECT_GT(reused_too_early(false), 5);
}

TEST(StreamOrder, AGraphsMemoryWaitsForTheReadersOfItsArrays) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        TestDevice target({.interleaved = true, .seed = seed});
        Launcher& launcher = target.device.launcher();
        const auto one = Stream::create(target.device), two = Stream::create(target.device);
        const StreamScope scope(one);
        const auto seen = Storage::allocate(target.device, kBytes);
        std::shared_ptr<Storage> result;
        auto graph = Graph::capture(one, [&] {
            result = Storage::allocate(target.device, kBytes);
            result->before_write(one);
            launcher.fill(*one, result->pointer(), 1, kBytes);
        });
        graph->launch(one);
        result->before_read(two);
        seen->before_write(two);
        launcher.copy_on_device(*two, seen->pointer(), result->pointer(), kBytes);
        const DevicePtr pointer = result->pointer();
        graph = nullptr;
        result = nullptr;
        Block next = MemoryPool::of(target.device).allocate(kBytes, one);
        if (next.pointer == pointer) launcher.fill(*one, next.pointer, 2, kBytes);
        target.device.synchronize();
        EXPECT_EQ(*reinterpret_cast<const std::uint8_t*>(seen->pointer()), 1) << "seed " << seed;
        MemoryPool::of(target.device).release(std::move(next));
    }
}
