#include "driver/cuda_api.hpp"

#include "base/error.hpp"
#include "base/platform.hpp"

namespace gpk::cuda {

std::string resolve_calls(void* library, CudaApi& api) {
    std::string missing;
#define GPK_RESOLVE(name, arguments) \
    api.name = reinterpret_cast<decltype(api.name)>(platform::find_symbol(library, #name));
#define GPK_RESOLVE_REQUIRED(name, arguments) \
    GPK_RESOLVE(name, arguments)              \
    if (api.name == nullptr) missing += (missing.empty() ? "" : ", ") + std::string(#name);
    GPK_CUDA_REQUIRED_CALLS(GPK_RESOLVE_REQUIRED)
    GPK_CUDA_GRAPH_CALLS(GPK_RESOLVE)
    GPK_CUDA_VIRTUAL_MEMORY_CALLS(GPK_RESOLVE)
    GPK_CUDA_GREEN_CONTEXT_CALLS(GPK_RESOLVE)
    GPK_CUDA_TENSOR_MAP_CALLS(GPK_RESOLVE)
#undef GPK_RESOLVE_REQUIRED
#undef GPK_RESOLVE
    return missing;
}

std::string error_name(const CudaApi& api, CUresult code) {
    const char* name = nullptr;
    if (api.cuGetErrorName == nullptr || api.cuGetErrorName(code, &name) != CUDA_SUCCESS || name == nullptr) {
        return "CUDA error " + std::to_string(code);
    }
    return name;
}

std::string error_text(const CudaApi& api, CUresult code) {
    const char* text = nullptr;
    if (api.cuGetErrorString == nullptr || api.cuGetErrorString(code, &text) != CUDA_SUCCESS ||
        text == nullptr) {
        return {};
    }
    return text;
}

namespace {

std::string describe(const CudaApi& api, CUresult code) {
    std::string text = error_text(api, code);
    const bool sticky = (code >= CUDA_ERROR_ILLEGAL_ADDRESS && code <= CUDA_ERROR_LAUNCH_FAILED &&
                         (code == CUDA_ERROR_ILLEGAL_ADDRESS || code == CUDA_ERROR_ASSERT ||
                          code >= CUDA_ERROR_HARDWARE_STACK_ERROR));
    if (sticky) {
        text +=
            "; a kernel queued earlier failed, and the device cannot be used again in this process "
            "(compute-sanitizer names the kernel)";
    }
    return text;
}

}  // namespace

void fail(const CudaApi& api, const char* call, CUresult code) {
    throw DriverError(call, code, error_name(api, code), describe(api, code));
}

int device_attribute(const CudaApi& api, CUdevice device, int which) {
    int value = 0;
    const CUresult code = api.cuDeviceGetAttribute(&value, which, device);
    if (code != CUDA_SUCCESS) fail(api, "cuDeviceGetAttribute", code);
    return value;
}

std::string device_name(const CudaApi& api, CUdevice device) {
    char text[256] = {};
    const CUresult code = api.cuDeviceGetName(text, sizeof(text) - 1, device);
    if (code != CUDA_SUCCESS) fail(api, "cuDeviceGetName", code);
    return text;
}

int compute_capability(const CudaApi& api, CUdevice device) {
    return 10 * device_attribute(api, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
           device_attribute(api, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
}

}  // namespace gpk::cuda
