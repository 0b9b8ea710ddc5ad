#include "kernels/reduce/reduce.cuh"

namespace gpk::kernels {

GPK_REDUCE_ORDER_KERNELS(GPK_REDUCE_KERNEL)

}  // namespace gpk::kernels
