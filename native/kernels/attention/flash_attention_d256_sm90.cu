#include "kernels/attention/flash_attention_sm90.cuh"

GPK_FLASH_SM90_KERNELS(256)
