#include "observe/profiler.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/platform.hpp"
#include "runtime/observe.hpp"

namespace gpk {

namespace {

// The client's side of NVTX 3, whose interface to tools is fixed: the library exports
// InitializeInjectionNvtx2, which is given a function that finds tables by number. One of them finds, for
// each module of the API, an array of pointers to slots; the tool puts its functions into those that it
// wants. Numbers and layouts are those of github.com/NVIDIA/NVTX, nvtxDetail/nvtxTypes.h and nvToolsExt.h.
using Slot = void (*)();
using SlotPointer = Slot*;

constexpr std::uint32_t kCallbacksTable = 1, kVersionTable = 3;
constexpr std::uint32_t kApiVersion = 3;
// The slots of the modules, the first of each unused: none, core, CUDA, OpenCL, CUDA runtime, core 2, sync.
constexpr std::array<std::size_t, 7> kSlots = {0, 16, 9, 15, 7, 16, 7};
constexpr std::size_t kMostSlots = 16;
constexpr std::size_t kDomains = 5;  // the module "core 2"
constexpr std::size_t kDomainMarkEx = 1, kDomainRangePushEx = 4, kDomainRangePop = 5, kDomainCreateA = 12;

struct Attributes {
    std::uint16_t version = kApiVersion;
    std::uint16_t size = sizeof(Attributes);
    std::uint32_t category = 0;
    std::int32_t color_type = 0;
    std::uint32_t color = 0;
    std::int32_t payload_type = 0;
    std::int32_t reserved = 0;
    std::uint64_t payload = 0;
    std::int32_t message_type = 1;  // ASCII
    const char* message = nullptr;
};
static_assert(sizeof(Attributes) == 48);

struct CallbacksTable {
    std::size_t struct_size;
    int (*module_functions)(int module, SlotPointer** table, unsigned* size);
};
struct VersionTable {
    std::size_t struct_size;
    std::uint32_t version;
    std::uint32_t reserved;
    void (*set_injection_version)(std::uint32_t version);
};

Slot slots[kSlots.size()][kMostSlots] = {};

int module_functions(int module, SlotPointer** table, unsigned* size) {
    static SlotPointer pointers[kSlots.size()][kMostSlots + 1] = {};
    if (module <= 0 || module >= static_cast<int>(kSlots.size())) return 0;
    for (std::size_t i = 1; i < kSlots[module]; ++i) pointers[module][i] = &slots[module][i];
    if (table != nullptr) *table = pointers[module];
    if (size != nullptr) *size = static_cast<unsigned>(kSlots[module]);
    return 1;
}

const void* export_table(std::uint32_t id) {
    static const CallbacksTable callbacks = {sizeof(callbacks), module_functions};
    static const VersionTable version = {sizeof(version), kApiVersion, 0, [](std::uint32_t) {}};
    if (id == kCallbacksTable) return &callbacks;
    return id == kVersionTable ? &version : nullptr;
}

class Ranges final : public observe::Listener {
   public:
    void began(const observe::Happening& what) noexcept override {
        if (push_ != nullptr && domain_ != nullptr) with_attributes(push_, what);
    }
    void happened(const observe::Happening& what) noexcept override {
        if (domain_ == nullptr) return;
        if (what.form == observe::Form::span && pop_ != nullptr) pop_(domain_);
        if (what.form == observe::Form::instant && mark_ != nullptr) with_attributes(mark_, what);
    }

   private:
    using Push = int (*)(void* domain, const Attributes* attributes);
    using Mark = void (*)(void* domain, const Attributes* attributes);

    template <class Function>
    static Function slot(std::size_t number) {
        return reinterpret_cast<Function>(slots[kDomains][number]);
    }
    template <class Function>
    void with_attributes(Function function, const observe::Happening& what) noexcept {
        char text[128];  // names are views; the tool copies what it is given
        const std::size_t length = what.name.copy(text, sizeof(text) - 1);
        text[length] = '\0';
        const Attributes attributes{.message = text};
        function(domain_, &attributes);
    }

    const Push push_ = slot<Push>(kDomainRangePushEx);
    const Mark mark_ = slot<Mark>(kDomainMarkEx);
    int (*const pop_)(void*) = slot<int (*)(void*)>(kDomainRangePop);
    void* const domain_ = slots[kDomains][kDomainCreateA] != nullptr
                              ? slot<void* (*)(const char*)>(kDomainCreateA)("pygpukit")
                              : nullptr;
};

void attach() {
    const auto path = platform::environment("NVTX_INJECTION64_PATH");
    if (!path) return;
    std::string reason = "not an absolute path";
    void* library = path->front() == '/' ? platform::open_library(*path, &reason) : nullptr;
    if (library == nullptr) {
        return log(LogLevel::warning, str("NVTX_INJECTION64_PATH '", *path, "': ", reason));
    }
    const auto start = reinterpret_cast<int (*)(const void* (*)(std::uint32_t))>(
        platform::find_symbol(library, "InitializeInjectionNvtx2"));
    if (start == nullptr || start(export_table) == 0) {
        return log(LogLevel::warning, str("NVTX_INJECTION64_PATH '", *path, "' does not take NVTX ranges"));
    }
    observe::add_listener(std::make_shared<Ranges>());
}

}  // namespace

void attach_profiler() {
    static std::once_flag once;
    std::call_once(once, attach);
}

}  // namespace gpk
