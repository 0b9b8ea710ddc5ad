// rms_norm: y = x / sqrt(mean(x^2) + eps) * weight, by rows (Zhang & Sennrich 2019, arXiv:1910.07467).
#pragma once

#include "kernels/norm/rows.hpp"

namespace gpk::kernels {

// Of NormParams, whose residual is null where `residual` is not set.
RowPlan rms_norm(const RowShape& shape, bool residual);

}  // namespace gpk::kernels
