// A program that allocates, evicts, reloads, reads, writes and trims, for the sweeps that let calls fail.
#pragma once

#include <array>
#include <functional>

#include "evict_support.hpp"

namespace sim {

struct Known {
    gpk::Array array;
    std::int64_t value = 0;  // of word 0
    std::int64_t step = 1;   // from one word to the next
};

// Runs operations; the first failure ends the plan of faults, and the rest goes on without.
class Program {
   public:
    explicit Program(TestDevice& target, gpk::ErrorKind also = gpk::ErrorKind::driver)
        : target_(target), also_(also) {}

    int failures = 0;
    std::function<void()> after_failure = nullptr;

    template <class Operation>
    void run(Operation&& operation, std::function<void()> then = nullptr) {
        try {
            operation();
        } catch (const gpk::Error& failure) {
            ++failures;
            EXPECT_TRUE(failure.kind() == gpk::ErrorKind::driver ||
                        failure.kind() == gpk::ErrorKind::memory || failure.kind() == also_)
                << failure.what();
            target_.driver.set_faults({});
            if (after_failure) after_failure();
            return;
        }
        if (then) then();
    }

    void make(std::size_t at, std::int64_t value, std::int64_t pages) {
        run([&] {
            gpk::Array made = counted(target_.device, value, pages);
            known_.at(at) = {std::move(made), value, 1};
        });
    }
    void change(std::size_t at) {
        Known& x = known_.at(at);
        if (x.array.storage() == nullptr) return;
        run([&] { affine(x.array, 3, 1); },
            [&] {
                x.value = x.value * 3 + 1;
                x.step *= 3;
            });
    }
    void read(std::size_t at) {
        run([&] { check(known_.at(at)); });
    }
    void evict(std::size_t at) {
        if (known_.at(at).array.storage() == nullptr) return;
        run([&] { known_.at(at).array.storage()->evict(); });
    }
    void drop(std::size_t at) { known_.at(at) = {}; }
    void trim() {
        run([&] { gpk::MemoryPool::of(target_.device).trim(); });
    }
    void check_all() {
        for (Known& each : known_) check(each);
        known_ = {};
    }

   private:
    static void check(const Known& x) {
        if (x.array.storage() == nullptr) return;
        const auto host = words(x.array);
        for (std::size_t i = 0; i < host.size(); ++i) {
            ASSERT_EQ(host[i], x.value + x.step * static_cast<std::int64_t>(i)) << i;
        }
    }

    TestDevice& target_;
    gpk::ErrorKind also_;  // may come out, too
    std::array<Known, 6> known_;
};

inline void program(Program& p, const std::shared_ptr<gpk::Stream>& one,
                    const std::shared_ptr<gpk::Stream>& two) {
    {
        const gpk::StreamScope scope(one);
        for (std::size_t i = 0; i < 6; ++i) p.make(i, static_cast<std::int64_t>(i), 1 + i % 3);
        p.change(0);
        p.change(1);
    }
    {
        const gpk::StreamScope scope(two);
        p.change(1);
        p.change(4);
        p.evict(2);
        p.evict(1);
        p.read(3);
        p.change(2);
        p.drop(3);
        p.make(3, 77, 3);
        p.trim();
        p.change(3);
    }
    p.change(5);
    p.read(0);
}

}  // namespace sim
