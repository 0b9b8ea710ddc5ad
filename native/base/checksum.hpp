// Checksum: 64 bits over a stream of bytes, against damage by chance; made for speed, and no help against
// those who forge.
//
// Four lanes take a word each in turn. A step is a bijection of its lane for a given word, and of the word
// for a given lane, so a change within one word always changes the result.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gpk {

class Checksum {
   public:
    void add(const void* data, std::size_t bytes) noexcept {
        const auto* at = static_cast<const unsigned char*>(data);
        total_ += bytes;
        if (pending_ != 0) {
            const std::size_t taken = bytes < kBlock - pending_ ? bytes : kBlock - pending_;
            std::memcpy(block_ + pending_, at, taken);
            pending_ += taken;
            if (pending_ < kBlock) return;
            mix(block_);
            pending_ = 0;
            at += taken;
            bytes -= taken;
        }
        for (; bytes >= kBlock; at += kBlock, bytes -= kBlock) mix(at);
        if (bytes > 0) std::memcpy(block_, at, bytes);
        pending_ = bytes;
    }

    // Of all that was added so far; nothing may be added afterwards.
    std::uint64_t value() noexcept {
        if (pending_ != 0) {
            std::memset(block_ + pending_, 0, kBlock - pending_);
            mix(block_);
            pending_ = 0;
        }
        std::uint64_t all = total_ * kFactor;
        for (const std::uint64_t lane : lanes_) all = step(std::rotl(all, 17), lane);
        return all;
    }

   private:
    static constexpr std::size_t kLanes = 4, kBlock = 8 * kLanes;
    static constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15;  // 2**64 over the golden ratio, odd

    static std::uint64_t step(std::uint64_t lane, std::uint64_t word) noexcept {
        const std::uint64_t product = (lane ^ word) * kFactor;
        return product ^ (product >> 32);
    }
    void mix(const unsigned char* block) noexcept {
        for (std::size_t i = 0; i < kLanes; ++i) {
            std::uint64_t word;
            std::memcpy(&word, block + 8 * i, 8);
            lanes_[i] = step(lanes_[i], word);
        }
    }

    std::uint64_t lanes_[kLanes] = {1, 2, 3, 4};
    std::uint64_t total_ = 0;
    unsigned char block_[kBlock];
    std::size_t pending_ = 0;
};

}  // namespace gpk
