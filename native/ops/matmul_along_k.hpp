// Operands that lie as the tensor cores of SM 90 read types of other sizes than 16 bits: along k only.
#pragma once

#include "ops/matmul_variants.hpp"

namespace gpk::ops {

// Puts copies with k innermost, and lines of whole 16 bytes, in the place of operands that lie otherwise,
// where a kernel wants that and the product is large enough to pay for the copies. a: batch + (m, k), b:
// batch
// + (k, n); what is broadcast over a batch is copied once.
void lay_along_k(Array& a, Array& b, const GemmTypes& types, int sm);

}  // namespace gpk::ops
