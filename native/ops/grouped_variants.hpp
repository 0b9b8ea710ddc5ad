// The kernels that can make products by expert, and the choice between them.
#pragma once

#include "kernels/gemm/gemm_grouped.hpp"
#include "ops/launch.hpp"

namespace gpk::ops {

struct GroupedVariant {
    const Kernel& (*kernel)();
    DType dtype;
    int tile = 0;                        // of c, in rows and columns, of a kernel that is not of SM 90
    const GroupedTile* wgmma = nullptr;  // of one that is
    bool gated = false;                  // makes gated products, and only these
    int alignment_bytes = 1;             // of a, the weight and their rows
    int most_rows = 0;                   // worth it up to so many rows of an expert in the mean; 0: any
};

// Fastest first; for every dtype the last one that is not gated takes any problem.
std::span<const GroupedVariant> grouped_variants();

// Whether the variant gives the right result. (most_rows is about speed and not asked.)
bool can_run(const GroupedVariant& variant, const GroupedProblem& p, DType dtype, int sm);
// None where there is no gated one.
const GroupedVariant* choose_grouped(const GroupedProblem& p, DType dtype, int sm);

void launch_grouped(Stream& stream, const GroupedVariant& variant, const GroupedProblem& p, const Cost& cost);

}  // namespace gpk::ops
