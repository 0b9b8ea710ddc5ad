// Gated products of up to 16 rows, where reading the weight is all the work.
#pragma once

#include "kernels/gemm/gemm_grouped.hpp"
#include "ops/launch.hpp"

namespace gpk::ops {

// Launches gemv_gated on the problem; false where it cannot make it.
bool launch_gated_few_rows(Stream& stream, const GroupedProblem& p, DType dtype, const Cost& cost);

}  // namespace gpk::ops
