// A stored tensor -> an array on a device.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "array/array.hpp"
#include "io/tensor_view.hpp"
#include "memory/transfer.hpp"

namespace gpk::io {

// A read-only array of `target` elements, on the calling thread's current stream. The file may be
// closed once this returns. `rows`, where given, reorders the first axis: row i of the result is row
// rows[i] of the tensor (a permutation, as GGUF's Llama files need for Q and K).
Array load_tensor(Device& device, const TensorView& tensor, DType target,
                  std::span<const std::int64_t> rows = {});

// Called on the loading thread with the bytes read, or under way, and those of all. May throw.
using LoadProgress = std::function<void(std::size_t done, std::size_t all)>;

// The same of several, whose copies overlap. `target`: of floating and quantised ones, where given; the
// others stay as they are stored.
std::vector<Array> load_tensors(Device& device, std::span<const TensorView* const> tensors,
                                std::optional<DType> target, const LoadProgress& progress = nullptr);

// Loads under way: so many at once that the copies of one tensor begin while those of another end.
class PendingLoads {
   public:
    PendingLoads() = default;
    ~PendingLoads();  // waits for all
    PendingLoads(const PendingLoads&) = delete;
    PendingLoads& operator=(const PendingLoads&) = delete;

    void add(std::shared_ptr<Transfer> load);
    void wait();  // for all; throws what one failed with

   private:
    std::deque<std::shared_ptr<Transfer>> loads_;
};

// The same into part of a larger array: `to` is contiguous and has the tensor's shape. With `pending` it may
// return before the bytes are there; work on the array waits for them.
void load_into(const Array& to, const TensorView& tensor, std::span<const std::int64_t> rows = {},
               PendingLoads* pending = nullptr);

}  // namespace gpk::io
