#include "driver/sim_calls.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/error.hpp"

namespace gpk {

namespace {

struct CallInfo {
    const char* name;
    bool can_fail;
};

// In the order of SimCall.
constexpr CallInfo kCalls[kSimCallCount] = {
    {"memory_info", true},
    {"synchronize", true},
    {"allocate", true},
    {"free", false},
    {"allocate_host", true},
    {"free_host", false},
    {"copy_to_device", true},
    {"copy_to_host", true},
    {"copy_on_device", true},
    {"fill", true},
    {"reserve_address", true},
    {"release_address", false},
    {"physical_create", true},
    {"physical_destroy", false},
    {"map", true},
    {"allow_access", true},
    {"unmap", false},
    {"admit", true},
    {"dismiss", false},
    {"sm_partition_create", true},
    {"sm_partition_destroy", false},
    {"stream_create", true},
    {"stream_destroy", false},
    {"stream_synchronize", true},
    {"stream_query", true},
    {"stream_wait_event", true},
    {"event_create", true},
    {"event_destroy", false},
    {"event_record", true},
    {"event_query", true},
    {"event_synchronize", true},
    {"event_elapsed_ms", true},
    {"function", true},
    {"unload", false},
    {"function_info", true},
    {"launch", true},
    {"tensor_map", true},
    {"capture_begin", true},
    {"capture_end", true},
    {"graph_launch", true},
    {"graph_destroy", false},
    {"graph_node_count", true},
};

constexpr std::size_t index_of(SimCall call) { return static_cast<std::size_t>(call); }
static_assert(index_of(SimCall::graph_node_count) + 1 == kSimCallCount);
static_assert(std::string_view(kCalls[index_of(SimCall::graph_node_count)].name) == "graph_node_count");
static_assert(std::string_view(kCalls[index_of(SimCall::function)].name) == "function");

}  // namespace

const char* name_of(SimCall call) noexcept { return kCalls[index_of(call)].name; }

bool can_fail(std::string_view call) noexcept {
    return std::any_of(std::begin(kCalls), std::end(kCalls),
                       [&](const CallInfo& entry) { return entry.can_fail && call == entry.name; });
}

void SimCalls::count(SimCall call) noexcept {
    counts_[index_of(call)].fetch_add(1, std::memory_order_relaxed);
}

void SimCalls::enter(SimCall call) {
    const int nth = counts_[index_of(call)].fetch_add(1, std::memory_order_relaxed) + 1;
    if (!planned_.load(std::memory_order_acquire)) return;
    std::lock_guard lock(mutex_);
    if (!broken_) {
        const auto due = std::find_if(plan_.begin(), plan_.end(), [&](const Fault& fault) {
            return fault.nth == nth && fault.call == name_of(call);
        });
        if (due == plan_.end()) return;
        if (!due->sticky) throw DriverError(due->call, due->code, due->code_name, "planned fault");
        broken_ = *due;
    }
    throw DriverError(name_of(call), broken_->code, broken_->code_name, "planned fault, sticky");
}

bool SimCalls::plan(const std::vector<Fault>& faults) {
    for (const Fault& fault : faults) {
        if (!can_fail(fault.call) || fault.nth < 1) {
            throw error(ErrorKind::value, {.call = "set_faults",
                                           .argument = "faults",
                                           .expected = "a call of Driver that can fail, and nth from 1",
                                           .got = str("'", fault.call, "', nth ", fault.nth)});
        }
    }
    std::lock_guard lock(mutex_);
    for (auto& calls : counts_) calls.store(0, std::memory_order_relaxed);
    plan_ = faults;
    const bool was_broken = std::exchange(broken_, std::nullopt).has_value();
    planned_.store(!plan_.empty(), std::memory_order_release);
    return was_broken;
}

std::map<std::string, int> SimCalls::counts() const {
    std::map<std::string, int> all;
    for (std::size_t i = 0; i < kSimCallCount; ++i) {
        all[kCalls[i].name] = counts_[i].load(std::memory_order_relaxed);
    }
    return all;
}

}  // namespace gpk
