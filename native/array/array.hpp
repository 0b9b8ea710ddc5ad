// Array: dtype, shape, strides and offset over a shared storage. Copying an Array copies the view, not
// the elements.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "array/storage.hpp"
#include "base/dims.hpp"
#include "base/dtype.hpp"

namespace gpk {

class Array {
   public:
    Array() = default;  // holds nothing; only to be assigned to
    Array(std::shared_ptr<Storage> storage, DType dtype, const Dims& shape, const Dims& strides,
          std::int64_t offset = 0, bool writable = true)
        : storage_(std::move(storage)),
          shape_(shape),
          strides_(strides),
          offset_(offset),
          dtype_(dtype),
          writable_(writable) {}

    // Uninitialised and contiguous, on the calling thread's current stream.
    static Array empty(Device& device, const Dims& shape, DType dtype);

    const std::shared_ptr<Storage>& storage() const noexcept { return storage_; }
    Device& device() const noexcept { return storage_->device(); }
    DType dtype() const noexcept { return dtype_; }
    const Dims& shape() const noexcept { return shape_; }
    const Dims& strides() const noexcept { return strides_; }  // in elements; may be 0 or negative
    std::int64_t offset() const noexcept { return offset_; }   // in elements
    int rank() const noexcept { return shape_.size(); }
    std::int64_t size() const noexcept { return element_count(shape_); }
    std::size_t nbytes() const noexcept { return static_cast<std::size_t>(size()) * itemsize(dtype_); }
    bool writable() const noexcept { return writable_; }
    bool is_contiguous() const noexcept;  // row-major, without gaps
    bool defined() const noexcept { return storage_ != nullptr; }

    // The address of element [0, 0, ...].
    DevicePtr data() const noexcept {
        return storage_->pointer() +
               static_cast<DevicePtr>(offset_ * static_cast<std::int64_t>(itemsize(dtype_)));
    }
    template <class T = void>
    T* as() const noexcept {
        return reinterpret_cast<T*>(data());
    }

    // Views. None copies; each throws Error (value or index) for what does not fit.
    Array readonly() const;
    Array transpose(const Dims& axes) const;  // empty axes: reversed
    Array broadcast_to(const Dims& shape) const;
    Array expand_dims(int axis) const;
    Array squeeze(int axis) const;
    // Start and step in elements of the axis, already clamped to it (as Python's slice.indices gives).
    Array slice(int axis, std::int64_t start, std::int64_t step, std::int64_t count) const;
    Array select(int axis, std::int64_t index) const;  // removes the axis; negative counts from the end
    // One -1 is inferred. Nothing where the new shape cannot be a view of these strides.
    std::optional<Array> reshape_view(const Dims& shape) const;

    // Copies between host and device memory, in row-major order. They wait for the device only as far
    // as the contract says: from_host returns when `source` may be reused, to_host when `target` holds
    // the elements. Both want a contiguous array (ops::contiguous makes one).
    void copy_from_host(const void* source) const;
    void copy_to_host(void* target) const;

   private:
    std::shared_ptr<Storage> storage_;
    Dims shape_;
    Dims strides_;
    std::int64_t offset_ = 0;
    DType dtype_ = DType::float32;
    bool writable_ = true;
};

// The shape that reshape(shape) means for `size` elements: its -1 filled in. Throws Error (value).
Dims resolve_reshape(const Dims& shape, std::int64_t size);

}  // namespace gpk
