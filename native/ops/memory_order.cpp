#include "ops/memory_order.hpp"

#include <algorithm>

namespace gpk::ops {

std::optional<Dims> memory_order(const Array& x) {
    if (x.rank() < 2 || x.size() == 0 || x.is_contiguous()) return std::nullopt;
    Dims order;
    for (int i = 0; i < x.rank(); ++i) order.push_back(i);
    const auto is_one = [&](std::int64_t axis) { return x.shape()[static_cast<int>(axis)] == 1; };
    // Axes of one element may have any stride; they go first.
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
        if (is_one(a) || is_one(b)) return is_one(a) && !is_one(b);
        return x.strides()[static_cast<int>(a)] > x.strides()[static_cast<int>(b)];
    });
    std::int64_t run = 1;
    for (int i = x.rank() - 1; i >= 0; --i) {
        const int axis = static_cast<int>(order[i]);
        if (is_one(axis)) continue;
        if (x.strides()[axis] != run) return std::nullopt;
        run *= x.shape()[axis];
    }
    return order;
}

Dims undone(const Dims& order) {
    Dims inverse = order;
    for (int i = 0; i < order.size(); ++i) inverse[static_cast<int>(order[i])] = i;
    return inverse;
}

}  // namespace gpk::ops
