// The host twin of gemm, gemm_mma and gemm_wgmma: one blocked product for every element type and any strides.
#pragma once

#include "kernels/gemm/problem.hpp"

namespace gpk::kernels {

// With the epilogue, where it changes anything. Instantiated for the element types of GPK_GEMM_KERNELS, and
// from 16 bits to float32.
template <class T, class Out = T>
void gemm_host(const GemmProblem& p);

}  // namespace gpk::kernels
