// The rotation of one pair of elements, for the kernels that rotate.
#pragma once

#include "kernels/attention/rope.hpp"

namespace gpk::kernels {

template <class T>
__device__ __forceinline__ void rotate_pair(const T* x, T* y, std::int64_t i, const RopeTable& table,
                                            float position) {
    const ElementPair at = rope_pair(i, table.pairs);
    float a = float(x[at.first]), b = float(x[at.second]);
    if (i < table.pairs) {
        float sine, cosine;
        sincosf(position * table.inv_freq[i], &sine, &cosine);
        sine *= table.factor;
        cosine *= table.factor;
        const float turned = a * cosine - b * sine;
        b = b * cosine + a * sine;
        a = turned;
    }
    y[at.first] = T(a);
    y[at.second] = T(b);
}

}  // namespace gpk::kernels
