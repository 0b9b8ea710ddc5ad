// What gated products end with.
#pragma once

#include "kernels/activation/glu.hpp"  // GluOp
#include "kernels/elementwise/unary_fast.cuh"

namespace gpk::kernels {

// Of sums that will be rounded to T.
template <class T>
__device__ __forceinline__ float gated(GluOp op, float gate, float up) {
    switch (op) {
#define GPK_CASE(name, function) \
    case GluOp::name: return unary_apply<unary_functors::function, T>(gate) * up;
        GPK_GLU_OPS(GPK_CASE)
#undef GPK_CASE
    }
    return 0;
}

}  // namespace gpk::kernels
