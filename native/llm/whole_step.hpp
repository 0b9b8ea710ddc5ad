// Which models take a step of one text, or of several, in one launch (ops::DecodeStep).
#pragma once

#include <memory>
#include <vector>

#include "llm/weights.hpp"
#include "ops/attention.hpp"
#include "ops/decode_step.hpp"

namespace gpk::llm {

// `keys` and `values`: of each layer, the texts' caches [texts, kv_heads, max_length, head_dim]. Null where
// the family or its sizes ask for what the kernel does not do: then the step goes op by op.
std::unique_ptr<ops::DecodeStep> whole_step(const ModelWeights& weights, const std::vector<Array>& keys,
                                            const std::vector<Array>& values, const ops::Rope* rope);

}  // namespace gpk::llm
