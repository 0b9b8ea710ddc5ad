#include "scheduler/pacing.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "base/error.hpp"
#include "runtime/meter.hpp"
#include "runtime/observe.hpp"
#include "runtime/stream.hpp"

namespace gpk {

// The protected tenants of a device, and how many others there are to be held for them.
class PacingDomain {
   public:
    std::shared_ptr<const std::vector<std::shared_ptr<Protection>>> protections() const {
        std::lock_guard lock(mutex_);
        return all_;
    }
    void add(const std::shared_ptr<Protection>& protection) {
        std::lock_guard lock(mutex_);
        auto next = std::make_shared<std::vector<std::shared_ptr<Protection>>>(*all_);
        next->push_back(protection);
        all_ = std::move(next);
        guarded.store(true, std::memory_order_release);
    }
    void remove(const std::shared_ptr<Protection>& protection) {
        std::lock_guard lock(mutex_);
        auto next = std::make_shared<std::vector<std::shared_ptr<Protection>>>(*all_);
        std::erase(*next, protection);
        guarded.store(!next->empty(), std::memory_order_release);
        all_ = std::move(next);
    }

    std::atomic<bool> guarded{false};
    std::atomic<int> paced{0};

   private:
    mutable std::mutex mutex_;
    std::shared_ptr<const std::vector<std::shared_ptr<Protection>>> all_ =
        std::make_shared<std::vector<std::shared_ptr<Protection>>>();
};

namespace {

struct DomainOfDevice : DeviceAttachment {
    explicit DomainOfDevice(Device&) {}
    // Engines may outlive the device's objects.
    const std::shared_ptr<PacingDomain> domain = std::make_shared<PacingDomain>();
};

// What this thread is about to launch, from before() to after().
struct Underway {
    std::int64_t expected_ns = 0;
    bool counted = false, sampled = false;
    PacingSample sample;
};
thread_local Underway underway;

void pause_on_this_thread(std::int64_t now_ns, std::int64_t until_ns) {
    constexpr std::int64_t kSpin = 20'000, kSlack = 80'000, kLongest = 500'000;
    const std::int64_t wait = until_ns - now_ns;
    if (wait > 2 * kSlack) {
        std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(wait - kSlack, kLongest)));
    } else if (wait > kSpin) {
        std::this_thread::yield();
    }
}

// A piece of work that is kept waiting: counted and told when it goes, or when the wait fails.
class Wait {
   public:
    Wait(const WorkRecord& work, const Clock& clock, std::int64_t began_ns)
        : meter_(work.stream->meter()),
          clock_(clock),
          began_ns_(began_ns),
          span_(observe::Topic::pacing, work.name, *work.stream) {}
    ~Wait() {
        meter_.add(Count::pacing_waits);
        meter_.add(Count::pacing_wait_ns, static_cast<std::uint64_t>(clock_.now_ns() - began_ns_));
    }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;
    std::int64_t began_ns() const noexcept { return began_ns_; }

   private:
    Meter& meter_;
    const Clock& clock_;
    const std::int64_t began_ns_;
    const observe::Span span_;
};

}  // namespace

bool Protection::busy(std::int64_t now_ns) {
    const std::uint64_t count = launched.load(std::memory_order_acquire);
    if (seen_done.load(std::memory_order_relaxed) == count) return false;
    if (now_ns < busy_until_ns.load(std::memory_order_relaxed)) return true;
    const auto whose = tenant.lock();
    if (whose) {
        for (const auto& stream : whose->streams()) {
            try {
                if (stream->capture() == nullptr && !stream->query()) return true;
            } catch (const Error&) {
                // A stream that cannot be asked is not waited for; its owner meets the failure.
            }
        }
    }
    seen_done.store(count, std::memory_order_relaxed);
    return false;
}

KernelPacingEngine::KernelPacingEngine(Device& device, const PacingConfig& config, const Clock& clock,
                                       Pause pause)
    : device_(device),
      config_(config),
      clock_(clock),
      pause_(pause ? std::move(pause) : Pause(pause_on_this_thread)),
      domain_(device.attached<DomainOfDevice>().domain),
      protection_(config.is_protected ? std::make_shared<Protection>() : nullptr),
      pacer_(config),
      times_(config.device_bandwidth) {
    pending_.reserve(kMostSamples);
    spare_.reserve(kMostSamples);
    if (protection_) {
        domain_->add(protection_);
    } else {
        domain_->paced.fetch_add(1, std::memory_order_relaxed);
    }
}

KernelPacingEngine::~KernelPacingEngine() {
    if (protection_) {
        domain_->remove(protection_);
    } else {
        domain_->paced.fetch_sub(1, std::memory_order_relaxed);
    }
    spare_.insert(spare_.end(), pending_.begin(), pending_.end());
    for (const PacingSample& each : spare_) {
        device_.driver().event_destroy(each.start);
        device_.driver().event_destroy(each.end);
    }
}

void KernelPacingEngine::protect(const std::shared_ptr<Tenant>& tenant) {
    if (protection_) protection_->tenant = tenant;
}

// Whether nobody has anything of what it would count.
bool KernelPacingEngine::idle() const noexcept {
    if (released_.load(std::memory_order_relaxed)) return true;
    if (config_.time_share > 0 || config_.bandwidth_share > 0) return false;
    if (config_.slicing.max_ns > 0) return false;  // what it cuts it must have measured
    return config_.is_protected ? domain_->paced.load(std::memory_order_relaxed) == 0
                                : !domain_->guarded.load(std::memory_order_relaxed);
}

void KernelPacingEngine::before(const WorkRecord& work) {
    underway.counted = underway.sampled = false;
    if (work.captured || idle()) return;
    std::optional<Wait> wait;
    for (;;) {
        device_.check_lost();
        const std::int64_t now = clock_.now_ns();
        Pacer::Situation situation{.guarded = domain_->guarded.load(std::memory_order_acquire)};
        if (situation.guarded && !config_.is_protected) {
            for (const auto& each : *domain_->protections())
                situation.held = situation.held || each->busy(now);
        }
        std::int64_t again = 0;
        {
            std::lock_guard lock(mutex_);
            const bool bounded = situation.guarded && !config_.is_protected;
            if (wait || bounded || pending_.size() >= kMostSamples / 4) harvest(now);
            KernelTimes::Known& known = times_.of(work);
            again = released_.load(std::memory_order_relaxed)
                        ? 0
                        : pacer_.admit(now, known.ns, work.cost.bytes, situation);
            if (again == 0) {
                underway.expected_ns = known.ns;
                underway.counted = true;
                ++stats_.launches;
                stats_.device_ns += known.ns;
                stats_.bytes += work.cost.bytes;
                if (wait) {
                    ++stats_.waits;
                    stats_.waited_ns += now - wait->began_ns();
                }
                // Where the outstanding time is bounded, a marker for each part of it.
                const bool marks =
                    bounded && pacer_.issued_ns() - last_mark_ns_ >= config_.queue_ahead_ns / 2;
                const std::uint32_t every = known.ns < kShortNs ? kEveryShort : kEvery;
                underway.sampled = (known.measured < kFirstRuns || known.launches % every == 0 || marks) &&
                                   begin_sample(work, known.key, pacer_.mark(), &underway.sample);
                ++known.launches;
                if (protection_) {
                    protection_->busy_until_ns.store(now + pacer_.outstanding_ns(now),
                                                     std::memory_order_relaxed);
                    protection_->launched.fetch_add(1, std::memory_order_release);
                }
                return;
            }
        }
        if (!wait) wait.emplace(work, clock_, now);
        pause_(now, again);
    }
}

std::int64_t KernelPacingEngine::slices(const WorkRecord& whole, std::int64_t most) {
    const std::int64_t longest = config_.slicing.max_ns;
    if (longest == 0 || most <= 1 || released_.load(std::memory_order_relaxed)) return 1;
    std::lock_guard lock(mutex_);
    harvest(clock_.now_ns());
    const std::int64_t wanted = std::min((times_.expected_ns(whole) + longest - 1) / longest, most);
    if (wanted > 1) ++stats_.sliced;
    return std::max<std::int64_t>(wanted, 1);
}

// Without a measurement the estimate stays: where the driver gives no event, the launch itself will tell.
bool KernelPacingEngine::begin_sample(const WorkRecord& work, std::uint64_t key, std::int64_t place,
                                      PacingSample* sample) noexcept {
    Driver& driver = device_.driver();
    try {
        if (spare_.empty()) {
            if (made_ == kMostSamples) return false;
            sample->start = driver.event_create(true);
            try {
                sample->end = driver.event_create(true);
            } catch (const Error&) {
                driver.event_destroy(sample->start);
                return false;
            }
            ++made_;
        } else {
            *sample = spare_.back();
            spare_.pop_back();
        }
    } catch (const Error&) {
        return false;
    }
    sample->key = key;
    sample->place = place;
    sample->meter = &work.stream->meter();
    try {
        driver.event_record(sample->start, work.stream->handle());
    } catch (const Error&) {
        spare_.push_back(*sample);
        return false;
    }
    last_mark_ns_ = place;
    return true;
}

void KernelPacingEngine::after(const WorkRecord& work, bool queued) noexcept {
    if (!underway.counted) return;
    underway.counted = false;
    if (queued && !underway.sampled) return;
    bool recorded = false;
    if (queued) {
        try {
            device_.driver().event_record(underway.sample.end, work.stream->handle());
            recorded = true;
        } catch (const Error&) {
            // As above.
        }
    }
    std::lock_guard lock(mutex_);
    if (underway.sampled) (recorded ? pending_ : spare_).push_back(underway.sample);
    if (queued) return;
    pacer_.undo(clock_.now_ns(), underway.expected_ns, work.cost.bytes);
    --stats_.launches;
    stats_.device_ns -= underway.expected_ns;
    stats_.bytes -= work.cost.bytes;
}

// Takes what the device has reached, in order; what it has not tells that there is still so much to do.
void KernelPacingEngine::harvest(std::int64_t now_ns) noexcept {
    Driver& driver = device_.driver();
    while (!pending_.empty()) {
        const PacingSample sample = pending_.front();
        try {
            if (!driver.event_query(sample.end)) {
                pacer_.seen(now_ns, sample.place, false);
                return;
            }
            const double ms = driver.event_elapsed_ms(sample.start, sample.end);
            const std::int64_t ns = ms > 0 ? static_cast<std::int64_t>(1e6 * ms) : 0;
            times_.learn(sample.key, ns);
            sample.meter->add(Count::busy_ns, static_cast<std::uint64_t>(ns));
            pacer_.seen(now_ns, sample.place, true);
            ++stats_.measured;
        } catch (const Error&) {
            // Not measured; whoever waits for the work meets the failure.
        }
        pending_.erase(pending_.begin());
        spare_.push_back(sample);
    }
}

PacingStats KernelPacingEngine::stats() {
    const std::int64_t now = clock_.now_ns();
    std::lock_guard lock(mutex_);
    harvest(now);
    stats_.outstanding_ns = pacer_.outstanding_ns(now);
    return stats_;
}

}  // namespace gpk
