#include "io/load.hpp"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "array/array_transfer.hpp"
#include "base/error.hpp"
#include "io/dequantize.hpp"
#include "runtime/stream.hpp"

namespace gpk::io {

namespace {

// Conversion goes through a host buffer of about this size, however large the tensor.
constexpr std::int64_t kStagingBytes = 16 << 20;
constexpr std::int64_t kGrain = 4096;  // elements: whole blocks of every type

void check_rows(const TensorView& tensor, std::span<const std::int64_t> rows) {
    const std::string what = str("load: tensor ", shown(tensor.name));
    if (tensor.shape.empty() || static_cast<std::size_t>(tensor.shape[0]) != rows.size()) {
        throw error(ErrorKind::value, {.call = what,
                                       .argument = "rows",
                                       .expected = str("one for each row of shape ", to_string(tensor.shape)),
                                       .got = str(rows.size())});
    }
    if (is_quantized(tensor.type) && tensor.shape.size() < 2) {
        throw error(ErrorKind::value, {.call = what,
                                       .argument = "rows",
                                       .expected = "rows of whole blocks",
                                       .got = str("shape ", to_string(tensor.shape))});
    }
    for (const std::int64_t row : rows) {
        if (row < 0 || row >= tensor.shape[0]) {
            throw error(ErrorKind::index, {.call = what,
                                           .argument = "rows",
                                           .expected = str("numbers from 0 to ", tensor.shape[0] - 1),
                                           .got = str(row)});
        }
    }
}

// As convert(), of bytes that are read: a map of a file that another process cuts short ends this one.
void convert_read(const TensorView& tensor, std::int64_t first, std::int64_t count, DType target,
                  std::span<std::byte> out) {
    if (tensor.file == nullptr) return convert(tensor, first, count, target, out);
    const StoredTypeInfo& stored = info(tensor.type);
    const auto bytes_of = [&](std::int64_t elements) {
        return static_cast<std::size_t>(elements / stored.block_elements * stored.block_bytes);
    };
    const std::size_t bytes = bytes_of(count);
    const auto room = std::make_unique_for_overwrite<std::byte[]>(bytes);
    TensorView part = tensor;
    part.shape = {count};
    part.bytes = {room.get(), bytes};
    tensor.read(bytes_of(first), {room.get(), bytes});
    convert(part, 0, count, target, out);
}

// Elements of the array from `first` on, as many as `out` has room for: in the tensor's order, or with its
// rows as `rows` says.
void convert_part(const TensorView& tensor, std::span<const std::int64_t> rows, std::int64_t first,
                  DType target, std::span<std::byte> out) {
    const auto item_bytes = static_cast<std::int64_t>(itemsize(target));
    const std::int64_t end = first + static_cast<std::int64_t>(out.size()) / item_bytes;
    if (rows.empty()) return convert_read(tensor, first, end - first, target, out);
    const std::int64_t unit = tensor.size() / tensor.shape[0];
    while (first < end) {
        const std::int64_t row = first / unit, column = first % unit;
        const std::int64_t count = std::min(unit - column, end - first);
        convert_read(tensor, rows[static_cast<std::size_t>(row)] * unit + column, count, target,
                     out.first(static_cast<std::size_t>(count * item_bytes)));
        out = out.subspan(static_cast<std::size_t>(count * item_bytes));
        first += count;
    }
}

}  // namespace

PendingLoads::~PendingLoads() {
    for (const auto& load : loads_) load->wait();
}

void PendingLoads::add(std::shared_ptr<Transfer> load) {
    constexpr std::size_t kMost = 32;
    loads_.push_back(std::move(load));
    if (loads_.size() < kMost) return;
    const auto oldest = std::move(loads_.front());
    loads_.pop_front();
    oldest->get();
}

void PendingLoads::wait() {
    while (!loads_.empty()) {
        const auto oldest = std::move(loads_.front());
        loads_.pop_front();
        oldest->get();
    }
}

void load_into(const Array& array, const TensorView& tensor, std::span<const std::int64_t> rows,
               PendingLoads* pending) {
    Device& device = array.device();
    const DType target = array.dtype();
    check_convertible(tensor, target);
    if (!rows.empty()) check_rows(tensor, rows);
    if (array.shape() != tensor.shape || !array.is_contiguous()) {
        throw error(ErrorKind::value, {.call = str("load: tensor ", shown(tensor.name)),
                                       .argument = "to",
                                       .expected = "a contiguous array of shape " + to_string(tensor.shape),
                                       .got = "shape " + to_string(array.shape())});
    }
    const auto& stream = current_stream(device);
    if (stream->capture() != nullptr) {
        throw error(ErrorKind::unsupported, {.call = str("load: tensor ", shown(tensor.name)),
                                             .expected = "a stream without a capture under way",
                                             .fix = "load weights before the capture"});
    }
    if (array.size() == 0) return;
    const bool as_stored = target == tensor.dtype && !is_quantized(tensor.type) && target != DType::bool_;
    const bool copied = as_stored && rows.empty();
    // Small ones too where others are under way, behind whose copies they would have to wait.
    const bool transfers = pending != nullptr
                               ? transfers_work(device, TransferKind::to_device)
                               : copies_by_transfer(device, TransferKind::to_device, array.nbytes());
    const std::int64_t grain = rows.empty() ? kGrain : info(tensor.type).block_elements;
    const auto item_bytes = static_cast<std::int64_t>(itemsize(target));
    // Holds its own, for it may outlive this call.
    const auto fill = [copied, tensor, order = std::vector(rows.begin(), rows.end()), item_bytes, target](
                          std::size_t offset, std::span<std::byte> out) {
        if (copied) return tensor.read(offset, out);
        convert_part(tensor, order, static_cast<std::int64_t>(offset) / item_bytes, target, out);
    };
    if (transfers) {
        const bool waited_for = pending == nullptr;
        auto transfer = transfer_filled(array, static_cast<std::size_t>(grain * item_bytes), fill,
                                        {.waited_for = waited_for});
        if (waited_for) {
            transfer->get();
        } else {
            pending->add(std::move(transfer));
        }
        return;
    }
    const UseScope scope;
    array.storage()->before_write(stream);
    const std::size_t piece =
        static_cast<std::size_t>(kStagingBytes / (grain * item_bytes) * grain * item_bytes);
    std::vector<std::byte> staging(std::min(piece, array.nbytes()));
    for (std::size_t offset = 0; offset < array.nbytes(); offset += piece) {
        const auto bytes = std::span(staging).first(std::min(piece, array.nbytes() - offset));
        fill(offset, bytes);
        device.launcher().copy_to_device(*stream, array.data() + offset, bytes.data(), bytes.size());
    }
}

Array load_tensor(Device& device, const TensorView& tensor, DType target,
                  std::span<const std::int64_t> rows) {
    check_convertible(tensor, target);
    const Array array = Array::empty(device, tensor.shape, target);
    load_into(array, tensor, rows);
    return array.readonly();
}

std::vector<Array> load_tensors(Device& device, std::span<const TensorView* const> tensors,
                                std::optional<DType> target, const LoadProgress& progress) {
    const auto dtype_of = [&](const TensorView& tensor) {
        return target && is_floating(tensor.dtype) ? *target : tensor.dtype;
    };
    std::size_t done = 0, all = 0;
    for (const TensorView* tensor : tensors) {
        check_convertible(*tensor, dtype_of(*tensor));
        all += tensor->bytes.size();
    }
    std::vector<Array> arrays;
    PendingLoads pending;
    for (const TensorView* tensor : tensors) {
        const Array array = Array::empty(device, tensor->shape, dtype_of(*tensor));
        load_into(array, *tensor, {}, &pending);
        arrays.push_back(array.readonly());
        done += tensor->bytes.size();
        if (progress) progress(done, all);
    }
    pending.wait();
    return arrays;
}

}  // namespace gpk::io
