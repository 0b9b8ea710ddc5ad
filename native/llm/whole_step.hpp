// Which models take a step of one text in one launch (ops::DecodeStep).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "llm/weights.hpp"
#include "ops/attention.hpp"
#include "ops/decode_step.hpp"

namespace gpk::llm {

// Whether a text's steps are one launch each: where the shape's long texts have run on a GPU, wherever a
// kernel serves the model, or never.
enum class WholeSteps : std::uint8_t { where_run, where_served, never };

bool takes_whole_steps(WholeSteps wanted, const ModelConfig& config);

// `keys` and `values`: of each layer, the text's cache [kv_heads, max_length, head_dim]. Null where the
// family or its sizes ask for what the kernel does not do: then the step goes op by op.
std::unique_ptr<ops::DecodeStep> whole_step(const ModelWeights& weights, const std::vector<Array>& keys,
                                            const std::vector<Array>& values, const ops::Rope* rope);

}  // namespace gpk::llm
