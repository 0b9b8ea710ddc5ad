// The same as gate.cuh for host twins, exactly.
#pragma once

#include "kernels/activation/glu.hpp"  // GluOp
#include "kernels/elementwise/unary_functors.hpp"
#include "kernels/host.hpp"

namespace gpk::kernels {

inline float gated(GluOp op, float gate, float up) {
    switch (op) {
#define GPK_CASE(name, function) \
    case GluOp::name: return unary_functors::function::apply(gate) * up;
        GPK_GLU_OPS(GPK_CASE)
#undef GPK_CASE
    }
    return 0;
}

// c [rows, n], c_row elements apart, from the sums [rows, 2 n] of gates and ups.
template <class T>
void gate_rows(GluOp op, const float* sums, std::int64_t rows, std::int64_t n, T* c, std::int64_t c_row) {
    parallel_for(rows * n, 4096, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const float* both = sums + i / n * 2 * n;
            c[i / n * c_row + i % n] = convert<T>(gated(op, both[i % n], both[n + i % n]));
        }
    });
}

}  // namespace gpk::kernels
