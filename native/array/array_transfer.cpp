#include "array/array_transfer.hpp"

#include <utility>

#include "base/error.hpp"
#include "memory/transfer_engine.hpp"

namespace gpk {

namespace {

void check_array(const Array& array, const char* argument, bool written) {
    if (!array.is_contiguous()) {
        throw error(ErrorKind::value, {.call = "transfer",
                                       .argument = argument,
                                       .expected = "a contiguous array",
                                       .got = str("strides of ", to_string(array.strides()),
                                                  " elements for shape ", to_string(array.shape())),
                                       .fix = "make a contiguous one with copy()"});
    }
    if (written && !array.writable()) {
        throw error(ErrorKind::value, {.call = "transfer",
                                       .argument = argument,
                                       .expected = "an array that may be written",
                                       .got = "a read-only one"});
    }
}

struct Use {
    const Array& array;
    bool write;
};

std::shared_ptr<Transfer> begin(TransferRequest request, TransferHow how, std::span<const Use> uses) {
    Device& device = uses.front().array.device();
    if (current_stream(device)->capture() != nullptr) {
        throw error(ErrorKind::unsupported, {.call = "transfer",
                                             .got = "a stream with a graph capture under way",
                                             .fix = "copy before the capture, or after a launch"});
    }
    request.priority = how.priority;
    request.progress = std::move(how.progress);
    request.keep = std::move(how.keep);
    if (!how.waited_for) {
        for (const Use& use : uses) request.keep.push_back(use.array.storage());
    }
    TransferEngine& engine = TransferEngine::of(device);
    const UseScope scope;
    for (const Use& use : uses) use.array.storage()->bring_here();
    auto transfer = engine.prepare(std::move(request));
    try {
        for (const Use& use : uses) use.array.storage()->defer(transfer, use.write);
    } catch (...) {
        engine.abandon(transfer);
        throw;
    }
    engine.submit(transfer);
    return transfer;
}

}  // namespace

Array empty_for_transfer(Device& device, const Dims& shape, DType dtype, int priority) {
    if (current_stream(device)->capture() != nullptr) return Array::empty(device, shape, dtype);
    const StreamScope scope(TransferEngine::of(device).stream_for(TransferKind::to_device, priority));
    return Array::empty(device, shape, dtype);
}

std::shared_ptr<Transfer> transfer_to_device(const Array& target, const void* source, TransferHow how) {
    check_array(target, "out", true);
    const Use uses[] = {{target, true}};
    return begin({.kind = TransferKind::to_device,
                  .bytes = target.nbytes(),
                  .device = target.data(),
                  .source = source},
                 std::move(how), uses);
}

std::shared_ptr<Transfer> transfer_filled(
    const Array& target, std::size_t grain,
    std::function<void(std::size_t offset, std::span<std::byte> out)> fill, TransferHow how) {
    check_array(target, "out", true);
    const Use uses[] = {{target, true}};
    return begin({.kind = TransferKind::to_device,
                  .bytes = target.nbytes(),
                  .device = target.data(),
                  .fill = std::move(fill),
                  .grain = grain},
                 std::move(how), uses);
}

std::shared_ptr<Transfer> transfer_to_host(const Array& source, void* target, TransferHow how) {
    check_array(source, "array", false);
    const Use uses[] = {{source, false}};
    return begin(
        {.kind = TransferKind::to_host, .bytes = source.nbytes(), .device = source.data(), .target = target},
        std::move(how), uses);
}

std::shared_ptr<Transfer> transfer_on_device(const Array& source, const Array& target, TransferHow how) {
    check_array(source, "source", false);
    check_array(target, "target", true);
    if (&source.device() != &target.device() || source.shape() != target.shape() ||
        source.dtype() != target.dtype()) {
        throw error(ErrorKind::value, {.call = "transfer",
                                       .argument = "target",
                                       .expected = str(to_string(source.shape()), " of ",
                                                       name(source.dtype()), " on ", source.device().name()),
                                       .got = str(to_string(target.shape()), " of ", name(target.dtype()),
                                                  " on ", target.device().name())});
    }
    const TransferRequest request{.kind = TransferKind::on_device,
                                  .bytes = source.nbytes(),
                                  .device = target.data(),
                                  .device_source = source.data()};
    if (source.storage() == target.storage()) {
        const DevicePtr from = source.data(), to = target.data();
        if (from < to + target.nbytes() && to < from + source.nbytes()) {
            throw error(ErrorKind::value, {.call = "transfer",
                                           .argument = "target",
                                           .expected = "memory apart from the source's",
                                           .got = "a view of the same elements"});
        }
        const Use uses[] = {{target, true}};
        return begin(request, std::move(how), uses);
    }
    const Use uses[] = {{source, false}, {target, true}};
    return begin(request, std::move(how), uses);
}

bool transfers_work(Device& device, TransferKind kind) {
    TransferEngine& engine = TransferEngine::of(device);
    if (!engine.usable()) return false;
    try {
        engine.stream_for(kind, 0);
    } catch (const Error& failure) {
        if (failure.kind() != ErrorKind::unsupported) throw;
        return false;
    }
    return true;
}

bool copies_by_transfer(Device& device, TransferKind kind, std::size_t bytes) {
    return bytes >= kTransferBytes && transfers_work(device, kind);
}

}  // namespace gpk
