#include "memory/arena.hpp"

#include <algorithm>
#include <utility>

namespace gpk {

GraphArena::~GraphArena() {
    for (Block& block : all_) pool_.release(std::move(block), users_);
}

BlockRecord* GraphArena::take(std::size_t class_bytes) {
    std::lock_guard lock(mutex_);
    auto& blocks = free_[class_bytes];
    if (blocks.empty()) return nullptr;
    BlockRecord* record = blocks.back();
    blocks.pop_back();
    return record;
}

void GraphArena::add(Block block) {
    std::lock_guard lock(mutex_);
    all_.push_back(std::move(block));
}

void GraphArena::put_back(const Block& block, const std::vector<std::shared_ptr<Stream>>& others) {
    std::lock_guard lock(mutex_);
    free_[block.class_bytes].push_back(block.record);
    for (const auto& other : others) add_user(other);
}

void GraphArena::before_launch(const std::shared_ptr<Stream>& stream) {
    std::lock_guard lock(mutex_);
    add_user(stream);
}

void GraphArena::add_user(const std::shared_ptr<Stream>& stream) {
    if (std::find(users_.begin(), users_.end(), stream) == users_.end()) users_.push_back(stream);
}

}  // namespace gpk
