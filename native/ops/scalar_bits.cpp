#include "ops/scalar_bits.hpp"

#include "base/error.hpp"
#include "kernels/elementwise/elements.hpp"

namespace gpk::ops {

namespace {

std::string written(const Scalar& value) {
    return value.is_unsigned() ? std::to_string(static_cast<std::uint64_t>(value.as_int64()))
                               : std::to_string(value.as_int64());
}

}  // namespace

std::uint64_t scalar_bits(const char* call, const Scalar& value, DType dtype) {
    std::uint64_t bits = 0;
    if (value.kind() == ScalarKind::floating || is_floating(dtype)) {
        kernels::store<double>(dtype, &bits, 0, value.as_double());
    } else {
        if (!value.fits(dtype)) {
            throw error(ErrorKind::value, {.call = call,
                                           .expected = str("an integer in the range of ", name(dtype)),
                                           .got = written(value),
                                           .fix = "convert the array to a wider dtype with astype"});
        }
        kernels::store<std::uint64_t>(dtype, &bits, 0, static_cast<std::uint64_t>(value.as_int64()));
    }
    return bits;
}

Pattern repeat_bits(std::uint64_t bits, DType dtype) {
    for (std::size_t width = itemsize(dtype); width < sizeof(bits); width *= 2) bits |= bits << (8 * width);
    return {{bits, bits}};
}

}  // namespace gpk::ops
