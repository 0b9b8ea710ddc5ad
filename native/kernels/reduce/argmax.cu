#include "kernels/reduce/arg_reduce.cuh"

namespace gpk::kernels {

GPK_ARG_REDUCE(GPK_ARG_REDUCE_KERNEL, argmax, true)

}  // namespace gpk::kernels
