// The inner loop of the host's matrix product: c += a * b for one small tile that stays in registers.
#pragma once

#include <cstdint>

namespace gpk::kernels {

// a: depth x rows and b: depth x columns, packed, b aligned to 64 bytes. c: rows x columns, `pitch`
// elements between rows.
template <class C>
struct Micro {
    int rows, columns;
    void (*run)(std::int64_t depth, const C* a, const C* b, C* c, std::int64_t pitch);
};

// The widest that this processor can run. For float, double, uint32 and uint64.
template <class C>
const Micro<C>& micro();

}  // namespace gpk::kernels
