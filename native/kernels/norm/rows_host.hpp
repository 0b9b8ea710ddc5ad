// What the host twins of normalisations with a residual share.
#pragma once

#include "kernels/host.hpp"
#include "kernels/norm/rows.hpp"

namespace gpk::kernels {

// body(source, weight, y) for each row, where source is x, or the sum that has just been written.
template <class T, class Body>
void for_host_rows(const NormParams& p, Body body) {
    parallel_for(p.rows, 1 + 16384 / (p.n + 1), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            const T* source = static_cast<const T*>(p.x) + row * p.n;
            if (p.residual != nullptr) {
                const T* residual = static_cast<const T*>(p.residual) + row * p.n;
                T* sum = static_cast<T*>(p.sum) + row * p.n;
                for (std::int64_t i = 0; i < p.n; ++i) {
                    sum[i] = T(static_cast<float>(source[i]) + static_cast<float>(residual[i]));
                }
                source = sum;
            }
            body(source, static_cast<const T*>(p.weight), static_cast<T*>(p.y) + row * p.n);
        }
    });
}

}  // namespace gpk::kernels
