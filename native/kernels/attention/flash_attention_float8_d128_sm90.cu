#include "kernels/attention/flash_attention_sm90.cuh"

GPK_FLASH_FLOAT8_KERNELS(128)
