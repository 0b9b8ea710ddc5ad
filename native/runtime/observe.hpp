// What layers tell of themselves: spans, instants and levels of a device, a tenant and a stream. Whoever
// listens (the trace, a profiler's ranges) is told on the thread where it happens. While nobody listens, a
// call costs one load.
//
//     observe::Span span(observe::Topic::memory, "evict", {device, tenant});
//     span.bytes(block.bytes);                       // an exception that passes marks it as failed
//     observe::instant(observe::Topic::admission, "rejected", {device, tenant}, 0, reason);
//     observe::level("queue length", {device, tenant}, waiting);
//
// What is counted, listened to or not, is in runtime/meter.hpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace gpk {

class Device;
class Stream;
class Tenant;
struct WorkRecord;

namespace observe {

enum class Topic : std::uint8_t { work, wait, pacing, memory, transfer, admission, task };
std::string_view to_string(Topic topic) noexcept;

// Whom it concerns, as far as there is one.
struct Who {
    Who() = default;
    Who(const Device& of_device, const Tenant* of_tenant = nullptr) : device(&of_device), tenant(of_tenant) {}
    Who(const Stream& of_stream) noexcept;

    const Device* device = nullptr;
    const Tenant* tenant = nullptr;
    const Stream* stream = nullptr;
};

enum class Form : std::uint8_t { span, instant, level };

// As a listener is told of it; what is pointed to lives as long as the call.
struct Happening {
    Topic topic;
    Form form;
    std::string_view name;
    Who who;
    std::int64_t start_ns;             // on the host's steady clock
    std::int64_t end_ns;               // as start_ns but for a span
    double amount = 0;                 // a level's value, else bytes
    std::string_view detail = {};      // a reason, a decision
    bool failed = false;               // an exception ended the span
    const WorkRecord* work = nullptr;  // of Topic::work
};

class Listener {
   public:
    virtual ~Listener() = default;
    // A span begins; end_ns, amount and detail are not known yet. Its happened() follows on this thread, also
    // after the listener was removed.
    virtual void began(const Happening&) noexcept {}
    virtual void happened(const Happening& happening) noexcept = 0;
    // Right before and after work is given to the driver, once hooks and governors have let it go. The second
    // follows where the driver took it.
    virtual void queueing(const Happening&) noexcept {}
    virtual void queued(const Happening&) noexcept {}
};

void add_listener(std::shared_ptr<Listener> listener);
void remove_listener(const Listener* listener) noexcept;

extern std::atomic<bool> listened_to;
inline bool listening() noexcept { return listened_to.load(std::memory_order_relaxed); }

// What happens now. `name` and `detail` are copied where somebody listens; `bytes` of 0 is not shown.
void tell(const Happening& happening) noexcept;
void tell_now(Topic topic, Form form, std::string_view name, const Who& who, double amount,
              std::string_view detail) noexcept;
inline void instant(Topic topic, std::string_view name, const Who& who, double bytes = 0,
                    std::string_view detail = {}) noexcept {
    if (listening()) tell_now(topic, Form::instant, name, who, bytes, detail);
}
// A number that changes over time: a queue's length, bytes live.
inline void level(std::string_view name, const Who& who, double value) noexcept {
    if (listening()) tell_now(Topic::work, Form::level, name, who, value, {});
}

// From its construction to its end, on one thread, the last begun ending first. `name` outlives it.
class Span {
   public:
    Span(Topic topic, std::string_view name, const Who& who, const WorkRecord* work = nullptr) noexcept {
        if (listening()) begin(topic, name, who, work);
    }
    ~Span() {
        if (open_) end();
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

    void bytes(double bytes) noexcept {
        if (open_) open_->happening.amount = bytes;
    }
    void queueing() noexcept {
        if (open_) tell_queueing(&Listener::queueing);
    }
    void queued() noexcept {
        if (open_) tell_queueing(&Listener::queued);
    }
    void detail(std::string_view text) {
        if (open_) open_->detail = text;
    }

   private:
    struct Open {
        Happening happening;
        std::string detail;
        int exceptions;  // under way at the beginning
        std::shared_ptr<const void> listeners;
    };
    void begin(Topic topic, std::string_view name, const Who& who, const WorkRecord* work) noexcept;
    void end() noexcept;
    void tell_queueing(void (Listener::*what)(const Happening&) noexcept) noexcept;

    std::optional<Open> open_;
};

}  // namespace observe
}  // namespace gpk
