// What rope and kv_append check alike.
#pragma once

#include "kernels/attention/rope.hpp"
#include "ops/attention.hpp"

namespace gpk::ops {

// Checks the frequencies against a head of d elements.
kernels::RopeTable rope_table(const char* call, const Rope& rope, std::int64_t d);

}  // namespace gpk::ops
