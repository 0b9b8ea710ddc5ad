// What host twins share: loops over all cores and the attribute that lets one plain loop run with the
// widest vectors of the processor at hand.
#pragma once

#include <cstdint>

#include "base/parallel.hpp"
#include "driver/driver.hpp"

// Not for clang: it does not emit inline functions that only such a function uses (seen with 19).
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(GPK_NO_TARGET_CLONES)
#define GPK_SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define GPK_SIMD
#endif

namespace gpk::kernels {

// The twin of a kernel whose parameters are one struct: gpk::kernels::twin<SoftmaxParams, softmax_host>.
template <class Params, void (*function)(const Params&)>
void twin(const void* params, const LaunchConfig&) {
    function(*static_cast<const Params*>(params));
}

}  // namespace gpk::kernels
