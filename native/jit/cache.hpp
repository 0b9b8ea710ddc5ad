// What was compiled, kept on disk. An entry is named by the hash of everything that went into it, ends
// with a checksum that every read verifies, and is written whole or not at all, so processes may share
// the folder. The folder must belong to this user alone, since its contents are executed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gpk::jit {

class Cache {
   public:
    // Throws Error (unsupported) where the folder is another user's or others may write to it.
    explicit Cache(std::string folder, std::uint64_t limit_bytes = 256ull << 20);

    // False where the folder cannot be made: nothing is kept then.
    bool usable() const noexcept { return usable_; }
    const std::string& folder() const noexcept { return folder_; }

    // `key` is a Sha256::hex(). Nothing where there is no entry or where it is damaged.
    std::optional<std::string> read(const std::string& key) const;
    // False where it could not be kept. The least recently used entries go when the limit is passed.
    bool write(const std::string& key, std::string_view contents) const;
    // The entry's file, which begins with its contents.
    std::string path(const std::string& key) const { return folder_ + "/" + key + ".bin"; }

   private:
    void trim(const std::string& just_written) const;

    std::string folder_;
    std::uint64_t limit_bytes_;
    bool usable_ = false;
};

// $PYGPUKIT_CACHE_DIR/jit, or pygpukit/jit in the user's cache folder; empty where there is neither.
std::string cache_folder();

}  // namespace gpk::jit
