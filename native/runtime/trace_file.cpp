#include "runtime/trace_file.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <string_view>
#include <tuple>

#include "base/error.hpp"
#include "base/platform.hpp"
#include "base/utf8.hpp"

namespace gpk {

namespace {

constexpr std::size_t kMaxLanes = 32;

class Json {
   public:
    explicit Json(platform::NewFile& file) : file_(file) {}

    Json& raw(std::string_view text) {
        buffer_ += text;
        if (buffer_.size() > kFlush) flush();
        return *this;
    }
    Json& text(std::string_view text) {
        buffer_ += '"';
        while (!text.empty()) {
            const std::size_t length = utf8_length(text);
            const auto first = static_cast<unsigned char>(text.front());
            if (length == 0) {
                buffer_ += "\xef\xbf\xbd";  // U+FFFD
            } else if (first == '"' || first == '\\') {
                (buffer_ += '\\') += static_cast<char>(first);
            } else if (first < 0x20 || first == 0x7f) {
                static constexpr std::string_view kDigits = "0123456789abcdef";
                ((buffer_ += "\\u00") += kDigits[first >> 4]) += kDigits[first & 15];
            } else {
                buffer_ += text.substr(0, length);
            }
            text.remove_prefix(std::max<std::size_t>(length, 1));
        }
        buffer_ += '"';
        return *this;
    }
    template <class Number>
    Json& number(Number value) {
        if constexpr (std::is_floating_point_v<Number>) {
            if (!std::isfinite(value)) return raw("null");
        }
        char digits[40];
        const auto end = std::to_chars(digits, digits + sizeof(digits), value);
        buffer_.append(digits, end.ptr);
        return *this;
    }
    // Nanoseconds as microseconds, exactly.
    Json& microseconds(std::int64_t ns) {
        number(ns / 1000);
        const auto rest = static_cast<int>(ns % 1000);
        const char digits[] = {'.', static_cast<char>('0' + rest / 100),
                               static_cast<char>('0' + rest / 10 % 10), static_cast<char>('0' + rest % 10)};
        buffer_.append(digits, sizeof(digits));
        return *this;
    }
    void flush() {
        file_.write(buffer_);
        buffer_.clear();
    }

   private:
    static constexpr std::size_t kFlush = 1 << 16;
    platform::NewFile& file_;
    std::string buffer_;
};

constexpr std::string_view kKinds[] = {"kernel",         "copy_to_device", "copy_to_host",
                                       "copy_on_device", "fill",           "graph"};

// Tracks of a process by what they hold; spans that overlap lie beside each other in lanes.
struct Track {
    std::string name;
    std::vector<std::pair<int, std::int64_t>> lanes;  // tid, and when its last span ended
};

class TraceWriter {
   public:
    TraceWriter(Json& json, const TraceContents& contents) : json_(json), contents_(contents) {}

    void write() {
        json_.raw("{\"displayTimeUnit\":\"ns\",\"otherData\":{\"producer\":\"pygpukit " PYGPUKIT_VERSION
                  "\",\"process_id\":");
        json_.number(platform::process_id()).raw(",\"start_unix_ns\":\"").number(contents_.start_unix_ns);
        json_.raw("\",\"events\":").number(contents_.events.size());
        json_.raw(",\"dropped_events\":").number(contents_.dropped).raw("},\n\"traceEvents\":[");
        for (const Item& item : in_time(contents_.events)) {
            if (item.on_device) {
                write_device(*item.event);
            } else {
                write(*item.event);
            }
        }
        json_.raw("\n]}\n");
        json_.flush();
    }

   private:
    // A piece of work that the device timed is there twice: as the host queued it, and as the device ran it.
    struct Item {
        std::int64_t start_ns;
        const TraceEvent* event;
        bool on_device;
    };
    static std::vector<Item> in_time(const std::vector<const TraceEvent*>& events) {
        std::vector<Item> items;
        items.reserve(events.size());
        for (const TraceEvent* each : events) {
            items.push_back({each->start_ns, each, false});
            if (each->device_start_ns != 0) items.push_back({each->device_start_ns, each, true});
        }
        std::stable_sort(items.begin(), items.end(),
                         [](const Item& a, const Item& b) { return a.start_ns < b.start_ns; });
        return items;
    }

    void begin(std::string_view phase, int pid, int tid) {
        json_.raw(first_ ? "\n{\"ph\":\"" : ",\n{\"ph\":\"").raw(phase).raw("\",\"pid\":").number(pid);
        json_.raw(",\"tid\":").number(tid);
        first_ = false;
    }
    void name_it(std::string_view what, int pid, int tid, std::string_view name) {
        begin("M", pid, tid);
        json_.raw(",\"name\":\"").raw(what).raw("\",\"args\":{\"name\":").text(name).raw("}}");
    }

    // One process for each device and tenant; without a device, the host's.
    int process(const TraceEvent& event, bool of_host) {
        const std::string device = event.device != nullptr && !of_host ? *event.device : std::string();
        const auto [found, added] = processes_.try_emplace({device, of_host ? 0 : event.tenant_id},
                                                           static_cast<int>(processes_.size()) + 1);
        if (added) {
            std::string name = device.empty() ? "host" : device;
            if (event.tenant != nullptr && !of_host) {
                name += str(": ", *event.tenant, " (", to_string(event.qos), ")");
            }
            name_it("process_name", found->second, 0, name);
        }
        return found->second;
    }
    // Where something lies: work with its stream, the rest with its topic; what the host did of work that the
    // device timed with the host's thread.
    int track(int pid, const TraceEvent& event, bool of_host, std::int64_t start_ns, std::int64_t end_ns) {
        const bool on_stream = event.topic == observe::Topic::work && event.stream_id != 0;
        const int kind = of_host ? -2 : on_stream ? -1 : static_cast<int>(event.topic);
        Track& track = tracks_[{pid, kind, of_host ? event.thread : on_stream ? event.stream_id : 0}];
        if (track.name.empty()) {
            track.name = of_host     ? contents_.threads[event.thread]
                         : on_stream ? str("stream ", event.stream_id)
                                     : std::string(to_string(event.topic));
        }
        auto lane = std::find_if(track.lanes.begin(), track.lanes.end(),
                                 [&](const auto& each) { return each.second <= start_ns; });
        if (lane == track.lanes.end()) {
            if (track.lanes.size() >= kMaxLanes) return track.lanes.back().first;
            lane = track.lanes.insert(lane, {++last_tid_, 0});
            const std::size_t number = track.lanes.size();
            name_it("thread_name", pid, last_tid_,
                    number == 1 ? track.name : str(track.name, " (", number, ")"));
        }
        lane->second = end_ns;
        return lane->first;
    }

    Json& time(std::string_view name, std::int64_t ns) {
        return json_.raw(",\"").raw(name).raw("\":").microseconds(std::max<std::int64_t>(ns, 0));
    }

    void write(const TraceEvent& event) {
        const bool span = event.form == observe::Form::span, level = event.form == observe::Form::level;
        const bool timed = event.device_start_ns != 0;
        const int pid = process(event, timed);
        const int tid = level ? 0 : track(pid, event, timed, event.start_ns, event.end_ns);
        begin(span ? "X" : level ? "C" : "i", pid, tid);
        time("ts", event.start_ns - contents_.start_ns);
        if (span) time("dur", event.end_ns - event.start_ns);
        if (event.form == observe::Form::instant) json_.raw(",\"s\":\"t\"");
        json_.raw(",\"name\":").text(*event.name);
        if (level) {
            json_.raw(",\"args\":{\"value\":").number(event.amount).raw("}}");
            return;
        }
        json_.raw(",\"cat\":\"").raw(to_string(event.topic)).raw("\",\"args\":{\"thread\":");
        json_.text(contents_.threads[event.thread]);
        if (event.topic == observe::Topic::work) write_work(event);
        if (event.amount != 0) json_.raw(",\"bytes\":").number(event.amount);
        if (event.detail != nullptr) json_.raw(",\"detail\":").text(*event.detail);
        if (event.failed) json_.raw(",\"failed\":true");
        json_.raw("}}");
        if (timed) arrow("s", pid, tid, event, event.start_ns);
    }

    void write_device(const TraceEvent& event) {
        const int pid = process(event, false);
        const int tid = track(pid, event, false, event.device_start_ns, event.device_end_ns);
        begin("X", pid, tid);
        time("ts", event.device_start_ns - contents_.start_ns);
        time("dur", event.device_end_ns - event.device_start_ns);
        json_.raw(",\"name\":").text(*event.name).raw(",\"cat\":\"device\",\"args\":{\"timed\":true");
        write_work(event);
        json_.raw("}}");
        arrow("f\",\"bp\":\"e", pid, tid, event, event.device_start_ns);
    }
    // From where the host queued a piece of work to where the device ran it.
    void arrow(std::string_view phase, int pid, int tid, const TraceEvent& event, std::int64_t at_ns) {
        begin(phase, pid, tid);
        time("ts", at_ns - contents_.start_ns);
        json_.raw(",\"name\":\"queued\",\"cat\":\"queued\",\"id\":")
            .text(str(*event.device, "/", event.timed))
            .raw("}");
    }

    void write_work(const TraceEvent& event) {
        const auto dims = [this](std::string_view name, const Dim3& of) {
            json_.raw(",\"").raw(name).raw("\":[").number(of.x).raw(",").number(of.y).raw(",").number(of.z);
            json_.raw("]");
        };
        json_.raw(",\"kind\":\"").raw(kKinds[static_cast<int>(event.kind)]).raw("\"");
        if (event.kind == WorkKind::kernel) {
            dims("grid", event.config.grid);
            dims("block", event.config.block);
            json_.raw(",\"shared_bytes\":").number(event.config.shared_bytes);
        }
        json_.raw(",\"flops\":").number(event.cost.flops).raw(",\"cost_bytes\":").number(event.cost.bytes);
        if (event.captured) json_.raw(",\"captured\":true");
    }

    Json& json_;
    const TraceContents& contents_;
    bool first_ = true;
    int last_tid_ = 0;
    std::map<std::pair<std::string, std::uint64_t>, int> processes_;
    std::map<std::tuple<int, int, std::uint64_t>, Track> tracks_;
};

}  // namespace

void write_trace(const std::string& path, TraceContents contents) {
    platform::NewFile file("trace", path);
    Json json(file);
    TraceWriter(json, contents).write();
    file.commit();
}

}  // namespace gpk
