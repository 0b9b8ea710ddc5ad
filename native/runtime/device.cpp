#include "runtime/device.hpp"

#include <algorithm>
#include <atomic>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/platform.hpp"
#include "driver/cuda_driver.hpp"
#include "driver/sim_driver.hpp"
#include "runtime/meter.hpp"
#include "runtime/observe.hpp"
#include "runtime/stream.hpp"

namespace gpk {

Device::Device(int slot, std::string name, std::unique_ptr<Driver> driver)
    : slot_(slot), name_(std::move(name)), driver_(std::move(driver)), launcher_(*this) {
    default_stream_ = Stream::create_for(nullptr, *this);
}

Device::~Device() {
    while (!attached_.empty()) attached_.pop_back();
}

void Device::synchronize() {
    // The driver would refuse too, and break the capture.
    if (current_stream(*this)->capture() != nullptr) {
        throw error(ErrorKind::unsupported, {.call = "synchronize",
                                             .got = "a graph capture under way on the current stream",
                                             .fix = "wait before the capture, or after a launch"});
    }
    const HostWait counted(default_stream_->meter());
    const observe::Span span(observe::Topic::wait, "Device.synchronize", *this);
    watched([](Driver& driver) { driver.synchronize(); });
}

int Device::next_attachment_kind() {
    static std::atomic<int> next{0};
    const int kind = next.fetch_add(1);
    if (kind >= kMaxAttachments) std::terminate();  // a constant of this program is too small
    return kind;
}

DeviceAttachment& Device::attach(int kind, const std::function<std::unique_ptr<DeviceAttachment>()>& make) {
    std::lock_guard lock(attach_mutex_);
    if (DeviceAttachment* known = attachments_[kind].load(std::memory_order_acquire)) return *known;
    attached_.push_back(make());
    attachments_[kind].store(attached_.back().get(), std::memory_order_release);
    return *attached_.back();
}

namespace {

constexpr std::string_view kFallback = "Falling back to CPU simulation backend";

struct Registry {
    std::mutex mutex;
    std::vector<std::unique_ptr<Device>> devices;
    int next_slot = 0;

    Device* find(std::string_view name) {
        for (auto& device : devices) {
            if (device->name() == name) return device.get();
        }
        return nullptr;
    }
    Device& add(std::string name, std::unique_ptr<Driver> driver) {
        return *devices.emplace_back(
            std::make_unique<Device>(next_slot++, std::move(name), std::move(driver)));
    }
};

// Never destroyed: the driver may be gone before static objects are.
Registry& registry() {
    static Registry* const instance = new Registry;
    return *instance;
}

thread_local Device* thread_device = nullptr;

[[noreturn]] void no_such_device(std::string_view wanted, const std::string& expected) {
    throw error(ErrorKind::value, {.call = "device",
                                   .expected = expected,
                                   .got = str("'", wanted, "'"),
                                   .fix = "`pygpukit doctor` lists what is here"});
}

// "cuda" or "cuda:<ordinal>" to an ordinal that can be used.
int cuda_ordinal(std::string_view wanted) {
    const CudaAvailability& found = cuda_availability();
    if (found.ordinals.empty()) {
        throw error(ErrorKind::unsupported, {.call = str("device '", wanted, "'"),
                                             .got = found.reason,
                                             .fix = "use device 'cpu', or run `pygpukit doctor`"});
    }
    if (wanted == "cuda") return found.ordinals.front();
    int ordinal = 0;
    const std::string_view digits = wanted.substr(5);
    const bool numeric =
        !digits.empty() && digits.size() <= 3 &&
        std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (numeric) ordinal = std::stoi(std::string(digits));
    if (!numeric ||
        std::find(found.ordinals.begin(), found.ordinals.end(), ordinal) == found.ordinals.end()) {
        std::string names;
        for (int i : found.ordinals) names += str(names.empty() ? "" : ", ", "'cuda:", i, "'");
        no_such_device(wanted, str("one of ", names, " or 'cpu'"));
    }
    return ordinal;
}

struct Default {
    Device& device;
    bool fell_back = false;
};

Default open_default() {
    if (const auto wanted = platform::environment("PYGPUKIT_DEVICE")) return {device(*wanted)};
    if (!cuda_availability().ordinals.empty()) return {device("cuda")};
    return {device("cpu"), true};
}

}  // namespace

Device& device(std::string_view wanted) {
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    if (Device* known = all.find(wanted)) return *known;
    if (wanted == "cpu") return all.add("cpu", make_sim_driver({}));
    if (wanted != "cuda" && wanted.substr(0, 5) != "cuda:")
        no_such_device(wanted, "'cpu', 'cuda' or 'cuda:<number>'");
    const int ordinal = cuda_ordinal(wanted);
    const std::string name = str("cuda:", ordinal);
    if (Device* known = all.find(name)) return *known;
    return all.add(name, make_cuda_driver(ordinal));
}

Device& current_device() {
    if (thread_device != nullptr) return *thread_device;
    static const Default of_process = open_default();
    // Not while others wait for the device to be opened: whoever hears of it may wait for one of them.
    static std::atomic<bool> told{false};
    if (of_process.fell_back && !told.load(std::memory_order_relaxed) && !told.exchange(true))
        log(LogLevel::warning, str(cuda_availability().reason, ". ", kFallback));
    return of_process.device;
}

void set_device(Device& device) { thread_device = &device; }

Device& add_device(std::string name, std::unique_ptr<Driver> driver) {
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    if (all.find(name) != nullptr) no_such_device(name, "a name not in use");
    return all.add(std::move(name), std::move(driver));
}

void remove_device(Device& device) {
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    if (thread_device == &device) thread_device = nullptr;
    std::erase_if(all.devices, [&](const auto& each) { return each.get() == &device; });
}

std::vector<std::string> device_names() {
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    std::vector<std::string> names;
    for (const auto& device : all.devices) names.push_back(device->name());
    return names;
}

std::string why_no_cuda() { return cuda_availability().ordinals.empty() ? cuda_availability().reason : ""; }

int cuda_device_count() { return static_cast<int>(cuda_availability().ordinals.size()); }

}  // namespace gpk
