// What the ops over rows held in registers share.
#pragma once

#include "array/array.hpp"
#include "kernels/norm/rows.hpp"

namespace gpk::ops {

// How rows of x's last axis, which is contiguous, are to be shared; `with`: arrays of the same rows.
kernels::RowShape row_shape(const Array& x, std::initializer_list<const Array*> with);

// rms_norm and layer_norm (norm.hpp), which differ in `plan`.
struct NormCall {
    const char* call;
    kernels::RowPlan (*plan)(const kernels::RowShape&, bool residual);
    const Array &x, &weight, &bias;
    double eps;
    const Array *residual, *out, *sum;
};
Array normalize(const NormCall& call);

}  // namespace gpk::ops
