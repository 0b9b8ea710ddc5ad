// SliceConfig: how long one launch of work that can be cut may be, so that a tenant's long work leaves gaps.
#pragma once

#include <cstdint>

namespace gpk {

struct SliceConfig {
    // Device time of one launch, as expected; 0: nothing is cut. A launch still has a block for each SM.
    std::int64_t max_ns = 0;
    friend bool operator==(const SliceConfig&, const SliceConfig&) = default;
};
// Throws Error (value), for 0 too.
void check(const SliceConfig& config);

}  // namespace gpk
