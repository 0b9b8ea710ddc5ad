// layer_norm: y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, by rows, var without Bessel's
// correction (Ba et al. 2016, arXiv:1607.06450).
#pragma once

#include "kernels/norm/rows.hpp"

namespace gpk::kernels {

// Of NormParams, whose residual is null where `residual` is not set.
RowPlan layer_norm(const RowShape& shape, bool residual);

}  // namespace gpk::kernels
