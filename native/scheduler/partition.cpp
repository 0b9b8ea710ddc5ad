#include "scheduler/partition.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/log.hpp"
#include "scheduler/governor.hpp"

namespace gpk {

namespace {

// What the partitions of a device share.
class DevicePartitions : public DeviceAttachment {
   public:
    explicit DevicePartitions(Device& device)
        : ledger(device.attached<DeviceLedger>().ledger), idle(Stream::create_for(nullptr, device)) {}

    // An ended partition whose arrays still hold memory.
    struct Leftover {
        std::weak_ptr<Tenant> tenant;
        std::uint64_t share;
        std::string name;
    };
    void add(Leftover leftover) {
        std::lock_guard lock(mutex_);
        leftovers_.push_back(std::move(leftover));
    }
    // Corrects what the ledger says of them.
    void refresh(const Capacity& capacity) {
        std::lock_guard lock(mutex_);
        std::erase_if(leftovers_, [&](const Leftover& each) {
            const auto tenant = each.tenant.lock();
            if (!tenant) return true;
            const std::size_t used = tenant->memory_used();
            if (used == 0) {
                ledger->give_back(each.share);
                return true;
            }
            ledger->change(each.share, {.name = each.name, .memory_bytes = used}, 0, capacity);
            return false;
        });
    }

    const std::shared_ptr<Ledger> ledger;
    const std::shared_ptr<Stream> idle;

   private:
    std::mutex mutex_;
    std::vector<Leftover> leftovers_;
};

std::string ended_name(const std::string& name) { return name + " (ended)"; }

Device& device_of(const PartitionConfig& config) {
    return config.device != nullptr ? *config.device : current_device();
}

// The default manager of a device.
struct OwnManager : DeviceAttachment {
    explicit OwnManager(Device& device) : manager({.device = &device}) {}
    PartitionManager manager;
};

}  // namespace

// -- Partition -----------------------------------------------------------------------------------------

Partition::Partition(Device& device, std::string id, std::string name, const PartitionLimits& limits,
                     std::shared_ptr<Tenant> parent)
    : device_(device),
      id_(std::move(id)),
      name_(std::move(name)),
      ledger_(device.attached<DevicePartitions>().ledger),
      idle_(device.attached<DevicePartitions>().idle),
      limits_(limits) {
    const int groups = groups_for(limits.compute(), device.info().sm_groups);
    try {
        entry_ = ledger_->take(share_of(limits), groups, capacity());
    } catch (const Error&) {
        device.attached<DevicePartitions>().refresh(capacity());
        entry_ = ledger_->take(share_of(limits), groups, capacity());
    }
    // From here on the share goes with the governor.
    try {
        governor_ = std::make_shared<PartitionGovernor>(name_, ledger_, entry_.id, make_pacing(limits));
    } catch (...) {
        ledger_->give_back(entry_.id);
        throw;
    }
    std::shared_ptr<SmPartition> sms;
    if (groups > 0) sms = std::make_shared<SmPartition>(device, entry_.share.groups);
    tenant_ = Tenant::create({.name = name_,
                              .qos = limits.qos(),
                              .memory_limit = limits.memory(),
                              .max_streams = limits.streams(),
                              .governor = governor_,
                              .sms = std::move(sms)},
                             std::move(parent));
    governor_->pacing()->protect(tenant_);
    pacing_ = governor_->pacing();
}

Partition::~Partition() { end(true); }

Share Partition::share_of(const PartitionLimits& limits) const {
    return {.name = name_,
            .qos = limits.qos(),
            .groups = entry_.share.groups,
            .compute = limits.compute(),
            .memory_bytes = limits.memory(),
            .bandwidth = limits.bandwidth()};
}

Capacity Partition::capacity() const {
    return {.groups = device_.info().sm_groups, .memory_bytes = device_.info().memory_bytes};
}

std::shared_ptr<KernelPacingEngine> Partition::make_pacing(const PartitionLimits& limits) const {
    const DeviceInfo& info = device_.info();
    auto engine = std::make_shared<KernelPacingEngine>(
        device_, PacingConfig{.time_share = info.sm_groups == 0 ? limits.compute() : 0,
                              .bandwidth_share = info.memory_bandwidth > 0 ? limits.bandwidth() : 0,
                              .device_bandwidth = info.memory_bandwidth,
                              .is_protected = limits.qos() == QosClass::guaranteed,
                              .slicing = limits.slicing()});
    if (tenant_) engine->protect(tenant_);
    return engine;
}

PacingStats Partition::pacing() const {
    std::shared_ptr<KernelPacingEngine> engine;
    {
        std::lock_guard lock(mutex_);
        engine = pacing_;
    }
    return engine->stats();
}

bool Partition::alive() const {
    std::lock_guard lock(mutex_);
    return alive_;
}

void Partition::check_alive(const char* call) const {
    if (!alive()) refuse_ended(call, name_);
}

PartitionLimits Partition::limits() const {
    std::lock_guard lock(mutex_);
    return limits_;
}

PartitionUsage Partition::usage() const {
    std::lock_guard lock(mutex_);
    return {tenant_->memory_used(), tenant_->memory_peak(), tenant_->live_streams(), entered_};
}

std::vector<int> Partition::sm_groups() const {
    std::lock_guard lock(mutex_);
    return alive_ ? entry_.share.groups : std::vector<int>();
}

int Partition::multiprocessors() const {
    const auto groups = static_cast<int>(sm_groups().size());
    return groups > 0 ? groups * device_.info().sm_group_size : device_.info().multiprocessors;
}

double Partition::compute() const {
    return static_cast<double>(multiprocessors()) / device_.info().multiprocessors;
}

std::shared_ptr<Tenant> Partition::tenant() const {
    check_alive("partition");
    return tenant_;
}

std::shared_ptr<Stream> Partition::enter() {
    {
        std::lock_guard lock(mutex_);
        if (!alive_) refuse_ended("partition", name_);
        ++entered_;  // it cannot be destroyed from here on
        const auto unused =
            std::find_if(own_.begin(), own_.end(), [](const Own& each) { return each.users == 0; });
        if (unused != own_.end()) {
            ++unused->users;
            return unused->stream;
        }
    }
    std::shared_ptr<Stream> made;
    std::exception_ptr failure;
    try {
        made = Stream::create_for(tenant_, device_);
    } catch (const Error&) {
        failure = std::current_exception();
    }
    std::lock_guard lock(mutex_);
    if (made) {
        own_.push_back({made, 1});
        return made;
    }
    const auto least = std::min_element(own_.begin(), own_.end(),
                                        [](const Own& a, const Own& b) { return a.users < b.users; });
    if (least == own_.end()) {
        --entered_;
        std::rethrow_exception(failure);
    }
    ++least->users;
    return least->stream;
}

void Partition::leave(const std::shared_ptr<Stream>& stream) noexcept {
    std::lock_guard lock(mutex_);
    const auto left =
        std::find_if(own_.begin(), own_.end(), [&](const Own& each) { return each.stream == stream; });
    if (left == own_.end()) return;
    --left->users;
    --entered_;
}

void Partition::drain(const std::vector<std::shared_ptr<Stream>>& streams) const {
    for (const auto& stream : streams) stream->synchronize();
}

// In place of an engine that was released, while the gate is closed.
void Partition::restart_pacing(const PartitionLimits& limits) noexcept {
    try {
        auto engine = make_pacing(limits);
        governor_->set_pacing(engine);
        std::lock_guard lock(mutex_);
        pacing_ = std::move(engine);
    } catch (const std::exception& failure) {
        log(LogLevel::warning, str("partition '", name_, "' is not paced: ", failure.what()));
    }
}

// Gives each stream a place on `sms`; all of them or, throwing, none.
void Partition::move(std::vector<std::shared_ptr<Stream>> streams, const std::shared_ptr<SmPartition>& sms) {
    Driver& driver = device_.driver();
    std::vector<StreamHandle> handles;
    std::vector<std::unique_lock<std::shared_mutex>> settled;
    try {
        for (const auto& stream : streams) {
            settled.push_back(stream->settle());
            if (stream->capture() != nullptr) {
                throw error(ErrorKind::unsupported, {.call = "partition.resize",
                                                     .expected = "no capture under way",
                                                     .got = str("one on a stream of '", name_, "'"),
                                                     .fix = "end the capture first"});
            }
            handles.push_back(driver.stream_create(stream->priority(), sms ? sms->handle() : nullptr));
        }
    } catch (...) {
        for (const StreamHandle handle : handles) driver.stream_destroy(handle);
        throw;
    }
    for (std::size_t i = 0; i < streams.size(); ++i) streams[i]->move_to(handles[i], sms, true);
}

void Partition::resize(const PartitionLimits& limits) {
    std::lock_guard change(change_mutex_);
    check_alive("partition.resize");
    const PartitionLimits before = this->limits();
    const int groups_before = static_cast<int>(sm_groups().size());
    const int groups = groups_for(limits.compute(), device_.info().sm_groups);
    // First what both need, so that nothing is lost where a step fails; what is too much goes back last.
    Share both = share_of(before);
    both.qos = std::min(before.qos(), limits.qos());
    both.memory_bytes = std::max(before.memory(), limits.memory());
    both.bandwidth = std::max(before.bandwidth(), limits.bandwidth());
    both.compute = std::max(before.compute(), limits.compute());
    const LedgerEntry wide =
        ledger_->change(entry_.id, std::move(both), std::max(groups, groups_before), capacity());
    const auto revert = [&]() noexcept {
        try {
            ledger_->change(entry_.id, share_of(before), groups_before, capacity());
        } catch (const std::exception& failure) {
            log(LogLevel::warning, failure.what());
        }
    };
    std::shared_ptr<SmPartition> sms = tenant_->sms();
    std::vector<int> chosen = wide.share.groups;
    std::shared_ptr<KernelPacingEngine> next;
    bool closed = false;
    try {
        // A share that shrinks keeps its first groups, as the ledger does.
        if (groups < groups_before) chosen.resize(static_cast<std::size_t>(groups));
        if (groups != groups_before) {
            sms = groups > 0 ? std::make_shared<SmPartition>(device_, chosen) : nullptr;
        }
        next = make_pacing(limits);
        governor_->pacing()->release();  // whoever it keeps waiting goes first
        governor_->gate.close();
        closed = true;
        const auto alone = tenant_->placing_alone();
        const auto streams = tenant_->streams();
        drain(streams);
        if (groups != groups_before) {
            move(streams, sms);
            tenant_->set_sms(sms);
        }
    } catch (...) {
        if (closed) {
            restart_pacing(before);
            governor_->gate.open();
        }
        revert();
        throw;
    }
    governor_->set_pacing(next);
    tenant_->set_memory_limit(limits.memory());
    tenant_->set_max_streams(limits.streams());
    tenant_->set_qos(limits.qos());
    LedgerEntry entry = wide;
    try {
        Share share = share_of(limits);
        share.groups = chosen;
        entry = ledger_->change(entry_.id, std::move(share), groups, capacity());
    } catch (const std::exception& failure) {
        // It has more than it needs until its end.
        log(LogLevel::warning, failure.what());
        entry.share.groups = chosen;
    }
    {
        std::lock_guard lock(mutex_);
        limits_ = limits;
        entry_ = std::move(entry);
        pacing_ = std::move(next);
    }
    governor_->gate.open();
}

void Partition::end(bool forced) {
    std::lock_guard change(change_mutex_);
    {
        std::lock_guard lock(mutex_);
        if (!alive_) return;
        if (entered_ > 0 && !forced) {
            throw error(ErrorKind::unsupported, {.call = "partition.destroy",
                                                 .expected = "a partition that nobody is in",
                                                 .got = str("'", name_, "', with ", entered_, " open scopes"),
                                                 .fix = "leave `with partition:` first"});
        }
        alive_ = false;
    }
    governor_->pacing()->release();
    governor_->gate.close();
    try {
        const auto alone = tenant_->placing_alone();
        const auto streams = tenant_->streams();
        std::vector<std::unique_lock<std::shared_mutex>> settled;
        for (const auto& stream : streams) {
            try {
                stream->synchronize();
            } catch (const Error& failure) {
                if (!forced && !device_.lost()) throw;
                log(LogLevel::warning, str("partition '", name_, "': ", failure.what()));
            }
        }
        for (const auto& stream : streams) {
            settled.push_back(stream->settle());
            if (stream->capture() != nullptr && !forced) {
                throw error(ErrorKind::unsupported, {.call = "partition.destroy",
                                                     .expected = "no capture under way",
                                                     .got = str("one on a stream of '", name_, "'"),
                                                     .fix = "end the capture first"});
            }
        }
        governor_->gate.end();
        tenant_->set_sms(nullptr);
        for (const auto& stream : streams) {
            // A capture that nobody ended keeps its stream; what it recorded can no longer be launched.
            if (stream->capture() == nullptr) stream->move_to(idle_->handle(), nullptr, false);
        }
    } catch (const std::exception& failure) {
        if (!forced) {
            restart_pacing(limits());
            governor_->gate.open();
            std::lock_guard lock(mutex_);
            alive_ = true;
            throw;
        }
        governor_->gate.end();
        log(LogLevel::warning, failure.what());
    }
    {
        std::lock_guard lock(mutex_);
        own_.clear();
    }
    give_back_share();
}

// What its arrays still hold stays promised, so that nobody is promised the same memory.
void Partition::give_back_share() noexcept {
    try {
        const std::size_t used = tenant_->memory_used();
        if (used == 0) return ledger_->give_back(entry_.id);
        ledger_->change(entry_.id, {.name = ended_name(name_), .qos = limits_.qos(), .memory_bytes = used}, 0,
                        capacity());
        device_.attached<DevicePartitions>().add({tenant_, entry_.id, ended_name(name_)});
    } catch (const std::exception& failure) {
        log(LogLevel::warning, failure.what());
    }
}

// -- PartitionManager ----------------------------------------------------------------------------------

PartitionManager::PartitionManager(const PartitionConfig& config)
    : device_(device_of(config)),
      total_memory_(config.total_memory != 0 ? config.total_memory : device_.info().memory_bytes),
      parent_(config.total_memory != 0
                  ? Tenant::create({.name = "partitions", .memory_limit = config.total_memory})
                  : nullptr) {
    if (total_memory_ > device_.info().memory_bytes) {
        throw error(ErrorKind::value, {.call = "PartitionManager",
                                       .argument = "total_memory",
                                       .expected = str("at most the ", device_.info().memory_bytes,
                                                       " bytes of ", device_.name()),
                                       .got = str(total_memory_)});
    }
}

PartitionManager& PartitionManager::of(Device& device) { return device.attached<OwnManager>().manager; }

std::vector<std::shared_ptr<Partition>> PartitionManager::all_locked() const {
    std::vector<std::shared_ptr<Partition>> all;
    for (const auto& [id, partition] : named_) all.push_back(partition);
    for (const auto& each : anonymous_) {
        if (auto partition = each.lock()) all.push_back(std::move(partition));
    }
    return all;
}

// No more promised than the manager may give. `but`: one whose limits are about to change.
void PartitionManager::check_total(const std::vector<std::shared_ptr<Partition>>& all, const Partition* but,
                                   const PartitionLimits& limits) const {
    if (limits.qos() != QosClass::guaranteed) return;
    std::size_t left = total_memory_;
    for (const auto& each : all) {
        const PartitionLimits other = each->limits();
        if (each.get() == but || other.qos() != QosClass::guaranteed || !each->alive()) continue;
        left -= std::min(left, other.memory());
    }
    if (limits.memory() <= left) return;
    throw error(ErrorKind::memory, {.call = "partition",
                                    .argument = "memory",
                                    .expected = str("at most what this manager has left, ", left, " of ",
                                                    total_memory_, " bytes"),
                                    .got = str(limits.memory()),
                                    .fix = "ask for less, or destroy a partition"});
}

std::shared_ptr<Partition> PartitionManager::create(std::string id, std::string name,
                                                    const PartitionLimits& limits) {
    std::vector<std::shared_ptr<Partition>> all;  // let go of outside the lock: the last holder ends one
    std::lock_guard lock(mutex_);
    all = all_locked();
    if (id.empty() || named_.contains(id)) {
        throw error(ErrorKind::value, {.call = "create_partition",
                                       .argument = "id",
                                       .expected = "one that is not in use, and not empty",
                                       .got = str("'", id, "'")});
    }
    check_total(all, nullptr, limits);
    std::shared_ptr<Partition> made(
        new Partition(device_, id, name.empty() ? id : std::move(name), limits, parent_));
    named_.emplace(std::move(id), made);
    return made;
}

std::shared_ptr<Partition> PartitionManager::create_anonymous(std::string name,
                                                              const PartitionLimits& limits) {
    std::vector<std::shared_ptr<Partition>> all;
    std::lock_guard lock(mutex_);
    all = all_locked();
    check_total(all, nullptr, limits);
    const std::string id = str("anonymous-", next_anonymous_++);
    std::shared_ptr<Partition> made(
        new Partition(device_, id, name.empty() ? id : std::move(name), limits, parent_));
    std::erase_if(anonymous_, [](const auto& each) { return each.expired(); });
    anonymous_.push_back(made);
    return made;
}

std::shared_ptr<Partition> PartitionManager::get(const std::string& id) const {
    std::lock_guard lock(mutex_);
    const auto found = named_.find(id);
    if (found == named_.end()) {
        throw error(ErrorKind::value, {.call = "partition",
                                       .argument = "id",
                                       .expected = "that of a partition",
                                       .got = str("'", id, "'")});
    }
    return found->second;
}

std::vector<std::shared_ptr<Partition>> PartitionManager::list() const {
    std::lock_guard lock(mutex_);
    return all_locked();
}

void PartitionManager::resize(Partition& partition, const PartitionLimits& limits) {
    {
        std::vector<std::shared_ptr<Partition>> all;
        std::lock_guard lock(mutex_);
        all = all_locked();
        check_total(all, &partition, limits);
    }
    partition.resize(limits);
}

void PartitionManager::destroy(const std::string& id) {
    const std::shared_ptr<Partition> partition = get(id);
    partition->end(false);
    std::lock_guard lock(mutex_);
    named_.erase(id);
}

}  // namespace gpk
