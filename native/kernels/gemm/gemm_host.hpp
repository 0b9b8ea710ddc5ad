// The host twin of gemm and gemm_mma: one blocked product for every element type and any strides.
#pragma once

#include "kernels/gemm/problem.hpp"

namespace gpk::kernels {

// Instantiated for the element types of GPK_GEMM_KERNELS.
template <class T>
void gemm_host(const GemmProblem& p);

}  // namespace gpk::kernels
