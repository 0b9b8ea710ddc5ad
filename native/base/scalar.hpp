// Scalar: a Python number on its way into an op. It keeps its kind, so that promotion can be NumPy's.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"

namespace gpk {

class Scalar {
   public:
    Scalar(bool value) : kind_(ScalarKind::boolean), integer_(value ? 1 : 0) {}
    Scalar(int value) : kind_(ScalarKind::integer), integer_(value) {}
    Scalar(std::int64_t value) : kind_(ScalarKind::integer), integer_(value) {}
    // For integers past int64's range, which only uint64 arrays can hold.
    Scalar(std::uint64_t value)
        : kind_(ScalarKind::integer), integer_(static_cast<std::int64_t>(value)), is_unsigned_(true) {}
    Scalar(double value) : kind_(ScalarKind::floating), floating_(value) {}

    ScalarKind kind() const noexcept { return kind_; }
    double as_double() const noexcept {
        if (kind_ == ScalarKind::floating) return floating_;
        return is_unsigned_ ? static_cast<double>(static_cast<std::uint64_t>(integer_))
                            : static_cast<double>(integer_);
    }
    // The integer's two's complement bits (of uint64 values too). Only for integers and bools.
    std::int64_t as_int64() const noexcept { return integer_; }
    bool is_unsigned() const noexcept { return is_unsigned_; }

    // Whether an integer (or bool) fits an integer dtype, as NEP 50 requires of Python integers.
    bool fits(DType dtype) const noexcept;

   private:
    ScalarKind kind_;
    std::int64_t integer_ = 0;
    double floating_ = 0;
    bool is_unsigned_ = false;
};

}  // namespace gpk
