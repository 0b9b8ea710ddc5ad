// The tokens of a text that several guesses at once have settled, on the device.
#pragma once

#include <cstdint>

#include "array/array.hpp"
#include "kernels/sampling/accept_drafts.hpp"

namespace gpk::ops {

struct AcceptDraftsOptions {
    std::int64_t count = 0;  // only the first so many logits of a row are of tokens
    double margin = 0;       // rows whose two largest logits are closer, in deviations, decide nothing
    bool refill = false;     // ids become what this pass would have the next guesses be
};

// Memory that the calls of one text use, one after the other.
struct AcceptDraftsState {
    Array best;    // int32 [2 kMostDraftRows]
    Array ticket;  // uint32 [1], 0
    // Pinned host memory that outlives the work: see kernels/sampling/accept_drafts.hpp.
    std::int32_t* log = nullptr;
    std::int64_t log_size = 0;
    std::int32_t* accepted = nullptr;  // [2]
};

// logits: float32 [rows, vocab], after ids, int32 [rows], the first of which stands at position, int32 [1].
void accept_drafts(const Array& logits, const Array& ids, const Array& position,
                   const AcceptDraftsState& state, const AcceptDraftsOptions& options);

}  // namespace gpk::ops
