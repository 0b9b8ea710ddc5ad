// accept_drafts: how many of the tokens that were guessed for a text are those that its model chooses. Row 0
// of a forward pass had the text's last token, each later one a guess of what follows the row before. A guess
// is accepted where it is the largest logit of the row before and all before it were; the first row whose
// guess is not gives one token more. A row whose two largest logits are closer than `margin` times the
// deviation of its logits decides nothing: another order of summation could choose the other one, so the
// tokens end before it.
#pragma once

#include <cstdint>

#include "base/float_types.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

inline constexpr std::int32_t kMostDraftRows = 8;

struct AcceptDraftsParams {
    const float* logits;  // [rows, count], rows `pitch` elements apart
    std::int32_t* ids;  // [rows]: the last token and the guesses. ids[0] becomes the new last token, and with
                        // `refill` the others what this pass would have them be
    std::int32_t* position;  // [1]: of row 0; moves on by the tokens that are now followed by another
    std::int32_t* log;       // [log_size] in pinned host memory: each token, at its position
    std::int64_t log_size;
    std::int32_t* accepted;  // [2] in pinned host memory: by how much the position moved; whether a close row
                             // ended it
    std::int32_t* best;      // [2 rows]: for the kernel's own use
    std::uint32_t* ticket;   // [1]: 0 before and after
    std::int64_t pitch;
    std::int32_t rows, count;  // rows: 1 to kMostDraftRows
    float margin;
    bool refill;
};

const Kernel& accept_drafts();  // a block of 1024 threads for each row

// What follows from each row's choice (-1: none) and whether it is clear; the same on the host.
GPK_HD void accept_rows(const AcceptDraftsParams& p, const std::int32_t* best, const std::int32_t* clear) {
    std::int32_t row = 0;
    while (row + 1 < p.rows && clear[row] != 0 && best[row] >= 0 && best[row] == p.ids[row + 1]) ++row;
    const bool decided = clear[row] != 0;
    const std::int32_t moved = decided ? row + 1 : row;
    const std::int32_t position = p.position[0];
    for (std::int32_t i = 0; i < moved; ++i) {
        const std::int64_t at = std::int64_t{position} + 1 + i;
        if (at >= 0 && at < p.log_size) p.log[at] = best[i];
    }
    p.ids[0] = decided ? best[row] : p.ids[row];
    for (std::int32_t i = 1; p.refill && i < p.rows; ++i) {
        const std::int32_t from = row + i < p.rows ? row + i : p.rows - 1;
        p.ids[i] = best[from] < 0 ? 0 : best[from];
    }
    p.position[0] = position + moved;
    p.accepted[0] = moved;
    p.accepted[1] = decided ? 0 : 1;
}

}  // namespace gpk::kernels
