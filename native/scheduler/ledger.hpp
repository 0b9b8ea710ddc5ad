// Ledger: who has which part of a device, over all of a user's processes. One file a device in the user's
// runtime folder, locked while it is read and written. What a process had comes back when it is gone.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/platform.hpp"
#include "runtime/device.hpp"
#include "runtime/tenant.hpp"

namespace gpk {

// What one partition has of a device. SM groups are its alone; memory, bandwidth and compute are promised,
// and so may not be promised twice, where its class is guaranteed.
struct Share {
    std::string name = {};
    QosClass qos = QosClass::guaranteed;
    std::vector<int> groups = {};
    double compute = 0;  // of device time; 0 where it has no share of its own
    std::size_t memory_bytes = 0;
    double bandwidth = 0;
};

struct LedgerEntry {
    platform::Process owner;
    std::uint64_t id = 0;  // unique in its process
    Share share;
};

// What there is to share.
struct Capacity {
    int groups = 0;
    std::size_t memory_bytes = 0;
};

class Ledger {
   public:
    // With an empty path, of this process alone.
    explicit Ledger(std::string path) : path_(std::move(path)) {}
    Ledger(const Ledger&) = delete;
    Ledger& operator=(const Ledger&) = delete;

    // Takes a share, with `groups` SM groups chosen among the free ones; those in wanted.groups are kept
    // where it is a change. Throws Error (memory) or (unsupported), with who holds what, and has changed
    // nothing.
    LedgerEntry take(Share wanted, int groups, const Capacity& capacity);
    LedgerEntry change(std::uint64_t id, Share wanted, int groups, const Capacity& capacity);
    // Where the file cannot be written now, the share comes back with this process's end.
    void give_back(std::uint64_t id) noexcept;

    std::vector<LedgerEntry> entries();  // of all living processes
    bool shared() const noexcept { return !path_.empty(); }
    const std::string& path() const noexcept { return path_; }

   private:
    template <class Change>
    void update(Change&& change);
    LedgerEntry place(std::uint64_t id, Share wanted, int groups, const Capacity& capacity);

    const std::string path_;
    std::mutex mutex_;
    platform::Process self_;
    std::vector<LedgerEntry> own_;
    std::uint64_t next_id_ = 1;
};

// The device's ledger: shared with the user's other processes on a GPU and on the device "cpu".
class DeviceLedger : public DeviceAttachment {
   public:
    explicit DeviceLedger(Device& device);
    // What outlives the device's objects (a tenant in the memory pool's care) keeps it.
    const std::shared_ptr<Ledger> ledger;
};

// For looking: each device's ledger, by the name of its file ("0000:1b:00.0", "cpu").
struct LedgerView {
    std::string device;
    std::vector<LedgerEntry> entries;
};
std::vector<LedgerView> read_ledgers();

// The text form, for tests. Lines that are damaged are left out, and counted.
std::string write_ledger(const std::vector<LedgerEntry>& entries);
std::vector<LedgerEntry> parse_ledger(const std::string& text, int* damaged);

}  // namespace gpk
