// Reductions: sum, prod, max, min, any, all over any axes.
#pragma once

#include <cstdint>

namespace gpk {

enum class ReduceOp : std::uint8_t { sum, mean, max, min, prod, any, all };
enum class ArgReduceOp : std::uint8_t { argmax, argmin };

}  // namespace gpk
