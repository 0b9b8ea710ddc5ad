// Which GPUs can be used here, and if none, why.
#include <algorithm>

#include "base/error.hpp"
#include "base/platform.hpp"
#include "driver/cuda_driver.hpp"
#include "driver/libraries.hpp"

namespace gpk {

using namespace cuda;

std::atomic<bool> cuda::forked_after_init{false};

namespace {

constexpr int kNeededDriver = 12000;
constexpr const char* kNeededDriverText = "CUDA 12.0 (driver 525.60.13)";
constexpr int kNeededSm = 80;

std::string version_text(int version) { return str(version / 1000, ".", version % 1000 / 10); }

std::string too_old(int driver_version) {
    const std::string kernel_driver = platform::gpu_driver_version();
    return str("CUDA driver too old: this one", kernel_driver.empty() ? "" : " (" + kernel_driver + ")",
               " is for CUDA ", version_text(driver_version), ", needed is ", kNeededDriverText, " or newer");
}

// Where the driver is open: its calls, or why it cannot be used.
struct Opened {
    CudaApi api;
    CudaAvailability availability;
};

const Opened& opened() {
    static const Opened* const instance = [] {
        auto* result = new Opened;  // outlives static destructors that free device memory
        const FoundLibrary& library = find_library(Library::cuda);
        CudaAvailability& found = result->availability;
        if (library.handle == nullptr) {
            found.reason = str("CUDA driver not detected (", library.status.problem, ")");
            return result;
        }
        const std::string missing = resolve_calls(library.handle, result->api);
        int version = 0;
        if (result->api.cuDriverGetVersion != nullptr) result->api.cuDriverGetVersion(&version);
        if (!missing.empty() && (version == 0 || version >= kNeededDriver)) {
            found.driver_version = version;
            found.reason = str("CUDA driver not detected (", library.status.path, " lacks ", missing, ")");
        } else if (!missing.empty()) {
            found.driver_version = version;
            found.reason = too_old(version);
        } else {
            found = examine_cuda(result->api);
        }
        return result;
    }();
    return *instance;
}

}  // namespace

CudaAvailability examine_cuda(const CudaApi& api) {
    CudaAvailability found;
    api.cuDriverGetVersion(&found.driver_version);
    if (found.driver_version < kNeededDriver) {
        found.reason = too_old(found.driver_version);
        return found;
    }
    CUresult code = api.cuInit(0);
    int count = 0;
    if (code == CUDA_SUCCESS) {
        platform::on_fork_in_child([] { forked_after_init.store(true, std::memory_order_relaxed); });
        code = api.cuDeviceGetCount(&count);
    }
    if (code == CUDA_ERROR_NO_DEVICE || (code == CUDA_SUCCESS && count == 0)) {
        found.reason = "No GPU devices found";
        return found;
    }
    if (code != CUDA_SUCCESS) {
        found.reason = str("CUDA driver not detected (cuInit failed: ", error_name(api, code), ", ",
                           error_text(api, code), ")");
        return found;
    }
    std::string refused;
    for (int ordinal = 0; ordinal < count; ++ordinal) {
        try {
            CUdevice device = 0;
            if ((code = api.cuDeviceGet(&device, ordinal)) != CUDA_SUCCESS) fail(api, "cuDeviceGet", code);
            const int sm = compute_capability(api, device);
            if (sm >= kNeededSm) {
                found.ordinals.push_back(ordinal);
                continue;
            }
            refused += str(refused.empty() ? "" : "; ", "GPU ", ordinal, " (", device_name(api, device),
                           ") has compute capability ", sm / 10, ".", sm % 10, ", needed is ", kNeededSm / 10,
                           ".", kNeededSm % 10, " or newer");
        } catch (const DriverError& failure) {
            refused += str(refused.empty() ? "" : "; ", "GPU ", ordinal, ": ", failure.what());
        }
    }
    if (found.ordinals.empty()) found.reason = refused;
    return found;
}

const CudaAvailability& cuda_availability() { return opened().availability; }

std::unique_ptr<Driver> make_cuda_driver(int ordinal) {
    const Opened& cuda = opened();
    if (std::find(cuda.availability.ordinals.begin(), cuda.availability.ordinals.end(), ordinal) ==
        cuda.availability.ordinals.end()) {
        throw error(ErrorKind::unsupported,
                    {.call = str("device 'cuda:", ordinal, "'"),
                     .got = cuda.availability.reason.empty() ? "no usable GPU of that number"
                                                             : cuda.availability.reason,
                     .fix = "`pygpukit doctor` lists what is here"});
    }
    return make_cuda_driver(cuda.api, ordinal);
}

}  // namespace gpk
