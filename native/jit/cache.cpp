#include "jit/cache.hpp"

#include <algorithm>
#include <ctime>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/platform.hpp"
#include "base/sha256.hpp"

namespace gpk::jit {

namespace {

constexpr std::size_t kChecksumBytes = 32;
constexpr std::int64_t kStaleSeconds = 3600;  // a temporary file this old was left by a process that died

std::string checksum(const std::string& key, std::string_view contents) {
    const Sha256::Digest digest = Sha256().add_field(key).add_field(contents).digest();
    return std::string(digest.begin(), digest.end());
}

}  // namespace

std::string cache_folder() {
    if (const auto chosen = platform::environment("PYGPUKIT_CACHE_DIR")) {
        if (chosen->front() != '/') {
            throw error(ErrorKind::value, {.call = "PYGPUKIT_CACHE_DIR",
                                           .expected = "an absolute path",
                                           .got = str("'", *chosen, "'")});
        }
        return *chosen + "/jit";
    }
    const std::string folder = platform::user_cache_folder();
    return folder.empty() ? folder : folder + "/pygpukit/jit";
}

Cache::Cache(std::string folder, std::uint64_t limit_bytes)
    : folder_(std::move(folder)), limit_bytes_(limit_bytes) {
    if (folder_.empty()) return;
    std::string unsafe, failed;
    platform::make_private_folder(folder_, &unsafe, &failed);
    if (!unsafe.empty()) {
        throw error(ErrorKind::unsupported,
                    {.call = "kernel cache",
                     .expected = "a folder that only this user can write to, since its contents are executed",
                     .got = unsafe,
                     .fix = "mend it with chmod 700, or set PYGPUKIT_CACHE_DIR to another folder"});
    }
    usable_ = failed.empty();
    if (!usable_) log(LogLevel::info, str("kernel cache not used: ", failed));
}

std::optional<std::string> Cache::read(const std::string& key) const {
    if (!usable_) return std::nullopt;
    const std::string file = path(key);
    std::optional<std::string> bytes = platform::read_own_file(file, limit_bytes_ + kChecksumBytes);
    if (!bytes || bytes->size() < kChecksumBytes) return std::nullopt;
    const std::string sum = bytes->substr(bytes->size() - kChecksumBytes);
    bytes->resize(bytes->size() - kChecksumBytes);
    if (sum != checksum(key, *bytes)) {
        log(LogLevel::info, str("kernel cache: ", file, " is damaged and is compiled again"));
        return std::nullopt;
    }
    platform::mark_used(file);
    return bytes;
}

bool Cache::write(const std::string& key, std::string_view contents) const {
    if (!usable_ || contents.size() > limit_bytes_) return false;
    const std::string file = path(key);
    if (!platform::replace_file(file, std::string(contents) + checksum(key, contents))) {
        log(LogLevel::info, str("kernel cache: cannot write ", file));
        return false;
    }
    trim(file);
    return true;
}

void Cache::trim(const std::string& just_written) const {
    std::vector<platform::FileEntry> entries = platform::file_entries(folder_);
    const std::int64_t stale = (std::time(nullptr) - kStaleSeconds) * std::int64_t{1000000000};
    std::uint64_t total = 0;
    std::erase_if(entries, [&](const platform::FileEntry& entry) {
        if (!entry.path.ends_with(".bin")) {
            if (entry.path.find(".bin.") != std::string::npos && entry.modified < stale) {
                platform::remove_file(entry.path);
            }
            return true;
        }
        total += entry.bytes;
        return entry.path == just_written;
    });
    std::sort(entries.begin(), entries.end(), [](auto& a, auto& b) { return a.modified < b.modified; });
    for (const platform::FileEntry& entry : entries) {
        if (total <= limit_bytes_) break;
        platform::remove_file(entry.path);
        total -= entry.bytes;
    }
}

}  // namespace gpk::jit
