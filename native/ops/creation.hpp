// Ops that make arrays from nothing.
#pragma once

#include "array/array.hpp"
#include "base/scalar.hpp"

namespace gpk::ops {

Array full(Device& device, const Dims& shape, const Scalar& value, DType dtype);
Array zeros(Device& device, const Dims& shape, DType dtype);
// start, start + step, ...: count elements, as NumPy's arange computes them (start + i * step).
Array arange(Device& device, double start, double step, std::int64_t count, DType dtype);
Array arange_integer(Device& device, std::int64_t start, std::int64_t step, std::int64_t count, DType dtype);
// count evenly spaced numbers; the last is exactly `stop` where endpoint is set.
Array linspace(Device& device, double start, double stop, std::int64_t count, bool endpoint, DType dtype);
Array eye(Device& device, std::int64_t rows, std::int64_t columns, std::int64_t diagonal, DType dtype);

}  // namespace gpk::ops
