// Products of few rows of float16 and bfloat16: how gemv_mma and gemv_bulk run.
#pragma once

#include "kernels/gemm/gemv_bulk.hpp"
#include "ops/matmul_variants.hpp"

namespace gpk::ops {

// What the variant's form asks for beside layouts and alignment. `sm`: 0 is the simulated device.
bool gemv_can_run(const GemmVariant& variant, const GemmProblem& p, int sm);
LaunchConfig gemv_config(const GemmVariant& variant, const GemmProblem& p, int multiprocessors);
BlockPart gemv_part(const GemmVariant& variant, const LaunchConfig& config);
// GemvBulkParams::turns for so many tiles, or null where it is not worth it. It is in a graph, of products
// whose blocks begin at different times, as the kernel before lets them: the last would end long after
// others. Elsewhere to make the word zero would take as long.
std::uint32_t* bulk_turns(Stream& stream, std::int64_t tiles, std::int64_t blocks);
GemvBulkParams gemv_bulk_params(Stream& stream, const GemmVariant& variant, const GemmProblem& p,
                                const LaunchConfig& config);

}  // namespace gpk::ops
