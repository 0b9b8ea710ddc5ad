#include "scheduler/dispatch.hpp"

#include <utility>

#include "base/error.hpp"
#include "memory/transfer.hpp"
#include "scheduler/dispatch_queue.hpp"
#include "scheduler/dispatch_thread.hpp"

namespace gpk {

namespace {

[[noreturn]] void refuse(const char* argument, const char* expected, std::int64_t got) {
    throw error(ErrorKind::value,
                {.call = "LaunchConfig", .argument = argument, .expected = expected, .got = str(got)});
}

}  // namespace

std::string_view to_string(LaunchState state) noexcept {
    static constexpr std::string_view kNames[] = {"queued", "launched", "completed", "failed", "cancelled"};
    return kNames[static_cast<int>(state)];
}

void check(const DispatchConfig& config) {
    constexpr int kMost = 1 << 16;
    if (config.max_outstanding < 1 || config.max_outstanding > kMost) {
        refuse("max_outstanding", "1 to 65536 launches", config.max_outstanding);
    }
    if (config.max_outstanding_ns < 0) refuse("max_outstanding_time", "0 or more", config.max_outstanding_ns);
    if (config.watchdog_ns < 0) refuse("watchdog", "0 or more", config.watchdog_ns);
}

KernelDispatcher::KernelDispatcher(Device& device, const DispatchConfig& config, const Clock& clock)
    : process_(process_generation()),
      has_thread_(&clock == &steady_clock()),
      queue_(std::make_shared<DispatchQueue>(device, config, clock)),
      thread_(std::make_unique<DispatchThread>()) {}

KernelDispatcher::~KernelDispatcher() {
    if (process_ != process_generation()) {
        // Nobody is to wait for the parent's thread, nor for a lock that it may hold.
        static_cast<void>(thread_.release());
        static_cast<void>(new std::shared_ptr<DispatchQueue>(std::move(queue_)));
        return;
    }
    queue_->cancel_all();
}

void KernelDispatcher::check_process(const char* call) const {
    if (process_ == process_generation()) return;
    throw error(ErrorKind::unsupported, {.call = call,
                                         .got = "a dispatcher of the process that this one was forked from",
                                         .fix = "make a KernelDispatcher after the fork"});
}

KernelDispatcher::Launch KernelDispatcher::submit(std::string name, std::function<void()> work) {
    check_process("KernelDispatcher.submit");
    bool unattended = false;
    Launch launch = queue_->submit(std::move(name), std::move(work), &unattended);
    if (unattended && has_thread_) thread_->wake(queue_);
    return launch;
}

void KernelDispatcher::poll() {
    check_process("KernelDispatcher.poll");
    queue_->poll();
}

LaunchState KernelDispatcher::state(const Launch& launch) {
    check_process("Launch.state");
    return queue_->state(launch);
}

std::int64_t KernelDispatcher::took_ns(const Launch& launch) const {
    check_process("Launch.device_seconds");
    return queue_->took_ns(launch);
}

bool KernelDispatcher::cancel(const Launch& launch) {
    check_process("Launch.cancel");
    return queue_->cancel(launch);
}

bool KernelDispatcher::wait(const Launch& launch, std::int64_t timeout_ns) {
    check_process("Launch.wait");
    return queue_->wait(launch, timeout_ns);
}

void KernelDispatcher::synchronize() {
    check_process("KernelDispatcher.synchronize");
    queue_->synchronize();
}

const std::shared_ptr<Stream>& KernelDispatcher::stream() const noexcept { return queue_->stream(); }
Device& KernelDispatcher::device() const noexcept { return queue_->device(); }

DispatchStats KernelDispatcher::stats() {
    check_process("KernelDispatcher.stats");
    return queue_->stats();
}

bool end_dispatch_threads(std::chrono::nanoseconds timeout) noexcept {
    return DispatchThread::end_all(timeout);
}

}  // namespace gpk
