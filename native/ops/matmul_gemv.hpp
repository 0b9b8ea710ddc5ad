// Products of few rows of float16 and bfloat16: how gemv_mma and gemv_bulk run.
#pragma once

#include "kernels/gemm/gemv_bulk.hpp"
#include "ops/matmul_variants.hpp"

namespace gpk::ops {

// What the variant's form asks for beside layouts and alignment. `sm`: 0 is the simulated device.
bool gemv_can_run(const GemmVariant& variant, const GemmProblem& p, int sm);
LaunchConfig gemv_config(const GemmVariant& variant, const GemmProblem& p, int multiprocessors);
BlockPart gemv_part(const GemmVariant& variant, const LaunchConfig& config);
GemvBulkParams gemv_bulk_params(Device& device, const GemmVariant& variant, const GemmProblem& p,
                                int multiprocessors);

}  // namespace gpk::ops
