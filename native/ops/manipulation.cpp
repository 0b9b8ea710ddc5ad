#include "ops/manipulation.hpp"

#include <string>

#include "base/error.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/take_rows.hpp"

namespace gpk::ops {

namespace {

void refuse_none(const char* call, const std::vector<Array>& arrays) {
    if (!arrays.empty()) return;
    throw error(ErrorKind::value,
                {.call = call, .argument = "arrays", .expected = "at least one array", .got = "none"});
}

// Whether both have the same extents but along `axis` (of none: -1).
bool same_but(const Dims& a, const Dims& b, int axis) {
    bool same = a.size() == b.size();
    for (int i = 0; same && i < a.size(); ++i) same = i == axis || a[i] == b[i];
    return same;
}

}  // namespace

Array reshape(const Array& x, const Dims& shape) {
    if (auto view = x.reshape_view(shape)) return *std::move(view);
    return *contiguous(x).reshape_view(shape);
}

Array concat(const std::vector<Array>& arrays, int axis) {
    refuse_none("concat", arrays);
    const Array& first = arrays.front();
    const int position = normalize_axis("concat", axis, first.rank());
    DType dtype = first.dtype();
    Dims shape = first.shape();
    shape[position] = 0;
    for (const Array& array : arrays) {
        common_device("concat", {&first, &array});
        if (!same_but(array.shape(), first.shape(), position)) {
            throw error(ErrorKind::value,
                        {.call = "concat",
                         .expected = str("shapes that differ only along axis ", position),
                         .got = str(to_string(first.shape()), " and ", to_string(array.shape()))});
        }
        dtype = promote(dtype, array.dtype());
        if (__builtin_add_overflow(shape[position], array.shape()[position], &shape[position])) {
            throw error(ErrorKind::value,
                        {.call = "concat", .expected = "fewer than 2**63 elements", .got = "more"});
        }
    }
    const Array out = Array::empty(first.device(), shape, dtype);
    std::int64_t at = 0;
    for (const Array& array : arrays) {
        const std::int64_t extent = array.shape()[position];
        assign(out.slice(position, at, 1, extent), array);
        at += extent;
    }
    return out;
}

Array stack(const std::vector<Array>& arrays, int axis) {
    refuse_none("stack", arrays);
    const Array& first = arrays.front();
    const int position = normalize_axis("stack", axis, first.rank() + 1);
    std::vector<Array> expanded;
    for (const Array& array : arrays) {
        if (array.shape() != first.shape()) {
            throw error(ErrorKind::value,
                        {.call = "stack",
                         .expected = "arrays of one shape",
                         .got = str(to_string(first.shape()), " and ", to_string(array.shape()))});
        }
        expanded.push_back(array.expand_dims(position));
    }
    return concat(expanded, position);
}

Array take(const Array& x, const Array& indices, int axis) {
    Device& device = common_device("take", {&x, &indices});
    if (!is_integer(indices.dtype())) {
        throw error(ErrorKind::type, {.call = "take",
                                      .argument = "indices",
                                      .expected = "integers",
                                      .got = std::string(name(indices.dtype()))});
    }
    const int position = normalize_axis("take", axis, x.rank());
    Dims shape, sides[3];  // of x before the axis, of the indices, of x after it
    for (int i = 0; i < x.rank(); ++i) {
        if (i != position) sides[i < position ? 0 : 2].push_back(x.shape()[i]);
    }
    sides[1] = indices.shape();
    for (const Dims& side : sides) {
        for (const std::int64_t extent : side) shape.push_back(extent);
    }
    const Array out = Array::empty(device, shape, x.dtype());
    take_rows(out, contiguous(x), contiguous(indices), element_count(sides[0]), x.shape()[position],
              element_count(sides[2]) * static_cast<std::int64_t>(itemsize(x.dtype())), true);
    return out;
}

}  // namespace gpk::ops
