#include "base/dims.hpp"

#include "base/error.hpp"

namespace gpk {

namespace {

[[noreturn]] void rank_too_high(std::size_t rank) {
    throw error(ErrorKind::value, {.call = "shape",
                                   .expected = str("at most ", kMaxRank, " dimensions"),
                                   .got = str(rank),
                                   .fix = "merge dimensions with reshape"});
}

}  // namespace

Dims::Dims(std::span<const std::int64_t> values) {
    if (values.size() > kMaxRank) rank_too_high(values.size());
    size_ = static_cast<int>(values.size());
    std::copy(values.begin(), values.end(), values_);
}

Dims Dims::filled(int size, std::int64_t value) {
    if (size > kMaxRank) rank_too_high(static_cast<std::size_t>(size));
    Dims dims;
    dims.size_ = size;
    std::fill_n(dims.values_, size, value);
    return dims;
}

void Dims::push_back(std::int64_t value) { insert(size_, value); }

void Dims::insert(int position, std::int64_t value) {
    if (size_ == kMaxRank) rank_too_high(static_cast<std::size_t>(size_) + 1);
    std::copy_backward(values_ + position, values_ + size_, values_ + size_ + 1);
    values_[position] = value;
    ++size_;
}

void Dims::erase(int position) {
    std::copy(values_ + position + 1, values_ + size_, values_ + position);
    --size_;
}

std::string to_string(const Dims& dims) {
    std::string text = "(";
    for (int i = 0; i < dims.size(); ++i) {
        if (i > 0) text += ", ";
        text += std::to_string(dims[i]);
    }
    return text + (dims.size() == 1 ? ",)" : ")");
}

std::int64_t element_count(const Dims& shape) {
    std::int64_t count = 1;
    bool overflow = false, empty = false;
    for (std::int64_t extent : shape) {
        if (extent < 0) {
            throw error(ErrorKind::value,
                        {.call = "shape", .expected = "extents of 0 or more", .got = to_string(shape)});
        }
        empty |= extent == 0;
        // An extent of 0 counts as 1 here, since the strides of an empty array have to fit as well.
        overflow |= __builtin_mul_overflow(count, std::max<std::int64_t>(extent, 1), &count);
    }
    if (overflow) {
        throw error(ErrorKind::value,
                    {.call = "shape", .expected = "fewer than 2**63 elements", .got = to_string(shape)});
    }
    return empty ? 0 : count;
}

Dims contiguous_strides(const Dims& shape) {
    Dims strides = shape;
    std::int64_t step = 1;
    for (int i = shape.size() - 1; i >= 0; --i) {
        strides[i] = step;
        step *= std::max<std::int64_t>(shape[i], 1);
    }
    return strides;
}

Dims broadcast_shapes(const char* call, const Dims& a, const Dims& b) {
    const int rank = std::max(a.size(), b.size());
    Dims out = Dims::filled(rank, 1);
    for (int i = 1; i <= rank; ++i) {
        const std::int64_t x = i <= a.size() ? a[a.size() - i] : 1;
        const std::int64_t y = i <= b.size() ? b[b.size() - i] : 1;
        if (x != y && x != 1 && y != 1) {
            throw error(ErrorKind::value, {.call = call,
                                           .expected = "shapes that broadcast together",
                                           .got = str(to_string(a), " and ", to_string(b)),
                                           .fix = "make each dimension, from the last one, equal or 1"});
        }
        out[rank - i] = x == 1 ? y : x;
    }
    return out;
}

int normalize_axis(const char* call, std::int64_t axis, int rank) {
    if (axis < -rank || axis >= rank) {
        throw error(ErrorKind::index,
                    {.call = call,
                     .argument = "axis",
                     .expected = rank == 0 ? "no axis for a 0-d array" : str(-rank, " to ", rank - 1),
                     .got = str(axis)});
    }
    return static_cast<int>(axis < 0 ? axis + rank : axis);
}

}  // namespace gpk
