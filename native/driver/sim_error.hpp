// The CUDA error codes that the simulated device reports, with the names the real driver gives them.
// Numbers: CUDA driver API, enum CUresult.
#pragma once

#include <string>

#include "base/error.hpp"

namespace gpk {

struct SimCode {
    int code;
    const char* name;
};

namespace sim_code {

inline constexpr SimCode kInvalidValue{1, "CUDA_ERROR_INVALID_VALUE"};
inline constexpr SimCode kOutOfMemory{2, "CUDA_ERROR_OUT_OF_MEMORY"};
inline constexpr SimCode kInvalidHandle{400, "CUDA_ERROR_INVALID_HANDLE"};
inline constexpr SimCode kIllegalState{401, "CUDA_ERROR_ILLEGAL_STATE"};
inline constexpr SimCode kNotReady{600, "CUDA_ERROR_NOT_READY"};
inline constexpr SimCode kIllegalAddress{700, "CUDA_ERROR_ILLEGAL_ADDRESS"};
inline constexpr SimCode kContextIsDestroyed{709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"};
inline constexpr SimCode kCooperativeTooLarge{720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"};
inline constexpr SimCode kNotSupported{801, "CUDA_ERROR_NOT_SUPPORTED"};
inline constexpr SimCode kCaptureUnsupported{900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"};
inline constexpr SimCode kCaptureInvalidated{901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"};
inline constexpr SimCode kCaptureMerge{902, "CUDA_ERROR_STREAM_CAPTURE_MERGE"};
inline constexpr SimCode kCaptureUnmatched{903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"};
inline constexpr SimCode kCaptureUnjoined{904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"};
inline constexpr SimCode kCaptureIsolation{905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"};
inline constexpr SimCode kCapturedEvent{907, "CUDA_ERROR_CAPTURED_EVENT"};
inline constexpr SimCode kInvalidClusterSize{912, "CUDA_ERROR_INVALID_CLUSTER_SIZE"};
inline constexpr SimCode kUnknown{999, "CUDA_ERROR_UNKNOWN"};

}  // namespace sim_code

inline DriverError sim_error(const char* call, SimCode code, const std::string& description) {
    return DriverError(call, code.code, code.name, description);
}

}  // namespace gpk
