#include "kernels/elementwise/binary_packs.cuh"

#define GPK_KERNELS(op)                           \
    GPK_PACKS_KERNEL(op, float16, gpk::float16)   \
    GPK_PACKS_KERNEL(op, bfloat16, gpk::bfloat16) \
    GPK_PACKS_KERNEL(op, float32, float)          \
    GPK_PACKS_KERNEL(op, float64, double)

GPK_PACKS_FLOAT_OPS(GPK_KERNELS)
