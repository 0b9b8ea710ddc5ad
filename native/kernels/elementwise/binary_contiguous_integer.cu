#include "kernels/elementwise/binary_contiguous.cuh"

#define GPK_KERNELS(op)                            \
    GPK_CONTIGUOUS_KERNEL(op, int32, std::int32_t) \
    GPK_CONTIGUOUS_KERNEL(op, int64, std::int64_t)
#define GPK_BOOL_KERNEL(op) GPK_CONTIGUOUS_KERNEL(op, bool_, bool)

GPK_CONTIGUOUS_INTEGER_OPS(GPK_KERNELS)
GPK_CONTIGUOUS_BOOL_OPS(GPK_BOOL_KERNEL)
