#include "runtime/tenant.hpp"

#include <map>
#include <mutex>
#include <utility>

#include "base/error.hpp"
#include "runtime/device.hpp"

namespace gpk {

namespace {

std::atomic<std::uint64_t> next_tenant_id{1};

// Never destroyed: tenants may outlive static objects.
struct Registry {
    std::mutex mutex;
    std::map<std::uint64_t, std::weak_ptr<Tenant>> tenants;
};
Registry& registry() {
    static Registry* const instance = new Registry;
    return *instance;
}

// Adds where the sum stays within `limit` (0: none). Many may charge at once, hence the loop.
template <class Number>
bool add_within(std::atomic<Number>& sum, Number amount, Number limit) noexcept {
    Number now = sum.load(std::memory_order_relaxed);
    do {
        if (limit != 0 && (now > limit || amount > limit - now)) return false;
    } while (!sum.compare_exchange_weak(now, now + amount, std::memory_order_relaxed));
    return true;
}

}  // namespace

std::string_view to_string(QosClass qos) noexcept {
    static constexpr std::string_view kNames[] = {"guaranteed", "burstable", "best_effort"};
    return kNames[static_cast<int>(qos)];
}

SmPartition::SmPartition(Device& device, std::vector<int> groups)
    : device_(device), groups_(std::move(groups)), handle_(device.driver().sm_partition_create(groups_)) {}

SmPartition::~SmPartition() { device_.driver().sm_partition_destroy(handle_); }

int SmPartition::multiprocessors() const noexcept {
    return static_cast<int>(groups_.size()) * device_.info().sm_group_size;
}

Tenant::Tenant(TenantOptions options, std::shared_ptr<Tenant> parent)
    : name_(std::move(options.name)),
      parent_(std::move(parent)),
      id_(next_tenant_id.fetch_add(1, std::memory_order_relaxed)),
      shown_(options.shown ? this
             : parent_     ? parent_->shown()
                           : nullptr),
      own_governor_(std::move(options.governor)),
      governor_(own_governor_ ? own_governor_.get()
                : parent_     ? parent_->governor()
                              : nullptr),
      qos_(options.qos),
      limit_(options.memory_limit),
      max_streams_(options.max_streams),
      own_sms_(std::move(options.sms)) {}

std::shared_ptr<Tenant> Tenant::create(TenantOptions options, std::shared_ptr<Tenant> parent) {
    if (options.max_streams < 0) {
        throw error(ErrorKind::value, {.call = "Tenant",
                                       .argument = "max_streams",
                                       .expected = "0 (no limit) or more",
                                       .got = str(options.max_streams)});
    }
    std::shared_ptr<Tenant> made(new Tenant(std::move(options), std::move(parent)));
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    all.tenants.emplace(made->id(), made);
    return made;
}

Tenant::~Tenant() {
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    all.tenants.erase(id_);
}

std::vector<std::shared_ptr<Tenant>> live_tenants() {
    std::vector<std::shared_ptr<Tenant>> live;  // let go of after the lock, in case one is the last
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    for (const auto& [id, weak] : all.tenants) {
        if (auto tenant = weak.lock()) live.push_back(std::move(tenant));
    }
    return live;
}

std::shared_ptr<SmPartition> Tenant::sms() const {
    for (const Tenant* each = this; each != nullptr; each = each->parent_.get()) {
        std::lock_guard lock(each->mutex_);
        if (each->own_sms_) return each->own_sms_;
    }
    return nullptr;
}

void Tenant::set_sms(std::shared_ptr<SmPartition> sms) noexcept {
    std::lock_guard lock(mutex_);
    own_sms_.swap(sms);
}

int Tenant::multiprocessors(const Device& device) const {
    const auto own = sms();
    return own ? own->multiprocessors() : device.info().multiprocessors;
}

std::vector<std::shared_ptr<Stream>> Tenant::streams() const {
    std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Stream>> live;
    for (const auto& each : streams_) {
        if (auto stream = each.lock()) live.push_back(std::move(stream));
    }
    return live;
}

void Tenant::know(const std::shared_ptr<Stream>& stream) {
    for (Tenant* each = this; each != nullptr; each = each->parent_.get()) {
        std::lock_guard lock(each->mutex_);
        std::erase_if(each->streams_, [](const auto& known) { return known.expired(); });
        each->streams_.push_back(stream);
    }
}

const Tenant* Tenant::charge(std::size_t bytes) noexcept {
    for (Tenant* each = this; each != nullptr; each = each->parent_.get()) {
        if (add_within(each->used_, bytes, each->memory_limit())) continue;
        for (Tenant* done = this; done != each; done = done->parent_.get()) {
            done->used_.fetch_sub(bytes, std::memory_order_relaxed);
        }
        return each;
    }
    for (Tenant* each = this; each != nullptr; each = each->parent_.get()) {
        const std::size_t now = each->memory_used();
        std::size_t peak = each->memory_peak();
        while (peak < now && !each->peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
        }
    }
    return nullptr;
}

void Tenant::uncharge(std::size_t bytes) noexcept {
    for (Tenant* each = this; each != nullptr; each = each->parent_.get()) {
        each->used_.fetch_sub(bytes, std::memory_order_relaxed);
    }
}

bool Tenant::add_stream() noexcept {
    for (Tenant* each = this; each != nullptr; each = each->parent_.get()) {
        if (add_within(each->live_streams_, 1, each->max_streams_.load(std::memory_order_relaxed))) continue;
        for (Tenant* done = this; done != each; done = done->parent_.get()) {
            done->live_streams_.fetch_sub(1, std::memory_order_relaxed);
        }
        return false;
    }
    return true;
}

void Tenant::drop_stream() noexcept {
    for (Tenant* each = this; each != nullptr; each = each->parent_.get()) {
        each->live_streams_.fetch_sub(1, std::memory_order_relaxed);
    }
}

}  // namespace gpk
