// Element-wise ops of arrays that fill their memory in another order than that of their axes, such as m.T:
// they compute in the order of the memory, and the result has it too, as NumPy's have (order="K").
#pragma once

#include <optional>

#include "array/array.hpp"

namespace gpk::ops {

// x's axes in the order of its memory, the outermost first; nothing where that is the order that they have,
// or where the elements do not lie side by side.
std::optional<Dims> memory_order(const Array& x);

// What transpose(order) has done, undone.
Dims undone(const Dims& order);

}  // namespace gpk::ops
