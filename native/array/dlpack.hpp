// DLPack: arrays that are lent to other libraries and borrowed from them, without a copy.
//
// The structs are DLPack's ABI, version 1.1 (https://dmlc.github.io/dlpack/latest/c_api.html), under its own
// names but for the prefix. Python's side, capsules and the stream protocol, is in bindings/dlpack.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "array/array.hpp"

namespace gpk::dlpack {

inline constexpr std::int32_t kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13;

struct DeviceId {  // DLDevice
    std::int32_t type;
    std::int32_t id;
    friend bool operator==(const DeviceId&, const DeviceId&) = default;
};

struct ElementType {  // DLDataType
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
};

struct Tensor {  // DLTensor
    void* data;
    DeviceId device;
    std::int32_t ndim;
    ElementType dtype;
    std::int64_t* shape;
    std::int64_t* strides;  // in elements; null: row-major
    std::uint64_t byte_offset;
};

struct Managed {  // DLManagedTensor, the form before 1.0
    Tensor tensor;
    void* context;
    void (*deleter)(Managed*);
};

struct Version {
    std::uint32_t major;
    std::uint32_t minor;
};

inline constexpr Version kVersion{1, 1};
inline constexpr std::uint64_t kReadOnly = 1, kCopied = 2;

struct ManagedVersioned {  // DLManagedTensorVersioned
    Version version;
    void* context;
    void (*deleter)(ManagedVersioned*);
    std::uint64_t flags;
    Tensor tensor;
};

static_assert(sizeof(Tensor) == 48 && sizeof(Managed) == 64 && sizeof(ManagedVersioned) == 80);

// -- Lending -------------------------------------------------------------------------------------------

// How the borrower comes behind the array's work that is queued now.
struct Borrower {
    enum class Waits {
        on_host,     // it reads at once: the host waits
        on_stream,   // `stream` waits, on the device
        not_at_all,  // it sees to that itself
    };
    Waits waits = Waits::on_host;
    StreamHandle stream = nullptr;  // of any library's
    // What this stream holds when the array comes back is waited for by its later uses; null: nothing.
    StreamHandle returns_on = nullptr;
};

// Until the deleter is called, from whatever thread, the array lives and the pool does not evict it. Throws
// Error (exchange) for what the form cannot tell (read-only arrays in the older one), and Error (unsupported)
// while the current stream is captured.
Managed* lend_unversioned(const Array& array, const Borrower& borrower);
ManagedVersioned* lend(const Array& array, const Borrower& borrower, Version version, std::uint64_t flags);
DeviceId device_id(Device& device);

// -- Borrowing -----------------------------------------------------------------------------------------

// What a tensor of others says of itself, checked: the elements' range and the view of it.
struct Layout {
    DType dtype = DType::float32;
    Dims shape, strides;      // in elements
    DevicePtr pointer = 0;    // of the lowest element
    std::size_t bytes = 0;    // from there to the end of the highest one; 0 where there is none
    std::int64_t offset = 0;  // of element [0, 0, ...] from the pointer, in elements
    bool writable = true;     // false where elements share memory by a stride of 0
};

// Throws Error (exchange) for whatever is not an array of ours; nothing is taken.
Layout read(const Tensor& tensor);

// An array of that memory. `release` is called when no work on the device uses it any more; where this
// throws, before it does.
Array borrow(Device& device, const Layout& layout, bool read_only, std::function<void()> release);

// The device of that memory, or null for a kind that is none of ours. Throws as gpk::device() does.
Device* device_of(DeviceId id);
std::string to_string(DeviceId id);

}  // namespace gpk::dlpack
