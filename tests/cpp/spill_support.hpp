// What the tests of the disk tier share: a file whose calls can be made to fail, and a device with three
// tiers.
#pragma once

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/platform.hpp"
#include "evict_support.hpp"

namespace sim {

// What happens to the n-th call (from 1) of a kind.
struct FileFault {
    std::string call;  // "read", "write" or "resize"
    int nth = 0;       // 0: none
    enum What { error, short_count, nothing, damage } what = error;
    int code = EIO;
    bool all_after = false;
};

class FaultyFile final : public gpk::platform::ScratchFile {
   public:
    struct Control {
        std::mutex mutex;
        FileFault fault;
        int reads = 0, writes = 0, resizes = 0;
        std::uint64_t largest = 0;       // that the file ever was
        std::function<void()> in_write;  // runs inside each

        void set(FileFault next) {
            std::lock_guard lock(mutex);
            fault = std::move(next);
            reads = writes = resizes = 0;
        }
    };

    FaultyFile(const std::string& folder, std::shared_ptr<Control> control)
        : ScratchFile("test", "folder", folder), control_(std::move(control)) {}

    std::ptrdiff_t read(void* to, std::size_t bytes, std::uint64_t offset) noexcept override {
        const FileFault fault = next("read", &Control::reads);
        const std::ptrdiff_t refused = refusal(fault, &bytes);
        if (refused <= 0) return refused;
        const std::ptrdiff_t count = ScratchFile::read(to, bytes, offset);
        if (fault.what == FileFault::damage && fault.nth != 0)
            static_cast<unsigned char*>(to)[count / 2] ^= 4;
        return count;
    }
    std::ptrdiff_t write(const void* from, std::size_t bytes, std::uint64_t offset) noexcept override {
        if (control_->in_write) control_->in_write();
        const FileFault fault = next("write", &Control::writes);
        const std::ptrdiff_t refused = refusal(fault, &bytes);
        if (refused <= 0) return refused;
        return ScratchFile::write(from, bytes, offset);
    }
    int resize(std::uint64_t bytes) noexcept override {
        const FileFault fault = next("resize", &Control::resizes);
        if (fault.nth != 0) return fault.code;
        const int code = ScratchFile::resize(bytes);
        std::lock_guard lock(control_->mutex);
        if (code == 0 && bytes > control_->largest) control_->largest = bytes;
        return code;
    }

   private:
    FileFault next(const char* call, int Control::* count) noexcept {
        std::lock_guard lock(control_->mutex);
        const int nth = ++((*control_).*count);
        const FileFault& fault = control_->fault;
        if (fault.nth == 0 || fault.call != call || nth < fault.nth) return {};
        return nth == fault.nth || fault.all_after ? fault : FileFault{};
    }
    // What the call returns at once; above 0 where it goes on.
    static std::ptrdiff_t refusal(const FileFault& fault, std::size_t* bytes) noexcept {
        if (fault.nth == 0) return 1;
        if (fault.what == FileFault::error) return -fault.code;
        if (fault.what == FileFault::nothing) return 0;
        if (fault.what == FileFault::short_count) *bytes = *bytes / 3 + 1;
        return 1;
    }

    std::shared_ptr<Control> control_;
};

struct Spilling : TestDevice {
    const std::string folder = std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : "/tmp";
    std::shared_ptr<FaultyFile::Control> file = std::make_shared<FaultyFile::Control>();
    gpk::MemoryPool& pool = gpk::MemoryPool::of(device);

    Spilling(std::size_t device_pages, std::size_t host_pages, std::size_t disk_pages,
             gpk::SimOptions options = paged())
        : TestDevice(options) {
        pool.set_limit(device_pages * kPage);
        pool.set_eviction(true);
        pool.evictor().away().host().set_limit(host_pages * kPage);
        pool.evictor().away().set_spill(std::make_unique<FaultyFile>(folder, file), disk_pages * kPage);
    }
};

}  // namespace sim
