#include "array/dlpack.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "array/exchange.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "runtime/device.hpp"

namespace gpk::dlpack {

namespace {

// DLDataTypeCode
enum : std::uint8_t {
    kInt = 0,
    kUInt = 1,
    kFloat = 2,
    kBfloat = 4,
    kBool = 6,
    kFloat8E4M3FN = 10,
    kFloat8E5M2 = 12
};

struct Row {
    DType dtype;
    std::uint8_t code;
};

constexpr Row kTypes[] = {
    {DType::bool_, kBool},
    {DType::int8, kInt},
    {DType::int16, kInt},
    {DType::int32, kInt},
    {DType::int64, kInt},
    {DType::uint8, kUInt},
    {DType::uint16, kUInt},
    {DType::uint32, kUInt},
    {DType::uint64, kUInt},
    {DType::float16, kFloat},
    {DType::bfloat16, kBfloat},
    {DType::float32, kFloat},
    {DType::float64, kFloat},
    {DType::float8_e4m3, kFloat8E4M3FN},
    {DType::float8_e5m2, kFloat8E5M2},
};
static_assert(std::size(kTypes) == kDTypeCount);

std::uint8_t bits(DType dtype) { return static_cast<std::uint8_t>(8 * itemsize(dtype)); }

[[noreturn]] void refuse(std::string argument, std::string expected, std::string got, std::string fix = "") {
    throw error(ErrorKind::exchange, {.call = "from_dlpack",
                                      .argument = std::move(argument),
                                      .expected = std::move(expected),
                                      .got = std::move(got),
                                      .fix = std::move(fix)});
}

// An array that others have: what their struct points to, and what keeps the memory where it is.
class Loan {
   public:
    Loan(Array array, const Borrower& borrower);
    ~Loan();
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;

    Tensor tensor();

    Managed managed = {};
    ManagedVersioned versioned = {};

   private:
    void come_back();

    Array array_;
    Dims shape_, strides_;
    StreamHandle returns_on_;
    std::shared_ptr<Stream> returning_;
};

Loan::Loan(Array array, const Borrower& borrower)
    : array_(std::move(array)),
      shape_(array_.shape()),
      strides_(array_.strides()),
      returns_on_(borrower.returns_on) {
    Device& device = array_.device();
    const auto& stream = current_stream(device);
    const bool waits = borrower.waits != Borrower::Waits::not_at_all;
    if (waits && stream->capture() != nullptr) {
        throw error(ErrorKind::unsupported, {.call = "__dlpack__",
                                             .got = "a current stream that is being captured",
                                             .fix = "lend the array before the capture, or after a launch"});
    }
    if (returns_on_ != nullptr) returning_ = Exchange::of(device).stream();
    const UseScope scope;
    Storage& storage = *array_.storage();
    array_.writable() ? storage.before_write(stream) : storage.before_read(stream);
    if (borrower.waits == Borrower::Waits::on_host) stream->synchronize();
    if (borrower.waits == Borrower::Waits::on_stream) {
        Event ready(device);
        ready.record(*stream);
        device.watched([&](Driver& driver) { driver.stream_wait_event(borrower.stream, ready.handle()); });
    }
    storage.pin();  // last: a constructor that throws has no destructor
}

Loan::~Loan() {
    try {
        if (returns_on_ != nullptr) come_back();
    } catch (const std::exception& failure) {
        log(LogLevel::warning, str("a borrowed array's return: ", failure.what()));
    }
    array_.storage()->unpin();
}

void Loan::come_back() {
    Device& device = array_.device();
    try {
        Event returned(device);
        device.watched([&](Driver& driver) { driver.event_record(returned.handle(), returns_on_); });
        returning_->wait(returned);
        array_.storage()->follow(returning_);
    } catch (const Error&) {
        // One of the array's streams is captured, or there is no event: then it is the host that waits.
        device.watched([&](Driver& driver) { driver.stream_synchronize(returns_on_); });
    }
}

Tensor Loan::tensor() {
    const auto row = std::find_if(std::begin(kTypes), std::end(kTypes),
                                  [&](const Row& each) { return each.dtype == array_.dtype(); });
    return {.data = array_.as(),
            .device = device_id(array_.device()),
            .ndim = array_.rank(),
            .dtype = {row->code, bits(array_.dtype()), 1},
            .shape = shape_.begin(),
            .strides = strides_.begin(),
            .byte_offset = 0};
}

template <class Struct>
void end_loan(Struct* lent) {
    delete static_cast<Loan*>(lent->context);
}

// From the lowest element to the highest, seen from element [0, 0, ...]; false where int64 is too small.
bool reach(const Dims& shape, const Dims& strides, std::int64_t itemsize, std::int64_t* low,
           std::int64_t* high) {
    *low = *high = 0;
    for (int i = 0; i < shape.size(); ++i) {
        std::int64_t distance = 0;
        std::int64_t* const end = strides[i] < 0 ? low : high;
        if (__builtin_mul_overflow(shape[i] - 1, strides[i], &distance) ||
            __builtin_add_overflow(*end, distance, end)) {
            return false;
        }
    }
    std::int64_t elements = 0, bytes = 0, unused = 0;
    return !__builtin_sub_overflow(*high, *low, &elements) &&
           !__builtin_add_overflow(elements, 1, &elements) &&
           !__builtin_mul_overflow(elements, itemsize, &bytes) &&
           !__builtin_mul_overflow(*low, itemsize, &unused) &&
           !__builtin_mul_overflow(*high, itemsize, &unused);
}

DType read_type(ElementType type) {
    const auto row = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Row& each) {
        return each.code == type.code && bits(each.dtype) == type.bits && type.lanes == 1;
    });
    if (row == std::end(kTypes)) {
        refuse("dtype", "a type that pygpukit has",
               str("code ", int{type.code}, ", ", int{type.bits}, " bits, ", type.lanes, " lanes"),
               "convert it where it comes from");
    }
    return row->dtype;
}

Dims read_shape(const Tensor& tensor, DType dtype) {
    if (tensor.ndim < 0 || tensor.ndim > kMaxRank) {
        refuse("ndim", str("0 to ", kMaxRank), str(tensor.ndim), "merge dimensions with reshape");
    }
    if (tensor.ndim > 0 && tensor.shape == nullptr) refuse("shape", "one extent an axis", "none");
    const Dims shape(std::span<const std::int64_t>(tensor.shape, static_cast<std::size_t>(tensor.ndim)));
    auto bytes = static_cast<std::int64_t>(itemsize(dtype));
    for (const std::int64_t extent : shape) {
        if (extent < 0) refuse("shape", "extents of 0 or more", to_string(shape));
        if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(extent, 1), &bytes)) {
            refuse("shape", "fewer than 2**63 bytes", str(to_string(shape), " of ", name(dtype)));
        }
    }
    return shape;
}

}  // namespace

Managed* lend_unversioned(const Array& array, const Borrower& borrower) {
    if (!array.writable()) {
        throw error(ErrorKind::exchange, {.call = "__dlpack__",
                                          .expected = "a writable array, as DLPack before 1.0 knows no other",
                                          .got = "a read-only one",
                                          .fix = "ask for max_version=(1, 0), or copy it first"});
    }
    auto loan = std::make_unique<Loan>(array, borrower);
    loan->managed = {.tensor = loan->tensor(), .context = loan.get(), .deleter = &end_loan<Managed>};
    return &loan.release()->managed;
}

ManagedVersioned* lend(const Array& array, const Borrower& borrower, Version version, std::uint64_t flags) {
    auto loan = std::make_unique<Loan>(array, borrower);
    loan->versioned = {.version = version,
                       .context = loan.get(),
                       .deleter = &end_loan<ManagedVersioned>,
                       .flags = flags | (array.writable() ? 0 : kReadOnly),
                       .tensor = loan->tensor()};
    return &loan.release()->versioned;
}

DeviceId device_id(Device& device) {
    return device.is_cuda() ? DeviceId{kCuda, device.info().ordinal} : DeviceId{kCpu, 0};
}

Layout read(const Tensor& tensor) {
    Layout layout;
    layout.dtype = read_type(tensor.dtype);
    layout.shape = read_shape(tensor, layout.dtype);
    layout.strides = contiguous_strides(layout.shape);
    if (element_count(layout.shape) == 0) return layout;
    const auto size = static_cast<std::int64_t>(itemsize(layout.dtype));
    for (int i = 0; i < tensor.ndim && tensor.strides != nullptr; ++i) {
        if (layout.shape[i] == 1) continue;  // what it says of these is of no consequence
        layout.strides[i] = tensor.strides[i];
        layout.writable &= tensor.strides[i] != 0;
    }
    std::int64_t low = 0, high = 0;
    if (!reach(layout.shape, layout.strides, size, &low, &high)) {
        refuse("strides", "less than 2**63 bytes from the first to the last element",
               str(to_string(layout.strides), " elements for shape ", to_string(layout.shape)));
    }
    if (tensor.data == nullptr) refuse("data", "an address", "null");
    const auto begin = reinterpret_cast<DevicePtr>(tensor.data);
    DevicePtr first = 0, end = 0;
    const bool wraps = __builtin_add_overflow(begin, tensor.byte_offset, &first) ||
                       first < static_cast<DevicePtr>(-low * size) ||
                       __builtin_add_overflow(first, static_cast<DevicePtr>((high + 1) * size), &end);
    if (wraps) {
        refuse("byte_offset", "elements that lie in the address space",
               str(tensor.byte_offset, " bytes from ", tensor.data));
    }
    if (first % static_cast<DevicePtr>(size) != 0) {
        refuse("data", str("an address that is a multiple of ", size, ", the element's bytes"),
               str(reinterpret_cast<void*>(first)), "copy it where it comes from");
    }
    layout.pointer = first - static_cast<DevicePtr>(-low * size);
    layout.bytes = static_cast<std::size_t>((high - low + 1) * size);
    layout.offset = -low;
    return layout;
}

Array borrow(Device& device, const Layout& layout, bool read_only, std::function<void()> release) {
    bool admitted = false;
    const auto end = [&device, pointer = layout.pointer, bytes = layout.bytes, release] {
        if (bytes > 0) device.driver().dismiss(pointer, bytes);
        release();
    };
    try {
        if (layout.bytes > 0) {
            device.watched([&](Driver& driver) { driver.admit(layout.pointer, layout.bytes); });
        }
        admitted = true;
        return Array(Storage::borrow(device, layout.pointer, layout.bytes, end), layout.dtype, layout.shape,
                     layout.strides, layout.offset, layout.writable && !read_only);
    } catch (...) {
        admitted ? end() : release();
        throw;
    }
}

Device* device_of(DeviceId id) {
    switch (id.type) {
        case kCpu:
        case kCudaHost: return &device("cpu");
        case kCuda:
        case kCudaManaged: return &device(str("cuda:", id.id));
        default: return nullptr;
    }
}

std::string to_string(DeviceId id) { return str("(", id.type, ", ", id.id, ")"); }

}  // namespace gpk::dlpack
