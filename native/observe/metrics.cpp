#include "observe/metrics.hpp"

#include <array>
#include <charconv>
#include <functional>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.hpp"
#include "base/utf8.hpp"
#include "memory/pool.hpp"
#include "runtime/device.hpp"
#include "runtime/meter.hpp"
#include "runtime/tenant.hpp"

namespace gpk {

namespace {

using Labels = std::vector<std::pair<std::string_view, std::string_view>>;

class Text {
   public:
    void family(std::string_view name, std::string_view type, std::string_view help) {
        out_ += str("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
    }
    void sample(std::string_view name, const Labels& labels, double value) {
        out_ += name;
        char separator = '{';
        for (const auto& [label, text] : labels) {
            ((out_ += std::exchange(separator, ',')) += label) += "=\"";
            for (const char c : valid_utf8(text)) {
                if (c == '\n') {
                    out_ += "\\n";
                } else {
                    if (c == '"' || c == '\\') out_ += '\\';
                    out_ += c;
                }
            }
            out_ += '"';
        }
        ((out_ += "} ") += number(value)) += '\n';
    }
    static std::string number(double value) {
        char digits[40];
        return {digits, std::to_chars(digits, digits + sizeof(digits), value).ptr};
    }
    std::string take() { return std::move(out_); }

   private:
    std::string out_;
};

Labels labels_of(const MeterLabels& of) {
    return {{"device", of.device}, {"partition", of.partition}, {"qos", of.qos}};
}

// One series of a family: what is counted, and the label that tells it from its neighbours.
struct Series {
    std::variant<Count, Level> what;
    std::string_view value = {};
};
struct Family {
    std::string_view name, help;
    std::string_view label;  // empty for a family of one series
    std::vector<Series> series;
    double unit = 1;
};

const std::vector<Family>& families() {
    using C = Count;
    using L = Level;
    constexpr double kNs = 1e-9;
    static const std::vector<Family> all = {
        {"pygpukit_work_total",
         "Pieces of work queued on a device.",
         "kind",
         {{C::kernels, "kernel"},
          {C::graphs, "graph"},
          {C::fills, "fill"},
          {C::copies_to_device, "copy_to_device"},
          {C::copies_to_host, "copy_to_host"},
          {C::copies_on_device, "copy_on_device"}}},
        {"pygpukit_work_captured_total", "Pieces of work recorded into graphs.", "", {{C::captured_work}}},
        {"pygpukit_work_refused_total",
         "Pieces of work that a hook, a partition or the driver refused.",
         "",
         {{C::refused_work}}},
        {"pygpukit_work_declared_bytes_total",
         "Device memory that queued work said it reads and writes (declared, not measured).",
         "",
         {{C::declared_bytes}}},
        {"pygpukit_copied_bytes_total",
         "Bytes copied.",
         "direction",
         {{C::to_device_bytes, "to_device"},
          {C::to_host_bytes, "to_host"},
          {C::on_device_bytes, "on_device"}}},
        {"pygpukit_busy_seconds_total",
         "Device time of the work that pacing measured: some of each paced partition's. The rest is not in "
         "it.",
         "",
         {{C::busy_ns}},
         kNs},
        {"pygpukit_host_waits_total", "Times that the host waited for a device.", "", {{C::host_waits}}},
        {"pygpukit_host_wait_seconds_total",
         "Time that the host waited for a device.",
         "",
         {{C::host_wait_ns}},
         kNs},
        {"pygpukit_pacing_waits_total", "Pieces of work that pacing kept waiting.", "", {{C::pacing_waits}}},
        {"pygpukit_pacing_wait_seconds_total",
         "Time that pacing kept work waiting, on the host.",
         "",
         {{C::pacing_wait_ns}},
         kNs},
        {"pygpukit_evictions_total",
         "Blocks moved from a device to the host or to disk.",
         "",
         {{C::evictions}}},
        {"pygpukit_evicted_bytes_total", "Bytes moved by evictions.", "", {{C::evicted_bytes}}},
        {"pygpukit_reloads_total", "Evicted blocks brought back.", "", {{C::reloads}}},
        {"pygpukit_reloaded_bytes_total", "Bytes brought back by reloads.", "", {{C::reloaded_bytes}}},
        {"pygpukit_memory_evicted_bytes",
         "Bytes that are away from the device now.",
         "",
         {{L::evicted_bytes}}},
        {"pygpukit_memory_spilled_bytes",
         "Bytes of evicted blocks that are on the disk now.",
         "",
         {{L::spilled_bytes}}},
        {"pygpukit_admissions_total",
         "Decisions of admission.",
         "decision",
         {{C::admitted, "admitted"},
          {C::queued, "queued"},
          {C::throttled, "throttled"},
          {C::rejected, "rejected"}}},
        {"pygpukit_tasks",
         "Tasks that have not ended, by state.",
         "state",
         {{L::tasks_pending, "pending"}, {L::tasks_queued, "queued"}, {L::tasks_running, "running"}}},
        {"pygpukit_tasks_ended_total",
         "Tasks that ended, by state.",
         "state",
         {{C::tasks_completed, "completed"},
          {C::tasks_failed, "failed"},
          {C::tasks_cancelled, "cancelled"},
          {C::tasks_rejected, "rejected"}}},
        {"pygpukit_transfers",
         "Transfers that have not ended, by state.",
         "state",
         {{L::transfers_queued, "queued"}, {L::transfers_in_progress, "in_progress"}}},
        {"pygpukit_transfers_ended_total",
         "Transfers that ended, by state.",
         "state",
         {{C::transfers_completed, "completed"},
          {C::transfers_failed, "failed"},
          {C::transfers_cancelled, "cancelled"}}},
    };
    return all;
}

void write_meters(Text& text, const std::vector<MeterEntry>& entries) {
    for (const Family& family : families()) {
        const bool level = std::holds_alternative<Level>(family.series.front().what);
        text.family(family.name, level ? "gauge" : "counter", family.help);
        for (const auto& [labels, meter] : entries) {
            for (const Series& series : family.series) {
                Labels all = labels_of(labels);
                if (!family.label.empty()) all.emplace_back(family.label, series.value);
                const double value = std::visit(
                    [m = meter](auto what) { return static_cast<double>((*m)[what]); }, series.what);
                text.sample(family.name, all, value * family.unit);
            }
        }
    }
}

void write_latency(Text& text, const std::vector<MeterEntry>& entries) {
    constexpr std::string_view kName = "pygpukit_launch_seconds";
    text.family(kName, "histogram",
                str("Host time of a kernel launch, waits of pacing in it; one launch in ", kTimedLaunches,
                    " is timed. On the simulated device the kernel's run is in it."));
    for (const auto& [labels, meter] : entries) {
        std::uint64_t so_far = 0;
        const Labels plain = labels_of(labels);
        for (std::size_t i = 0; i <= kLaunchBoundsNs.size(); ++i) {
            so_far += meter->launches_within(i);
            Labels all = plain;
            const std::string bound = i < kLaunchBoundsNs.size()
                                          ? Text::number(static_cast<double>(kLaunchBoundsNs[i]) / 1e9)
                                          : "+Inf";
            all.emplace_back("le", bound);
            text.sample(str(kName, "_bucket"), all, static_cast<double>(so_far));
        }
        text.sample(str(kName, "_sum"), plain, static_cast<double>(meter->launch_ns()) * 1e-9);
        text.sample(str(kName, "_count"), plain, static_cast<double>(so_far));
    }
}

struct DeviceNow {
    std::string name, model, bus;
    int multiprocessors, sm_group_size;
    PoolStats pool;
    std::size_t limit;
    MemoryInfo memory;
};

std::vector<DeviceNow> devices_now() {
    std::vector<DeviceNow> all;
    for (const std::string& name : device_names()) {
        try {
            Device& of = device(name);
            MemoryPool& pool = MemoryPool::of(of);
            all.push_back({name, of.info().name, of.info().pci_bus_id, of.info().multiprocessors,
                           of.info().sm_group_size, pool.stats(), pool.limit(), of.driver().memory_info()});
        } catch (const Error&) {
            // It went meanwhile, or its driver answers no more: its counters are still there.
        }
    }
    return all;
}

void write_devices(Text& text, const std::vector<DeviceNow>& devices) {
    using Value = std::function<double(const DeviceNow&)>;
    const auto gauge = [&](std::string_view name, std::string_view help, std::string_view label,
                           const std::vector<std::pair<std::string_view, Value>>& series) {
        text.family(name, "gauge", help);
        for (const DeviceNow& each : devices) {
            for (const auto& [value, call] : series) {
                Labels labels = {{"device", each.name}};
                if (!label.empty()) labels.emplace_back(label, value);
                text.sample(name, labels, call(each));
            }
        }
    };
    const auto number = [](auto value) { return static_cast<double>(value); };
    text.family("pygpukit_device_info", "gauge", "1, with what the device is in the labels.");
    for (const DeviceNow& each : devices) {
        text.sample("pygpukit_device_info", {{"device", each.name}, {"model", each.model}, {"bus", each.bus}},
                    1);
    }
    gauge("pygpukit_device_multiprocessors", "SMs of the device.", "",
          {{"", [&](const DeviceNow& d) { return number(d.multiprocessors); }}});
    gauge("pygpukit_device_sm_group_size", "SMs of a group, which partitions are made of; 0 without groups.",
          "", {{"", [&](const DeviceNow& d) { return number(d.sm_group_size); }}});
    gauge("pygpukit_device_memory_bytes", "Memory of the device, for all processes, as the driver counts it.",
          "state",
          {{"free", [&](const DeviceNow& d) { return number(d.memory.free_bytes); }},
           {"total", [&](const DeviceNow& d) { return number(d.memory.total_bytes); }}});
    gauge("pygpukit_memory_bytes",
          "Memory of this process's pool: handed out, cached, taken from the driver.", "state",
          {{"live", [&](const DeviceNow& d) { return number(d.pool.live_bytes); }},
           {"cached", [&](const DeviceNow& d) { return number(d.pool.cached_bytes); }},
           {"reserved", [&](const DeviceNow& d) { return number(d.pool.reserved_bytes); }},
           {"peak_live", [&](const DeviceNow& d) { return number(d.pool.peak_live_bytes); }}});
    gauge("pygpukit_memory_limit_bytes", "The most that the pool may take; 0 for no limit.", "",
          {{"", [&](const DeviceNow& d) { return number(d.limit); }}});
    text.family("pygpukit_allocations_total", "counter", "Blocks that the pool handed out.");
    for (const DeviceNow& each : devices) {
        text.sample("pygpukit_allocations_total", {{"device", each.name}}, number(each.pool.allocations));
    }
}

// Tenants of one name are one partition here, as they are one meter.
struct PartitionNow {
    double used = 0, limit = 0, streams = 0, multiprocessors = 0;
};

void write_partitions(Text& text) {
    std::map<MeterLabels, PartitionNow> partitions;
    for (const auto& tenant : live_tenants()) {
        if (tenant->shown() != tenant.get()) continue;
        const auto sms = tenant->sms();
        MeterLabels labels{sms != nullptr ? sms->device().name() : std::string(), tenant->name(),
                           std::string(to_string(tenant->qos()))};
        PartitionNow& now = partitions[std::move(labels)];
        now.used += static_cast<double>(tenant->memory_used());
        now.limit += static_cast<double>(tenant->memory_limit());
        now.streams += tenant->live_streams();
        now.multiprocessors = sms != nullptr ? sms->multiprocessors() : 0;
    }
    struct Gauge {
        std::string_view name, help;
        double PartitionNow::* value;
    };
    static constexpr Gauge kGauges[] = {
        {"pygpukit_partition_memory_used_bytes", "Memory charged to the partition.", &PartitionNow::used},
        {"pygpukit_partition_memory_limit_bytes", "The most that it may be charged; 0 for no limit.",
         &PartitionNow::limit},
        {"pygpukit_partition_streams", "Its streams.", &PartitionNow::streams},
        {"pygpukit_partition_multiprocessors", "SMs set aside for it; 0 where it has none of its own.",
         &PartitionNow::multiprocessors},
    };
    for (const Gauge& gauge : kGauges) {
        text.family(gauge.name, "gauge", gauge.help);
        for (const auto& [labels, now] : partitions)
            text.sample(gauge.name, labels_of(labels), now.*gauge.value);
    }
}

}  // namespace

std::string metrics_text() {
    Text text;
    const std::vector<MeterEntry> entries = meters();
    write_devices(text, devices_now());
    write_partitions(text);
    write_meters(text, entries);
    write_latency(text, entries);
    return text.take();
}

}  // namespace gpk
