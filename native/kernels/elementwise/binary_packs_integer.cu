#include "kernels/elementwise/binary_packs.cuh"

#define GPK_KERNELS(op)                       \
    GPK_PACKS_KERNEL(op, int32, std::int32_t) \
    GPK_PACKS_KERNEL(op, int64, std::int64_t)
#define GPK_BOOL_KERNEL(op) GPK_PACKS_KERNEL(op, bool_, bool)

GPK_PACKS_INTEGER_OPS(GPK_KERNELS)
GPK_PACKS_BOOL_OPS(GPK_BOOL_KERNEL)
