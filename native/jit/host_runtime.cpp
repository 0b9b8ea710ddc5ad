#include "jit/host_runtime.hpp"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/parallel.hpp"

namespace gpk::jit {

namespace {

constexpr std::uint32_t kWarp = 32;
constexpr std::size_t kStackBytes = 256 * 1024;  // of address space; pages come as they are touched
constexpr std::uint64_t kCanary = 0x67706b2073746163;

enum class State { ready, at_block_barrier, at_warp_exchange, done };

struct Fiber {
    ucontext_t context;
    State state = State::ready;
    std::uint32_t index = 0;
    std::uint32_t predicate = 0;  // given to a block barrier
    std::uint64_t vote = 0;       // got from it
    std::uint32_t mask = 0;       // given to a warp exchange, with `value`
    std::uint64_t value = 0;
    std::uint32_t participants = 0;   // got from it
    std::uint64_t* values = nullptr;  // where it puts all lanes' values
};

Error kernel_error(const std::string& what, const std::string& fix) {
    return error(ErrorKind::driver, {.call = "kernel on the simulated device", .got = what, .fix = fix});
}

constexpr const char* kThrew = "it threw an exception, which device code cannot";

// The blocks of one processor thread, one after another. Stacks stay for the next block.
class BlockRunner {
   public:
    ~BlockRunner() {
        if (stacks_ != nullptr) munmap(stacks_, stack_count_ * kStackBytes);
    }

    void run(std::uint32_t threads, void (*thread)(void*, std::uint32_t), void* context) {
        grow(threads);
        thread_ = thread;
        thread_context_ = context;
        failure_.clear();
        for (std::uint32_t i = 0; i < threads; ++i) start(i);
        while (step()) {
        }
        running_ = nullptr;
        if (!failure_.empty()) throw kernel_error(failure_, "");
        for (std::uint32_t i = 0; i < threads; ++i) {
            if (*canary(i) != kCanary) {
                throw kernel_error(str("a thread used more than ", kStackBytes / 1024, " KiB of stack"),
                                   "make its local arrays smaller");
            }
        }
    }

    bool inside() const { return running_ != nullptr; }

    std::uint64_t block_barrier(std::uint32_t predicate) {
        running_->predicate = predicate;
        Fiber* const self = running_;
        leave(State::at_block_barrier);
        return self->vote;
    }

    std::uint32_t warp_exchange(std::uint32_t mask, std::uint64_t value, std::uint64_t* values) {
        Fiber* const self = running_;
        self->mask = mask | (1u << (self->index % kWarp));
        self->value = value;
        self->values = values;
        leave(State::at_warp_exchange);
        return self->participants;
    }

    void fail(const char* message) {
        failure_ = message;
        leave(State::done);
    }

   private:
    void grow(std::uint32_t threads) {
        fibers_.resize(threads);
        if (threads <= stack_count_) return;
        void* const memory = mmap(nullptr, threads * kStackBytes, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            throw error(ErrorKind::memory, {.call = "kernel on the simulated device",
                                            .expected = str("memory for ", threads, " stacks"),
                                            .got = std::strerror(errno)});
        }
        if (stacks_ != nullptr) munmap(stacks_, stack_count_ * kStackBytes);
        stacks_ = static_cast<char*>(memory);
        stack_count_ = threads;
    }

    std::uint64_t* canary(std::uint32_t index) const {
        return reinterpret_cast<std::uint64_t*>(stacks_ + index * kStackBytes);
    }

    void start(std::uint32_t index) {
        Fiber& fiber = fibers_[index];
        fiber.state = State::ready;
        fiber.index = index;
        *canary(index) = kCanary;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = stacks_ + index * kStackBytes;
        fiber.context.uc_stack.ss_size = kStackBytes;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, &BlockRunner::enter, 0);
    }

    static void enter();

    void leave(State state) {
        Fiber* const self = running_;
        self->state = state;
        swapcontext(&self->context, &scheduler_);
    }

    // Runs every thread that can, then lets those go on whose meeting is complete. False at the end.
    bool step() {
        bool ran = false, left = false;
        for (Fiber& fiber : fibers_) {
            if (fiber.state == State::ready) {
                running_ = &fiber;
                swapcontext(&scheduler_, &fiber.context);
                ran = true;
                if (!failure_.empty()) return false;
            }
            left |= fiber.state != State::done;
        }
        if (!left) return false;
        if (release_block() || release_warps() || ran) return true;
        running_ = nullptr;
        throw kernel_error("its threads wait for one another for ever",
                           "every thread of a block must reach the same __syncthreads(), and every lane "
                           "of a mask the same warp function");
    }

    bool release_block() {
        std::uint64_t count = 0, votes = 0;
        for (const Fiber& fiber : fibers_) {
            if (fiber.state == State::done) continue;
            if (fiber.state != State::at_block_barrier) return false;
            ++count;
            votes += fiber.predicate != 0;
        }
        for (Fiber& fiber : fibers_) {
            if (fiber.state == State::done) continue;
            fiber.vote = count << 32 | votes;
            fiber.state = State::ready;
        }
        return true;
    }

    bool release_warps() {
        bool released = false;
        for (std::size_t first = 0; first < fibers_.size(); first += kWarp) {
            const std::size_t lanes = std::min<std::size_t>(kWarp, fibers_.size() - first);
            for (std::size_t lane = 0; lane < lanes; ++lane) {
                const Fiber& fiber = fibers_[first + lane];
                if (fiber.state == State::at_warp_exchange)
                    released |= release_mask(first, lanes, fiber.mask);
            }
        }
        return released;
    }

    bool release_mask(std::size_t first, std::size_t lanes, std::uint32_t mask) {
        std::uint64_t values[kWarp] = {};
        std::uint32_t participants = 0;
        for (std::size_t lane = 0; lane < lanes; ++lane) {
            const Fiber& fiber = fibers_[first + lane];
            if ((mask >> lane & 1) == 0 || fiber.state == State::done) continue;
            if (fiber.state != State::at_warp_exchange || fiber.mask != mask) return false;
            values[lane] = fiber.value;
            participants |= 1u << lane;
        }
        for (std::size_t lane = 0; lane < lanes; ++lane) {
            if ((participants >> lane & 1) == 0) continue;
            Fiber& fiber = fibers_[first + lane];
            if (fiber.values != nullptr) std::memcpy(fiber.values, values, sizeof(values));
            fiber.participants = participants;
            fiber.state = State::ready;
        }
        return true;
    }

    ucontext_t scheduler_;
    Fiber* running_ = nullptr;
    std::vector<Fiber> fibers_;
    char* stacks_ = nullptr;
    std::size_t stack_count_ = 0;
    void (*thread_)(void*, std::uint32_t) = nullptr;
    void* thread_context_ = nullptr;
    std::string failure_;
};

thread_local std::unique_ptr<BlockRunner> runner;

BlockRunner& this_runner() {
    if (!runner) runner = std::make_unique<BlockRunner>();
    return *runner;
}

void BlockRunner::enter() {
    BlockRunner& self = *runner;
    bool threw = false;
    try {
        self.thread_(self.thread_context_, self.running_->index);
    } catch (...) {  // nothing is below it on this stack
        threw = true;
    }
    if (threw) self.fail(kThrew);
    self.leave(State::done);
}

void parallel(std::int64_t count, void (*body)(void*, std::int64_t, std::int64_t), void* context) {
    parallel_for(count, 1, [=](std::int64_t begin, std::int64_t end) {
        try {
            body(context, begin, end);
        } catch (const Error&) {
            throw;
        } catch (const std::bad_alloc&) {  // the runtime's own, for stacks say
            throw;
        } catch (...) {
            throw kernel_error(kThrew, "");
        }
    });
}

void run_block(std::uint32_t threads, void (*thread)(void*, std::uint32_t), void* context) {
    this_runner().run(threads, thread, context);
}

std::uint64_t block_barrier(std::uint32_t predicate) { return this_runner().block_barrier(predicate); }

std::uint32_t warp_exchange(std::uint32_t mask, std::uint64_t value, std::uint64_t* values) {
    return this_runner().warp_exchange(mask, value, values);
}

void fail(const char* message) {
    if (runner && runner->inside()) runner->fail(message);
    throw kernel_error(message, "");
}

}  // namespace

const HostRuntime& host_runtime() {
    static constexpr HostRuntime runtime = {parallel, run_block, block_barrier, warp_exchange, fail};
    return runtime;
}

}  // namespace gpk::jit
