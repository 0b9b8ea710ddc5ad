// GraphArena: the memory of one graph, what its captured work allocated. Blocks freed during the capture
// are used again within it; everything goes back to the pool with the graph and the last of its arrays.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "memory/pool.hpp"

namespace gpk {

class GraphArena : public GraphResource {
   public:
    explicit GraphArena(MemoryPool& pool) : pool_(pool) {}
    ~GraphArena() override;

    BlockRecord* take(std::size_t class_bytes);  // null: none is free
    void add(Block block);
    void put_back(const Block& block, const std::vector<std::shared_ptr<Stream>>& others);
    void before_launch(const std::shared_ptr<Stream>& stream) override;

   private:
    void add_user(const std::shared_ptr<Stream>& stream);

    MemoryPool& pool_;
    std::mutex mutex_;
    std::map<std::size_t, std::vector<BlockRecord*>> free_;
    std::vector<Block> all_;
    std::vector<std::shared_ptr<Stream>> users_;  // that launched the graph or used its arrays
};

}  // namespace gpk
