// Bin: the free blocks of one size class, last freed first, apart by the stream whose order protects them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "memory/block.hpp"

namespace gpk {

// Not thread-safe: the pool locks.
struct Bin {
    struct List {
        const Stream* stream;  // of all blocks in it; says nothing while it is empty
        BlockRecord* top;
    };

    std::vector<List> lists;        // the one used last in front
    BlockRecord* shared = nullptr;  // blocks that other streams used too
    std::size_t free_blocks = 0, live_blocks = 0;

    // The block that `stream` may use at once, or null.
    BlockRecord* take(const Stream* stream) noexcept {
        for (List& list : lists) {
            if (list.stream != stream || list.top == nullptr) continue;
            if (&list != lists.data()) std::swap(list, lists.front());
            return pop(lists.front().top);
        }
        return nullptr;
    }

    void put(BlockRecord* record) {
        BlockRecord*& top = record->others ? shared : list_of(record->stream.get());
        record->next = top;
        top = record;
        ++free_blocks;
    }

    bool remove_shared(const BlockRecord* record) noexcept {  // false where it is not there
        for (BlockRecord** each = &shared; *each != nullptr; each = &(*each)->next) {
            if (*each != record) continue;
            pop(*each);
            return true;
        }
        return false;
    }

    void clear() noexcept {
        lists.clear();
        shared = nullptr;
        free_blocks = 0;
    }

   private:
    BlockRecord* pop(BlockRecord*& top) noexcept {
        BlockRecord* record = top;
        top = record->next;
        --free_blocks;
        return record;
    }

    BlockRecord*& list_of(const Stream* stream) {
        List* empty = nullptr;
        for (List& list : lists) {
            if (list.stream == stream) return list.top;
            if (list.top == nullptr) empty = &list;
        }
        if (empty == nullptr) empty = &lists.emplace_back();
        empty->stream = stream;
        return empty->top;
    }
};

}  // namespace gpk
