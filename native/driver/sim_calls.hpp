// The calls that a simulated device counts, and the plan of those that fail.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpk {

// The `nth` call (from 1) of the Driver method `call` fails before it does anything. A sticky fault
// breaks the device, as a fault in a real kernel does: every later call fails the same way.
struct Fault {
    std::string call;
    int nth = 1;
    int code = 0;
    std::string code_name;
    bool sticky = false;
};

// The methods of Driver that are counted and may fail.
enum class SimCall : std::uint8_t {
    memory_info,
    synchronize,
    allocate,
    free,
    allocate_host,
    free_host,
    copy_to_device,
    copy_to_host,
    copy_on_device,
    fill,
    reserve_address,
    release_address,
    physical_create,
    physical_destroy,
    map,
    allow_access,
    unmap,
    admit,
    dismiss,
    sm_partition_create,
    sm_partition_destroy,
    stream_create,
    stream_destroy,
    stream_synchronize,
    stream_query,
    stream_wait_event,
    event_create,
    event_destroy,
    event_record,
    event_query,
    event_synchronize,
    event_elapsed_ms,
    function,
    unload,
    function_info,
    launch,
    tensor_map,
    capture_begin,
    capture_end,
    graph_launch,
    graph_destroy,
    graph_node_count,
};
inline constexpr std::size_t kSimCallCount = 42;

const char* name_of(SimCall call) noexcept;
bool can_fail(std::string_view call) noexcept;  // what a plan may name

class SimCalls {
   public:
    void count(SimCall call) noexcept;
    void enter(SimCall call);  // counts, and throws what the plan says
    // As SimDriver::set_faults and call_counts. True where a sticky fault had broken the device.
    bool plan(const std::vector<Fault>& faults);
    std::map<std::string, int> counts() const;

   private:
    std::array<std::atomic<int>, kSimCallCount> counts_{};
    std::atomic<bool> planned_{false};
    std::mutex mutex_;
    std::vector<Fault> plan_;
    std::optional<Fault> broken_;
};

}  // namespace gpk
