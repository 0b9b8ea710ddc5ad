// SHA-256 (FIPS 180-4), for the names and checksums of cache entries.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gpk {

class Sha256 {
   public:
    using Digest = std::array<std::uint8_t, 32>;

    Sha256& add(std::string_view bytes);
    // A field of a key: its length goes in as well, so that fields cannot run into one another.
    Sha256& add_field(std::string_view bytes);
    Digest digest();    // ends the message
    std::string hex();  // the digest in 64 lower-case digits

   private:
    void block(const std::uint8_t* bytes);

    std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                           0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<std::uint8_t, 64> pending_{};
    std::size_t pending_bytes_ = 0;
    std::uint64_t total_bytes_ = 0;
};

}  // namespace gpk
