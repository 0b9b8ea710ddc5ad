// CudaDriver: a Driver over the CUDA driver API of libcuda, which is opened at first use. Handles of
// streams and events are the driver's own CUstream and CUevent, for libraries that launch by themselves.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "driver/cuda_api.hpp"
#include "driver/driver.hpp"

namespace gpk {

struct CudaAvailability {
    std::vector<int> ordinals;  // of the devices that can be used, as the CUDA driver counts them
    std::string reason;         // why there are none; empty otherwise
    int driver_version = 0;     // 1000 * major + 10 * minor; 0 without a driver
};

// Opens and initialises the driver at the first call in the process. Never throws for a missing one.
const CudaAvailability& cuda_availability();

// `ordinal` is one of cuda_availability().ordinals. Retains the device's primary context.
std::unique_ptr<Driver> make_cuda_driver(int ordinal);

// The same over a given table of calls: what the two above do once libcuda is open.
CudaAvailability examine_cuda(const cuda::CudaApi& api);
std::unique_ptr<Driver> make_cuda_driver(const cuda::CudaApi& api, int ordinal);

}  // namespace gpk
