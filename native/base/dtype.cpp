#include "base/dtype.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace gpk {

DType dtype_from_name(std::string_view wanted) {
    std::string names;
    for (int i = 0; i < kDTypeCount; ++i) {
        if (kDTypes[i].name == wanted) return static_cast<DType>(i);
        names += str(i > 0 ? ", " : "", kDTypes[i].name);
    }
    throw error(ErrorKind::type,
                {.call = "dtype", .expected = str("one of ", names), .got = str("'", wanted, "'")});
}

namespace {

DType signed_of(std::size_t size_bytes) {
    switch (size_bytes) {
        case 1: return DType::int8;
        case 2: return DType::int16;
        case 4: return DType::int32;
        default: return DType::int64;
    }
}

DType promote_floats(DType a, DType b) {
    if (a == b) return a;
    if (is_float8(a) || is_float8(b)) {
        throw error(ErrorKind::type, {.call = "promotion",
                                      .expected = "two arrays of one float8 type",
                                      .got = str(name(a), " and ", name(b)),
                                      .fix = "convert with astype first"});
    }
    if (itemsize(a) != itemsize(b)) return itemsize(a) > itemsize(b) ? a : b;
    return DType::float32;  // float16 with bfloat16: neither holds the other
}

}  // namespace

DType float_for(DType dtype) {
    if (is_floating(dtype)) return dtype;
    const std::size_t size_bytes = itemsize(dtype);
    return size_bytes == 1 ? DType::float16 : size_bytes == 2 ? DType::float32 : DType::float64;
}

DType promote(DType a, DType b) {
    if (a == b) return a;
    const DTypeKind ka = info(a).kind, kb = info(b).kind;
    if (ka == DTypeKind::floating && kb == DTypeKind::floating) return promote_floats(a, b);
    if (kb == DTypeKind::floating || (kb != DTypeKind::boolean && ka == DTypeKind::boolean)) {
        return promote(b, a);
    }
    if (kb == DTypeKind::boolean) return is_float8(a) ? promote_floats(a, DType::float32) : a;
    if (ka == DTypeKind::floating) {
        // bfloat16 has float32's range, so an integer of 8 bits fits it as it fits float16.
        if (a == DType::bfloat16 && itemsize(b) == 1) return a;
        return promote_floats(a, float_for(b));
    }
    if (ka == kb) return itemsize(a) > itemsize(b) ? a : b;
    const DType s = ka == DTypeKind::signed_integer ? a : b;
    const DType u = ka == DTypeKind::signed_integer ? b : a;
    if (itemsize(u) < itemsize(s)) return s;
    return itemsize(u) == 8 ? DType::float64 : signed_of(2 * itemsize(u));
}

DType promote_scalar(DType array, ScalarKind scalar) {
    const DTypeKind kind = info(array).kind;
    switch (scalar) {
        case ScalarKind::boolean: return array;
        case ScalarKind::integer: return kind == DTypeKind::boolean ? DType::int64 : array;
        case ScalarKind::floating: return kind == DTypeKind::floating ? array : DType::float64;
    }
    return array;
}

}  // namespace gpk
