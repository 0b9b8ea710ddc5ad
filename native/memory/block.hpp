// Block: a stretch of device memory, as it is handed out; BlockRecord: what the pool knows of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "driver/driver.hpp"
#include "memory/chunks.hpp"
#include "runtime/graph.hpp"
#include "runtime/stream.hpp"

namespace gpk {

enum class BlockState : std::uint8_t { free, live, taken };  // taken: by the pool, which looks at it

struct Bin;
struct Movable;

struct BlockRecord {
    // What else used a free block, beside its stream.
    struct Others {
        std::vector<std::shared_ptr<Event>> events;
        // Those that no event could be recorded on: captured at that moment, or failing.
        std::vector<std::shared_ptr<Stream>> streams;
    };

    DevicePtr pointer = 0;
    std::size_t class_bytes = 0;     // what it takes
    std::size_t bytes = 0;           // what was asked for
    std::shared_ptr<Stream> stream;  // whose order protects it
    std::unique_ptr<Others> others;  // null for nearly all
    // Of a free block that could move: behind its last use on the stream, which may have gone on since. Null
    // where it could not be recorded.
    std::shared_ptr<Event> freed;
    std::uint64_t data_of = 0;  // the tenant whose data it may still hold, 0 for none
    Bin* bin = nullptr;         // of its size class
    BlockState state = BlockState::taken;
    bool in_chunks = false;            // the pointer is a range of addresses, and `chunks` what lies under it
    std::vector<Chunk> chunks;         // none while it is away
    std::shared_ptr<Movable> movable;  // while it is live and may be evicted
    BlockRecord* next = nullptr;       // in its free list
    BlockRecord *before_in_all = nullptr, *after_in_all = nullptr;  // in the list of all

    bool may_ask() const;  // a capturing stream may be neither asked nor waited for
    bool idle() const;
    void synchronize() const;
    void order_before(Stream& next_user) const;
};

struct Block {
    DevicePtr pointer = 0;
    std::size_t bytes = 0;
    std::size_t class_bytes = 0;
    BlockRecord* record = nullptr;                   // null: nothing, or not a pool's
    std::shared_ptr<GraphResource> arena = nullptr;  // set where it belongs to a graph

    // Whose order protects it; null where there is no record.
    const std::shared_ptr<Stream>& stream() const noexcept {
        static const std::shared_ptr<Stream> none;
        return record != nullptr ? record->stream : none;
    }
};

}  // namespace gpk
