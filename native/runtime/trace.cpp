#include "runtime/trace.hpp"

#include <chrono>
#include <mutex>

#include "runtime/device.hpp"
#include "runtime/stream.hpp"

namespace gpk {

namespace {

std::int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

thread_local std::int64_t asked_at = 0;

}  // namespace

class Trace::Recorder : public LaunchHook {
   public:
    void before(const WorkRecord&) override { asked_at = now_ns(); }
    void after(const WorkRecord& work, bool queued) noexcept override {
        if (!queued) return;
        std::lock_guard lock(mutex_);
        entries_.push_back({work.kind, std::string(work.name), work.stream->id(), work.config, work.cost,
                            asked_at, now_ns()});
    }
    std::vector<TraceEntry> entries() const {
        std::lock_guard lock(mutex_);
        return entries_;
    }

   private:
    mutable std::mutex mutex_;
    std::vector<TraceEntry> entries_;
};

Trace::Trace(Device& device) : device_(device), recorder_(std::make_shared<Recorder>()) {
    device.launcher().add_hook(recorder_);
}

Trace::~Trace() { stop(); }

void Trace::stop() { device_.launcher().remove_hook(recorder_.get()); }

std::vector<TraceEntry> Trace::entries() const { return recorder_->entries(); }

}  // namespace gpk
