// The host twins of products of few rows: gemv, gemv_mma and gemv_bulk. T and Out: float with float, or
// float16 or bfloat16 with itself or float.
#pragma once

#include <vector>

#include "kernels/gemm/problem.hpp"

namespace gpk::kernels {

template <class T, class Out>
void gemv_rows_host(const GemmProblem& p);
template <class T, class Out>
void gemv_columns_host(const GemmProblem& p);

// The problem with its rows normalised, in `rows`, where it has a norm.
template <class T>
GemmProblem normalized(const GemmProblem& p, std::vector<T>& rows);

}  // namespace gpk::kernels
