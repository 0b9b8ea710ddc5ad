#include "io/load.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/parallel.hpp"
#include "io/dequantize.hpp"
#include "runtime/stream.hpp"

namespace gpk::io {

namespace {

// Conversion goes through a host buffer of about this size, however large the tensor.
constexpr std::int64_t kStagingBytes = 16 << 20;

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

}  // namespace

void load_into(const Array& array, const TensorView& tensor, std::span<const std::int64_t> rows) {
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
    array.storage()->before_write(stream);
    const auto upload = [&](std::int64_t first, std::span<const std::byte> bytes) {
        device.launcher().copy_to_device(*stream,
                                         array.data() + static_cast<DevicePtr>(first) * itemsize(target),
                                         bytes.data(), bytes.size());
    };

    const bool as_stored = target == tensor.dtype && !is_quantized(tensor.type) && target != DType::bool_;
    if (as_stored && rows.empty()) {
        upload(0, tensor.bytes);
        return;
    }

    // In pieces of whole rows, or of whole blocks where the order stays.
    const std::int64_t unit =
        rows.empty() ? std::min<std::int64_t>(array.size(), 4096) : array.size() / tensor.shape[0];
    const std::int64_t units = (array.size() + unit - 1) / unit;
    const auto item_bytes = static_cast<std::int64_t>(itemsize(target));
    const std::int64_t piece = std::max<std::int64_t>(1, kStagingBytes / (unit * item_bytes));
    std::vector<std::byte> staging(static_cast<std::size_t>(std::min(piece, units) * unit * item_bytes));
    for (std::int64_t begin = 0; begin < units; begin += piece) {
        const std::int64_t first = begin * unit;
        const std::int64_t count = std::min(piece * unit, array.size() - first);
        const auto bytes = std::span(staging).first(static_cast<std::size_t>(count * item_bytes));
        if (rows.empty()) {
            convert(tensor, first, count, target, bytes);
        } else {
            const auto row_bytes = static_cast<std::size_t>(unit * item_bytes);
            parallel_for(count / unit, 1 + 65536 / unit, [&](std::int64_t from, std::int64_t to) {
                for (std::int64_t row = from; row < to; ++row) {
                    convert(tensor, rows[static_cast<std::size_t>(begin + row)] * unit, unit, target,
                            bytes.subspan(static_cast<std::size_t>(row) * row_bytes, row_bytes));
                }
            });
        }
        upload(first, bytes);
    }
}

Array load_tensor(Device& device, const TensorView& tensor, DType target,
                  std::span<const std::int64_t> rows) {
    check_convertible(tensor, target);
    const Array array = Array::empty(device, tensor.shape, target);
    load_into(array, tensor, rows);
    return array.readonly();
}

}  // namespace gpk::io
