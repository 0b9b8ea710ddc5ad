// An option of an op over rows: of each row, or of all.
#pragma once

#include <cstdint>

#include "base/float_types.hpp"

namespace gpk::kernels {

template <class Value, class Stored = Value>
struct PerRow {
    const Stored* values;  // [rows], or null
    Value value;           // where there are none

    GPK_HD Value operator[](std::int64_t row) const {
        return values != nullptr ? static_cast<Value>(values[row]) : value;
    }
};

}  // namespace gpk::kernels
