// Cutting a matrix product into several launches.
#pragma once

#include <functional>

#include "ops/matmul_variants.hpp"

namespace gpk::ops {

// Calls `launch` with parts of the product that make all of c: some of its batches, or tiles of rows or of
// columns, about `slices` of them and none longer than whole / slices where it can be helped. Each block does
// what it would do in the launch of `whole`, so the result is the same to the bit.
void cut_gemm(const GemmVariant& variant, const GemmProblem& problem, const LaunchConfig& whole,
              std::int64_t slices,
              const std::function<void(const GemmProblem&, const LaunchConfig&)>& launch);

}  // namespace gpk::ops
