// The rotation on the host, for the twins of the kernels that rotate.
#pragma once

#include <cmath>
#include <vector>

#include "kernels/attention/rope.hpp"

namespace gpk::kernels {

// Cosines and sines of one position, times the table's factor.
struct RopeAngles {
    RopeAngles(const RopeTable& table, float position)
        : cosine(static_cast<std::size_t>(table.pairs)), sine(static_cast<std::size_t>(table.pairs)) {
        for (std::size_t i = 0; i < cosine.size(); ++i) {
            const float angle = position * table.inv_freq[i];
            cosine[i] = std::cos(angle) * table.factor;
            sine[i] = std::sin(angle) * table.factor;
        }
    }
    std::vector<float> cosine, sine;
};

template <class From, class T>
void rotate_head(const From* x, T* y, std::int64_t d, const RopeAngles& angles) {
    const auto pairs = static_cast<std::int64_t>(angles.cosine.size());
    for (std::int64_t i = 0; i < d / 2; ++i) {
        const ElementPair at = rope_pair(i, pairs);
        float a = static_cast<float>(x[at.first]), b = static_cast<float>(x[at.second]);
        if (i < pairs) {
            const float cosine = angles.cosine[static_cast<std::size_t>(i)];
            const float sine = angles.sine[static_cast<std::size_t>(i)];
            const float turned = a * cosine - b * sine;
            b = b * cosine + a * sine;
            a = turned;
        }
        y[at.first] = T(a);
        y[at.second] = T(b);
    }
}

}  // namespace gpk::kernels
