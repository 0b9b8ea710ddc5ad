// Attention of one query on the host, for the twins of the kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/float_types.hpp"

namespace gpk::kernels {

// Keys that a query sees, one after the other.
template <class T>
struct KeyRange {
    const T* keys;
    const T* values;
    std::int64_t key_stride, value_stride;  // in elements
    std::int64_t count, d;
};

// scores[i] = q . keys[i] * scale
template <class T>
void score_keys(const KeyRange<T>& keys, const T* q, float scale, float* scores);
// acc[j] += sum of weights[i] * values[i][j]
template <class T>
void add_values(const KeyRange<T>& keys, const float* weights, float* acc);

// Room for one query at a time.
class HostAttention {
   public:
    // The scores, to be changed in place before they are combined.
    template <class T>
    float* score(const KeyRange<T>& keys, const T* q, float scale) {
        scores_.resize(static_cast<std::size_t>(keys.count));
        score_keys(keys, q, scale, scores_.data());
        return scores_.data();
    }
    // out = softmax(scores) values * factor; zeros where every score is -infinity.
    template <class T, class Out>
    void combine(const KeyRange<T>& keys, Out* out, float factor = 1) {
        const float highest = *std::max_element(scores_.begin(), scores_.end());
        float sum = 0;
        for (float& score : scores_) sum += score = std::exp(score - (highest == -INFINITY ? 0 : highest));
        acc_.assign(static_cast<std::size_t>(keys.d), 0.0f);
        add_values(keys, scores_.data(), acc_.data());
        const float inverse = sum == 0 ? 0.0f : factor / sum;
        for (std::int64_t i = 0; i < keys.d; ++i) out[i] = Out(acc_[static_cast<std::size_t>(i)] * inverse);
    }

   private:
    std::vector<float> scores_, acc_;
};

}  // namespace gpk::kernels
