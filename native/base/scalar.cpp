#include "base/scalar.hpp"

namespace gpk {

bool Scalar::fits(DType dtype) const noexcept {
    if (kind_ == ScalarKind::floating) return is_floating(dtype);
    if (!is_integer(dtype)) return true;
    const int bits = 8 * static_cast<int>(itemsize(dtype));
    const bool beyond_int64 = is_unsigned_ && integer_ < 0;
    if (info(dtype).kind == DTypeKind::unsigned_integer) {
        if (bits == 64) return is_unsigned_ || integer_ >= 0;
        return !beyond_int64 && integer_ >= 0 && integer_ < (std::int64_t{1} << bits);
    }
    if (beyond_int64) return false;
    if (bits == 64) return true;
    const std::int64_t limit = std::int64_t{1} << (bits - 1);
    return integer_ >= -limit && integer_ < limit;
}

}  // namespace gpk
