#include "kernels/elementwise/binary_contiguous.cuh"

#define GPK_KERNELS(op)                                \
    GPK_CONTIGUOUS_KERNEL(op, float16, gpk::float16)   \
    GPK_CONTIGUOUS_KERNEL(op, bfloat16, gpk::bfloat16) \
    GPK_CONTIGUOUS_KERNEL(op, float32, float)          \
    GPK_CONTIGUOUS_KERNEL(op, float64, double)

GPK_CONTIGUOUS_FLOAT_OPS(GPK_KERNELS)
