#include "kernels/attention/flash_attention_mma.cuh"

GPK_FLASH_MMA_KERNELS(128)
