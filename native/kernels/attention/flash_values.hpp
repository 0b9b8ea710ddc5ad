// flash_values: values in float8 as the tensor cores of SM 90 want them, keys along the rows, for
// flash_attention. [batch, kv_heads, keys, d] -> [batch, kv_heads, d, padded], where padded is keys made a
// multiple of kFlashValueKeys; what no key has is zero.
//
// Of each 16 keys, place 4 t + 2 h + e has key 8 h + 2 t + e: a thread's weights of a product's result are
// then, in the order that it has them, four neighbours of an operand's row (PTX ISA 9.0, "Register fragments
// and shared memory matrix layouts" of wgmma, for accumulators and for 8-bit A).
#pragma once

#include <cstdint>

#include "base/float_types.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

inline constexpr int kFlashValueKeys = 128;  // of a block
inline constexpr int kFlashValueColumns = 64;
inline constexpr int kFlashValueThreads = 128;

struct FlashValuesParams {
    const void* in = nullptr;  // [batch, kv_heads, keys, d] in pieces of 16 bytes, the last axis without gaps
    void* out = nullptr;       // [batch, kv_heads, d, padded], without gaps
    std::int64_t batch_stride = 0, head_stride = 0, token_stride = 0;  // of `in`, in elements
    std::int32_t batch = 0, kv_heads = 0, keys = 0, d = 0, padded = 0;
};

// Which key stands at a place.
GPK_HD std::int32_t key_at(std::int32_t place) {
    const std::int32_t rest = place % 16;
    return place - rest + rest / 2 % 2 * 8 + rest / 4 * 2 + rest % 2;
}

// grid = (padded / kFlashValueKeys, d in parts of kFlashValueColumns, batch * kv_heads)
const Kernel& flash_values();

}  // namespace gpk::kernels
