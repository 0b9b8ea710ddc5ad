// Dims: a short list of int64 (a shape, strides, axes), without heap memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace gpk {

inline constexpr int kMaxRank = 16;

class Dims {
   public:
    Dims() = default;
    Dims(std::initializer_list<std::int64_t> values) : Dims(std::span(values.begin(), values.size())) {}
    // Throws Error (value) for more than kMaxRank values.
    explicit Dims(std::span<const std::int64_t> values);
    Dims(const Dims& other) noexcept : size_(other.size_) { std::copy_n(other.values_, size_, values_); }
    Dims& operator=(const Dims& other) noexcept {
        size_ = other.size_;
        std::copy_n(other.values_, size_, values_);
        return *this;
    }

    static Dims filled(int size, std::int64_t value);

    int size() const noexcept { return size_; }
    bool empty() const noexcept { return size_ == 0; }
    std::int64_t* begin() noexcept { return values_; }
    std::int64_t* end() noexcept { return values_ + size_; }
    const std::int64_t* begin() const noexcept { return values_; }
    const std::int64_t* end() const noexcept { return values_ + size_; }
    std::int64_t& operator[](int i) noexcept { return values_[i]; }
    std::int64_t operator[](int i) const noexcept { return values_[i]; }
    std::int64_t back() const noexcept { return values_[size_ - 1]; }

    void push_back(std::int64_t value);
    void insert(int position, std::int64_t value);
    void erase(int position);

    friend bool operator==(const Dims& a, const Dims& b) noexcept {
        return std::equal(a.begin(), a.end(), b.begin(), b.end());
    }

   private:
    int size_ = 0;
    std::int64_t values_[kMaxRank];
};

// "(2, 3)", "(5,)", "()": as Python writes a tuple.
std::string to_string(const Dims& dims);

// The product of the extents (1 for rank 0). Throws Error (value) where it leaves int64.
std::int64_t element_count(const Dims& shape);

// Row-major strides in elements.
Dims contiguous_strides(const Dims& shape);

// NumPy's broadcasting rule. Throws Error (value), naming `call`, where the shapes do not fit.
Dims broadcast_shapes(const char* call, const Dims& a, const Dims& b);

// Maps -rank..rank-1 to 0..rank-1. Throws Error (index), naming `call`, for anything else.
int normalize_axis(const char* call, std::int64_t axis, int rank);

}  // namespace gpk
