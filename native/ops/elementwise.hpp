// Element-wise ops with NumPy's broadcasting and promotion (NEP 50).
#pragma once

#include <optional>

#include "array/array.hpp"
#include "base/scalar.hpp"
#include "kernels/elementwise/binary.hpp"  // BinaryOp
#include "kernels/elementwise/unary.hpp"   // UnaryOp

namespace gpk::ops {

// `out`, where given, has the result's shape and dtype and is written; it may be one of the inputs.
Array unary(UnaryOp op, const Array& x, const Array* out = nullptr);
Array binary(BinaryOp op, const Array& a, const Array& b, const Array* out = nullptr);
Array binary(BinaryOp op, const Array& a, const Scalar& b, const Array* out = nullptr);
Array binary(BinaryOp op, const Scalar& a, const Array& b, const Array* out = nullptr);

// condition: bool. The three broadcast together; a and b promote to the result's dtype.
Array where(const Array& condition, const Array& a, const Array& b);
Array where(const Array& condition, const Array& a, const Scalar& b);
Array where(const Array& condition, const Scalar& a, const Array& b);
Array clip(const Array& x, const std::optional<Scalar>& low, const std::optional<Scalar>& high,
           const Array* out = nullptr);

// A new contiguous array of that dtype (a copy even where the dtype is the same).
Array astype(const Array& x, DType dtype);
// x itself where it is contiguous already, else a contiguous copy.
Array contiguous(const Array& x);
// to[...] = from: broadcasts `from` to `to` and converts; `to` may be any writable view. Right also
// where the two overlap.
void assign(const Array& to, const Array& from);
void assign(const Array& to, const Scalar& value);

}  // namespace gpk::ops
