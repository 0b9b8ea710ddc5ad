#include "runtime/stream.hpp"

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/error.hpp"
#include "runtime/device.hpp"
#include "runtime/meter.hpp"
#include "runtime/observe.hpp"
#include "runtime/tenant.hpp"

namespace gpk {

namespace {

std::atomic<std::uint64_t> next_stream_id{1};

// The open scopes of this thread, one entry a device, and their number: asking the number costs less than
// asking a vector, which is made at a thread's first use.
thread_local std::vector<std::shared_ptr<Stream>> scoped;
thread_local constinit std::size_t scoped_count = 0;

void check_same_device(const char* call, const Device& a, const Device& b) {
    if (&a != &b) {
        throw error(ErrorKind::value, {.call = call,
                                       .expected = str("something on ", a.name()),
                                       .got = str("something on ", b.name())});
    }
}

// A captured stream has no "now" that another could wait for, and may wait for nothing outside.
void refuse_in_capture(const char* call, const Stream& stream) {
    if (stream.capture() == nullptr) return;
    throw error(ErrorKind::unsupported, {.call = call,
                                         .got = "a stream that is being captured",
                                         .fix = "order the streams before the capture, or after a launch"});
}

}  // namespace

Stream::Stream(Device& device, std::shared_ptr<Tenant> tenant, std::shared_ptr<SmPartition> sms, int priority)
    : device_(device),
      tenant_(std::move(tenant)),
      sms_(std::move(sms)),
      meter_(meter_of(device, tenant_.get())),
      handle_(device.driver().stream_create(priority, sms_ ? sms_->handle() : nullptr)),
      multiprocessors_(sms_ ? sms_->multiprocessors() : device.info().multiprocessors),
      id_(next_stream_id.fetch_add(1, std::memory_order_relaxed)),
      priority_(priority) {}

std::shared_ptr<Stream> Stream::create(Device& device, int priority) {
    return create_for(current_stream(device)->tenant(), device, priority);
}

std::shared_ptr<Stream> Stream::create_for(std::shared_ptr<Tenant> tenant, Device& device, int priority) {
    const DeviceInfo& info = device.info();
    if (priority > info.lowest_priority || priority < info.highest_priority) {
        throw error(ErrorKind::value,
                    {.call = "Stream",
                     .argument = "priority",
                     .expected = str(info.highest_priority, " (most urgent) to ", info.lowest_priority),
                     .got = str(priority)});
    }
    if (!tenant) return std::shared_ptr<Stream>(new Stream(device, nullptr, nullptr, priority));
    const auto placed = tenant->placing();
    std::shared_ptr<SmPartition> sms = tenant->sms();
    if (sms && &sms->device() != &device) {
        throw error(ErrorKind::value,
                    {.call = "Stream",
                     .argument = "device",
                     .expected = str("that of '", tenant->name(), "', ", sms->device().name()),
                     .got = device.name()});
    }
    if (!tenant->add_stream()) {
        throw error(ErrorKind::unsupported,
                    {.call = "Stream",
                     .expected = str("fewer streams than '", tenant->name(), "' may have"),
                     .got = str(tenant->live_streams(), " live ones"),
                     .fix = "let streams go, or allow it more"});
    }
    std::shared_ptr<Stream> stream;
    try {
        stream.reset(new Stream(device, tenant, std::move(sms), priority));
    } catch (...) {
        tenant->drop_stream();
        throw;
    }
    tenant->know(stream);
    return stream;
}

Stream::~Stream() {
    marker_.reset();
    if (owns_handle_) device_.driver().stream_destroy(handle());
    if (tenant_) tenant_->drop_stream();
}

std::shared_ptr<SmPartition> Stream::sms() const {
    const auto here = stay();
    return sms_;
}

void Stream::move_to(StreamHandle handle, std::shared_ptr<SmPartition> sms, bool owned) noexcept {
    const StreamHandle left = handle_.exchange(handle, std::memory_order_acq_rel);
    if (owns_handle_) device_.driver().stream_destroy(left);
    owns_handle_ = owned;
    multiprocessors_.store(sms ? sms->multiprocessors() : device_.info().multiprocessors,
                           std::memory_order_relaxed);
    sms_ = std::move(sms);
}

void Stream::synchronize() {
    refuse_in_capture("Stream.synchronize", *this);
    const HostWait counted(meter_);
    const observe::Span span(observe::Topic::wait, "Stream.synchronize", *this);
    const auto here = stay();
    device_.watched([&](Driver& driver) { driver.stream_synchronize(handle()); });
}

bool Stream::query() {
    refuse_in_capture("Stream.is_done", *this);
    const auto here = stay();
    return device_.watched([&](Driver& driver) { return driver.stream_query(handle()); });
}

void Stream::wait(const Event& event) {
    refuse_in_capture("Stream.wait", *this);
    check_same_device("Stream.wait", device_, event.device());
    const auto here = stay();
    device_.watched([&](Driver& driver) { driver.stream_wait_event(handle(), event.handle()); });
}

void Stream::wait(Stream& other) {
    if (&other == this) return;
    refuse_in_capture("Stream.wait", other);
    check_same_device("Stream.wait", device_, other.device_);
    // Held over both calls: a wait is for the latest record, which must be this one.
    std::lock_guard lock(other.marker_mutex_);
    if (!other.marker_) other.marker_ = std::make_unique<Event>(other.device_);
    other.marker_->record(other);
    wait(*other.marker_);
}

const std::shared_ptr<Stream>& current_stream(Device& device) {
    if (scoped_count == 0) return device.default_stream();
    for (const auto& stream : scoped) {
        if (&stream->device() == &device) return stream;
    }
    return device.default_stream();
}

std::shared_ptr<Stream> set_current_stream(std::shared_ptr<Stream> stream) {
    Device& device = stream->device();
    const auto open = std::find_if(scoped.begin(), scoped.end(),
                                   [&](const auto& each) { return &each->device() == &device; });
    std::shared_ptr<Stream> previous = open != scoped.end() ? std::move(*open) : device.default_stream();
    if (stream != device.default_stream()) {
        if (open != scoped.end()) {
            *open = std::move(stream);
        } else {
            scoped.push_back(std::move(stream));
        }
    } else if (open != scoped.end()) {
        scoped.erase(open);  // nothing of the device stays with the thread
    }
    scoped_count = scoped.size();
    return previous;
}

Event::Event(Device& device, bool timing)
    : device_(device), handle_(device.driver().event_create(timing)), timing_(timing) {}

Event::~Event() { device_.driver().event_destroy(handle_); }

void Event::record(Stream& stream) {
    refuse_in_capture("Event.record", stream);
    check_same_device("Event.record", device_, stream.device());
    const auto here = stream.stay();
    device_.watched([&](Driver& driver) { driver.event_record(handle_, stream.handle()); });
}

bool Event::query() const {
    return device_.watched([&](Driver& driver) { return driver.event_query(handle_); });
}

void Event::synchronize() const {
    const HostWait counted(device_.default_stream()->meter());
    const observe::Span span(observe::Topic::wait, "Event.synchronize", device_);
    device_.watched([&](Driver& driver) { driver.event_synchronize(handle_); });
}

float Event::elapsed_ms(const Event& start) const {
    check_same_device("Event.elapsed_ms", device_, start.device_);
    if (!timing_ || !start.timing_) {
        throw error(ErrorKind::value, {.call = "Event.elapsed_ms",
                                       .expected = "two events made with timing",
                                       .got = "one made without",
                                       .fix = "make both with timing=True"});
    }
    return device_.driver().event_elapsed_ms(start.handle_, handle_);
}

}  // namespace gpk
