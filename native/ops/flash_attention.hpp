// The choice of a flash_attention kernel, and its launch.
#pragma once

#include <initializer_list>

#include "array/array.hpp"
#include "kernels/attention/flash_attention.hpp"

namespace gpk::ops {

struct FlashCall {
    // [batch, heads, tokens, d] and so on; the last axis without gaps. With params.pages, k and v are pages.
    const Array& q;
    const Array& k;
    const Array& v;
    const Array& out;
    // Options, sizes and what is read beside q, k and v. The launch fills in the rest: pointers, strides and
    // tensor maps of the four, and the tiles.
    kernels::FlashAttentionParams params;
    Cost cost;
    std::initializer_list<const Array*> reads;
};

// Whether the copy engine of SM 90 can read this: elements of 8 or 16 bits, everything in 16-byte units.
bool suits_tensor_map(const Array& x);

// Whether a kernel takes this call's dtype and layout on its device.
bool takes_flash(const FlashCall& call);

// In one launch, or in as many as the stream's tenant wants. `only`: by this row of the table.
void launch_flash(const FlashCall& call, const kernels::FlashVariant* only = nullptr);

}  // namespace gpk::ops
