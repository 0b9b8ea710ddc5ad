#include "runtime/observe.hpp"

#include <algorithm>
#include <exception>
#include <mutex>
#include <vector>

#include "base/clock.hpp"
#include "base/platform.hpp"
#include "runtime/stream.hpp"

namespace gpk::observe {

std::atomic<bool> listened_to{false};

namespace {

using Listeners = std::vector<std::shared_ptr<Listener>>;

struct Registry {
    std::mutex mutex;
    std::shared_ptr<const Listeners> listeners = std::make_shared<Listeners>();  // replaced, never changed
};

std::atomic<std::uint64_t> generation{1};  // of the listeners
std::atomic<Registry*> current{nullptr};

// Never destroyed: threads may yet tell of what happens while the process ends.
Registry& registry() {
    static Registry* const first = [] {
        auto* made = new Registry;
        current.store(made);
        // A child has none of the threads that a lock or a listener may belong to, and begins unobserved.
        platform::on_fork_in_child([] {
            listened_to.store(false);
            generation.fetch_add(1);
            current.store(new Registry);
        });
        return made;
    }();
    static_cast<void>(first);
    return *current.load(std::memory_order_acquire);
}

void replace(Registry& all, Listeners listeners) {
    listened_to.store(!listeners.empty());
    all.listeners = std::make_shared<const Listeners>(std::move(listeners));
    generation.fetch_add(1, std::memory_order_release);
}

// Each thread keeps the listeners that it saw last, so that threads share no lock on the way.
thread_local constinit bool thread_ends = false;
struct Seen {
    ~Seen() { thread_ends = true; }
    std::uint64_t generation = 0;
    std::shared_ptr<const Listeners> listeners;
};
thread_local Seen seen;

std::shared_ptr<const Listeners> listeners_now() noexcept {
    if (thread_ends) return nullptr;
    const std::uint64_t now = generation.load(std::memory_order_acquire);
    if (seen.generation != now) {
        Registry& all = registry();
        std::lock_guard lock(all.mutex);
        seen.listeners = all.listeners;
        seen.generation = now;
    }
    return seen.listeners;
}

}  // namespace

std::string_view to_string(Topic topic) noexcept {
    static constexpr std::string_view kNames[] = {"work",     "wait",      "pacing", "memory",
                                                  "transfer", "admission", "task"};
    return kNames[static_cast<int>(topic)];
}

Who::Who(const Stream& of_stream) noexcept
    : device(&of_stream.device()), tenant(of_stream.tenant().get()), stream(&of_stream) {}

void add_listener(std::shared_ptr<Listener> listener) {
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    Listeners next = *all.listeners;
    next.push_back(std::move(listener));
    replace(all, std::move(next));
}

void remove_listener(const Listener* listener) noexcept {
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    Listeners next = *all.listeners;
    std::erase_if(next, [&](const auto& each) { return each.get() == listener; });
    replace(all, std::move(next));
}

void tell(const Happening& happening) noexcept {
    const auto listeners = listeners_now();
    if (!listeners) return;
    for (const auto& each : *listeners) each->happened(happening);
}

void tell_now(Topic topic, Form form, std::string_view name, const Who& who, double amount,
              std::string_view detail) noexcept {
    const std::int64_t now = steady_clock().now_ns();
    tell({.topic = topic,
          .form = form,
          .name = name,
          .who = who,
          .start_ns = now,
          .end_ns = now,
          .amount = amount,
          .detail = detail});
}

void Span::begin(Topic topic, std::string_view name, const Who& who, const WorkRecord* work) noexcept {
    auto listeners = listeners_now();
    if (!listeners || listeners->empty()) return;
    const std::int64_t now = steady_clock().now_ns();
    open_.emplace(Open{{.topic = topic,
                        .form = Form::span,
                        .name = name,
                        .who = who,
                        .start_ns = now,
                        .end_ns = now,
                        .work = work},
                       {},
                       std::uncaught_exceptions(),
                       std::move(listeners)});
    for (const auto& each : *static_cast<const Listeners*>(open_->listeners.get())) {
        each->began(open_->happening);
    }
}

void Span::end() noexcept {
    Happening& happening = open_->happening;
    happening.end_ns = steady_clock().now_ns();
    happening.detail = open_->detail;
    happening.failed = std::uncaught_exceptions() > open_->exceptions;
    for (const auto& each : *static_cast<const Listeners*>(open_->listeners.get())) {
        each->happened(happening);
    }
}

void Span::tell_queueing(void (Listener::*what)(const Happening&) noexcept) noexcept {
    for (const auto& each : *static_cast<const Listeners*>(open_->listeners.get())) {
        ((*each).*what)(open_->happening);
    }
}

}  // namespace gpk::observe
