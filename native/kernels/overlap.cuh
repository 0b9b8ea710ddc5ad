// Kernels that let the next one on the stream begin early.
#pragma once

namespace gpk::kernels {

// The next kernel may take its place, and run up to its wait_for_predecessor(), once every block has come
// here. After the own wait: so whoever runs before its wait knows that all but its predecessor are done.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace gpk::kernels
