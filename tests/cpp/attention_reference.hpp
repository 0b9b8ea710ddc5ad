// Attention in float64, for the tests of its kernels.
#pragma once

#include <optional>
#include <string>

#include "base/error.hpp"
#include "model_support.hpp"

struct AttentionCase {
    std::int64_t batch = 1, heads = 1, kv_heads = 1, tokens = 1, keys = 1, d = 64;
    bool causal = false;
    std::int64_t left = -1, right = -1;
    double soft_cap = 0;
    std::optional<double> scale = {};
    bool slopes = false;
};

struct AttentionInputs {
    std::vector<float> q, k, v, slopes;
};

inline AttentionInputs inputs_of(const AttentionCase& c, gpk::DType dtype) {
    return {rounded(random_floats(c.batch * c.heads * c.tokens * c.d, 1), dtype),
            rounded(random_floats(c.batch * c.kv_heads * c.keys * c.d, 2), dtype),
            rounded(random_floats(c.batch * c.kv_heads * c.keys * c.d, 3), dtype),
            random_floats(c.heads, 4, 0.1f)};
}

// `bias`: of batch, head, query, key; -infinity for what is not seen.
template <class Bias>
std::vector<double> reference(const AttentionCase& c, const AttentionInputs& in, Bias&& bias) {
    std::vector<double> out;
    const double scale = c.scale.value_or(1 / std::sqrt(static_cast<double>(c.d)));
    const std::int64_t right = c.causal ? 0 : c.right;
    for (std::int64_t row = 0; row < c.batch * c.heads * c.tokens; ++row) {
        const std::int64_t token = row % c.tokens, head = row / c.tokens % c.heads,
                           batch = row / c.tokens / c.heads;
        const std::int64_t place = token + c.keys - c.tokens;
        const std::int64_t first_key = (batch * c.kv_heads + head / (c.heads / c.kv_heads)) * c.keys;
        std::vector<double> scores(static_cast<std::size_t>(c.keys), -INFINITY);
        double highest = -INFINITY, sum = 0;
        for (std::int64_t key = 0; key < c.keys; ++key) {
            if ((c.left >= 0 && key < place - c.left) || (right >= 0 && key > place + right)) continue;
            double score = 0;
            for (std::int64_t i = 0; i < c.d; ++i) {
                score += double(in.q[static_cast<std::size_t>(row * c.d + i)]) *
                         in.k[static_cast<std::size_t>((first_key + key) * c.d + i)];
            }
            score *= scale;
            if (c.soft_cap > 0) score = c.soft_cap * std::tanh(score / c.soft_cap);
            if (c.slopes) {
                score -= in.slopes[static_cast<std::size_t>(head)] * double(std::abs(key - place));
            }
            score += bias(batch, head, token, key);
            scores[static_cast<std::size_t>(key)] = score;
            highest = std::max(highest, score);
        }
        if (highest == -INFINITY) highest = 0;
        for (double& score : scores) sum += score = std::exp(score - highest);
        for (std::int64_t i = 0; i < c.d; ++i) {
            double value = 0;
            for (std::int64_t key = 0; key < c.keys; ++key) {
                value += scores[static_cast<std::size_t>(key)] *
                         in.v[static_cast<std::size_t>((first_key + key) * c.d + i)];
            }
            out.push_back(sum > 0 ? value / sum : 0);
        }
    }
    return out;
}
inline std::vector<double> reference(const AttentionCase& c, const AttentionInputs& in) {
    return reference(c, in, [](auto...) { return 0.0; });
}

inline std::string describe(const AttentionCase& c, gpk::DType dtype) {
    return gpk::str(gpk::name(dtype), " batch ", c.batch, " heads ", c.heads, "/", c.kv_heads, " tokens ",
                    c.tokens, " keys ", c.keys, " d ", c.d, " causal ", c.causal, " window ", c.left, ", ",
                    c.right);
}
