// The table of driver calls, resolved once from an open libcuda. Names carry the version whose
// signature we use, so a newer driver cannot give another one.
#pragma once

#include <atomic>
#include <string>

#include "driver/cuda_types.hpp"

namespace gpk::cuda {

// Every driver from 12.0 has these.
#define GPK_CUDA_REQUIRED_CALLS(X)                                                                  \
    X(cuInit, (unsigned flags))                                                                     \
    X(cuDriverGetVersion, (int* version))                                                           \
    X(cuGetErrorName, (CUresult code, const char** name))                                           \
    X(cuGetErrorString, (CUresult code, const char** text))                                         \
    X(cuDeviceGetCount, (int* count))                                                               \
    X(cuDeviceGet, (CUdevice * device, int ordinal))                                                \
    X(cuDeviceGetName, (char* name, int size, CUdevice device))                                     \
    X(cuDeviceGetAttribute, (int* value, int attribute, CUdevice device))                           \
    X(cuDeviceGetPCIBusId, (char* id, int size, CUdevice device))                                   \
    X(cuDeviceTotalMem_v2, (std::size_t* bytes, CUdevice device))                                   \
    X(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                             \
    X(cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                              \
    X(cuCtxGetCurrent, (CUcontext * context))                                                       \
    X(cuCtxSetCurrent, (CUcontext context))                                                         \
    X(cuCtxSynchronize, ())                                                                         \
    X(cuCtxGetStreamPriorityRange, (int* lowest, int* highest))                                     \
    X(cuMemGetInfo_v2, (std::size_t* free_bytes, std::size_t* total_bytes))                         \
    X(cuMemAlloc_v2, (CUdeviceptr * pointer, std::size_t bytes))                                    \
    X(cuMemFree_v2, (CUdeviceptr pointer))                                                          \
    X(cuMemHostAlloc, (void** pointer, std::size_t bytes, unsigned flags))                          \
    X(cuMemFreeHost, (void* pointer))                                                               \
    X(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream)) \
    X(cuMemcpyDtoHAsync_v2, (void* to, CUdeviceptr from, std::size_t bytes, CUstream stream))       \
    X(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream)) \
    X(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, std::size_t count, CUstream stream))   \
    X(cuPointerGetAttributes, (unsigned count, int* which, void** values, CUdeviceptr pointer))     \
    X(cuStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority))                \
    X(cuStreamDestroy_v2, (CUstream stream))                                                        \
    X(cuStreamSynchronize, (CUstream stream))                                                       \
    X(cuStreamQuery, (CUstream stream))                                                             \
    X(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))                          \
    X(cuStreamIsCapturing, (CUstream stream, int* status))                                          \
    X(cuEventCreate, (CUevent * event, unsigned flags))                                             \
    X(cuEventDestroy_v2, (CUevent event))                                                           \
    X(cuEventRecord, (CUevent event, CUstream stream))                                              \
    X(cuEventQuery, (CUevent event))                                                                \
    X(cuEventSynchronize, (CUevent event))                                                          \
    X(cuEventElapsedTime, (float* milliseconds, CUevent start, CUevent end))                        \
    X(cuModuleLoadData, (CUmodule * module, const void* image))                                     \
    X(cuModuleUnload, (CUmodule module))                                                            \
    X(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char* name))              \
    X(cuFuncGetAttribute, (int* value, int attribute, CUfunction function))                         \
    X(cuFuncSetAttribute, (CUfunction function, int attribute, int value))                          \
    X(cuLaunchKernelEx, (const CUlaunchConfig* config, CUfunction function, void** params, void** extra))

// Null where the library lacks them; graphs are then refused and everything else works.
#define GPK_CUDA_GRAPH_CALLS(X)                                                                   \
    X(cuStreamBeginCapture_v2, (CUstream stream, int mode))                                       \
    X(cuStreamEndCapture, (CUstream stream, CUgraph * graph))                                     \
    X(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags)) \
    X(cuGraphGetNodes, (CUgraph graph, CUgraphNode * nodes, std::size_t* count))                  \
    X(cuGraphLaunch, (CUgraphExec exec, CUstream stream))                                         \
    X(cuGraphExecDestroy, (CUgraphExec exec))                                                     \
    X(cuGraphDestroy, (CUgraph graph))

// Null where the library lacks them; memory then comes from cuMemAlloc alone.
#define GPK_CUDA_VIRTUAL_MEMORY_CALLS(X)                                                                \
    X(cuMemGetAllocationGranularity, (std::size_t* bytes, const CUmemAllocationProp* prop, int option)) \
    X(cuMemAddressReserve, (CUdeviceptr * address, std::size_t bytes, std::size_t alignment,            \
                            CUdeviceptr hint, unsigned long long flags))                                \
    X(cuMemAddressFree, (CUdeviceptr address, std::size_t bytes))                                       \
    X(cuMemCreate, (CUmemGenericAllocationHandle * handle, std::size_t bytes,                           \
                    const CUmemAllocationProp* prop, unsigned long long flags))                         \
    X(cuMemRelease, (CUmemGenericAllocationHandle handle))                                              \
    X(cuMemMap, (CUdeviceptr address, std::size_t bytes, std::size_t offset,                            \
                 CUmemGenericAllocationHandle handle, unsigned long long flags))                        \
    X(cuMemSetAccess,                                                                                   \
      (CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* desc, std::size_t count))         \
    X(cuMemUnmap, (CUdeviceptr address, std::size_t bytes))

// From driver 12.4 on. Null where the library lacks them; there are no SM partitions then.
#define GPK_CUDA_GREEN_CONTEXT_CALLS(X)                                                                   \
    X(cuDeviceGetDevResource, (CUdevice device, CUdevResource * resource, int type))                      \
    X(cuDevSmResourceSplitByCount, (CUdevResource * result, unsigned* groups, const CUdevResource* input, \
                                    CUdevResource* remaining, unsigned flags, unsigned least))            \
    X(cuDevResourceGenerateDesc, (CUdevResourceDesc * desc, CUdevResource * resources, unsigned count))   \
    X(cuGreenCtxCreate, (CUgreenCtx * context, CUdevResourceDesc desc, CUdevice device, unsigned flags))  \
    X(cuGreenCtxDestroy, (CUgreenCtx context))                                                            \
    X(cuGreenCtxStreamCreate, (CUstream * stream, CUgreenCtx context, unsigned flags, int priority))

// Null where the library lacks it; kernels that need tensor maps are then refused.
#define GPK_CUDA_TENSOR_MAP_CALLS(X)                                                                 \
    X(cuTensorMapEncodeTiled,                                                                        \
      (CUtensorMap * map, int dtype, unsigned rank, void* address, const std::uint64_t* extents,     \
       const std::uint64_t* strides, const std::uint32_t* box, const std::uint32_t* element_strides, \
       int interleave, int swizzle, int l2_promotion, int oob_fill))

struct CudaApi {
#define GPK_DECLARE_CALL(name, arguments) CUresult(*name) arguments = nullptr;
    GPK_CUDA_REQUIRED_CALLS(GPK_DECLARE_CALL)
    GPK_CUDA_GRAPH_CALLS(GPK_DECLARE_CALL)
    GPK_CUDA_VIRTUAL_MEMORY_CALLS(GPK_DECLARE_CALL)
    GPK_CUDA_GREEN_CONTEXT_CALLS(GPK_DECLARE_CALL)
    GPK_CUDA_TENSOR_MAP_CALLS(GPK_DECLARE_CALL)
#undef GPK_DECLARE_CALL
};

// Returns the required calls that the library lacks, separated by ", ".
std::string resolve_calls(void* library, CudaApi& api);

// "CUDA_ERROR_INVALID_VALUE" and the driver's sentence about it.
std::string error_name(const CudaApi& api, CUresult code);
std::string error_text(const CudaApi& api, CUresult code);
// Throws DriverError.
[[noreturn]] void fail(const CudaApi& api, const char* call, CUresult code);
inline void check(const CudaApi& api, const char* call, CUresult code) {
    if (code != CUDA_SUCCESS) [[unlikely]]
        fail(api, call, code);
}

int device_attribute(const CudaApi& api, CUdevice device, int which);
std::string device_name(const CudaApi& api, CUdevice device);
int compute_capability(const CudaApi& api, CUdevice device);  // 10 * major + minor

// Set in a child of a process that had initialised CUDA, which does not survive a fork.
extern std::atomic<bool> forked_after_init;

}  // namespace gpk::cuda
