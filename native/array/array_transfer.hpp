// Arrays through the transfer engine.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "array/array.hpp"
#include "memory/transfer.hpp"

namespace gpk {

// Below this a copy goes on the current stream, without another thread: the driver's own staging is faster.
inline constexpr std::size_t kTransferBytes = std::size_t{2} << 20;

struct TransferHow {
    int priority = 0;  // 0 is normal, smaller is more urgent; below 0 passes what is under way
    std::vector<std::shared_ptr<const void>> keep = {};  // until it is over
    std::function<void(std::size_t, std::size_t)> progress = nullptr;
    bool waited_for = false;  // the caller holds the arrays until it is over, so the engine need not
};

// An array for transfer_to_device: uninitialised, in memory that waits for no other work on the device.
Array empty_for_transfer(Device& device, const Dims& shape, DType dtype, int priority = 0);

// All want contiguous arrays, keep their storage alive, and return at once; work that uses the arrays
// afterwards waits for them. Error (unsupported) while the current stream is captured and in a forked child.
// `source` and `target` are host memory that must stay until the transfer is over (see TransferHow::keep).
std::shared_ptr<Transfer> transfer_to_device(const Array& target, const void* source, TransferHow how = {});
std::shared_ptr<Transfer> transfer_to_host(const Array& source, void* target, TransferHow how = {});
std::shared_ptr<Transfer> transfer_on_device(const Array& source, const Array& target, TransferHow how = {});
// From what `fill` writes, on several threads: bytes [offset, offset + out.size()), `grain` bytes at least.
std::shared_ptr<Transfer> transfer_filled(
    const Array& target, std::size_t grain,
    std::function<void(std::size_t offset, std::span<std::byte> out)> fill, TransferHow how = {});

// Whether the engine can work here: not in a forked child, nor without threads or a stream left for it.
bool transfers_work(Device& device, TransferKind kind);
// Whether a blocking copy of so many bytes goes through the engine: a large one, where that can work.
bool copies_by_transfer(Device& device, TransferKind kind, std::size_t bytes);

}  // namespace gpk
