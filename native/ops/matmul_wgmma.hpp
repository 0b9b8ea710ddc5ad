// How a product goes to the kernels of gemm_wgmma: tensor maps, grid, and what they ask for.
#pragma once

#include <limits>

#include "ops/matmul_variants.hpp"

namespace gpk::ops {

// Beside the layouts, which can_run() asks for.
bool wgmma_can_run(const GemmVariant& variant, const GemmProblem& p, int sm);

// How the launch would write c.
WgmmaStore wgmma_store(const GemmVariant& variant, const GemmProblem& p);

// What the launch should take: of use for comparing tiles only. Beyond `most` it is less than that, not
// exact.
double wgmma_us(const GemmVariant& variant, const GemmProblem& p, int multiprocessors,
                double most = std::numeric_limits<double>::infinity());

LaunchConfig wgmma_config(const GemmVariant& variant, const GemmProblem& p, int multiprocessors);
BlockPart wgmma_part(const GemmVariant& variant, const LaunchConfig& config);
GemmWgmmaParams wgmma_params(Stream& stream, const GemmVariant& variant, const GemmProblem& p);

}  // namespace gpk::ops
