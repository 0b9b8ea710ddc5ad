// cuBLASLt, opened where it is found: products by the vendor's library, for who asks for them by name.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>

#include "base/image.hpp"
#include "driver/library_product.hpp"

namespace gpk {

// The image of the kernel whose device code is cuBLASLt: CudaDriver launches it by CublasLt::multiply, with a
// LibraryProduct as its parameters.
extern const Image kCublasLtImage;

// One a device, made and used in the device's context. Safe from several threads.
class CublasLt {
   public:
    // Throws Error (unsupported), saying where it was looked for, where there is none; DriverError where it
    // does not start.
    CublasLt();
    ~CublasLt();
    CublasLt(const CublasLt&) = delete;
    CublasLt& operator=(const CublasLt&) = delete;

    // Queues the product on `stream`, a CUstream, by the first algorithm that the library proposes. Throws
    // Error (unsupported) for a product that it has none for.
    void multiply(void* stream, const LibraryProduct& product);

   private:
    struct Plan;
    // What decides a plan: kind, extents, leading dimensions, batch strides, alignments, workspace.
    using Key = std::array<std::int64_t, 15>;

    std::shared_ptr<const Plan> plan_of(const LibraryProduct& product);

    void* handle_ = nullptr;
    std::mutex mutex_;
    std::map<Key, std::shared_ptr<const Plan>> plans_;
};

}  // namespace gpk
