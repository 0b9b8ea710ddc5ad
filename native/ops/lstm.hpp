// Long short-term memory, a layer in one direction.
#pragma once

#include "array/array.hpp"

namespace gpk::ops {

struct LstmWeights {                        // as PyTorch lays them: gates i, f, g, o one after another
    const Array& input;                     // (4 hidden, inputs)
    const Array& recurrent;                 // (4 hidden, hidden)
    const Array* input_bias = nullptr;      // (4 hidden)
    const Array* recurrent_bias = nullptr;  // (4 hidden)
};

struct LstmResult {
    Array output;  // (steps, batch, hidden): h of each step, or (steps, hidden)
    Array h, c;    // of the last step: (batch, hidden) or (hidden)
};

// x (steps, batch, inputs) or (steps, inputs), all of one dtype: float32, float16 or bfloat16. h and c: where
// to begin, (batch, hidden) or (hidden); null for zeros. `reverse`: from the last step to the first. c is
// kept in float32 between steps.
LstmResult lstm(const Array& x, const LstmWeights& weights, const Array* h, const Array* c, bool reverse);

}  // namespace gpk::ops
