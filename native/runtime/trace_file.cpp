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
        for (const TraceEvent* event : contents_.events) write(*event);
        json_.raw("\n]}\n");
        json_.flush();
    }

   private:
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
    int process(const TraceEvent& event) {
        const std::string device = event.device != nullptr ? *event.device : std::string();
        const auto [found, added] =
            processes_.try_emplace({device, event.tenant_id}, static_cast<int>(processes_.size()) + 1);
        if (added) {
            std::string name = device.empty() ? "host" : device;
            if (event.tenant != nullptr) {
                name += str(": ", *event.tenant, " (", to_string(event.qos), ")");
            }
            name_it("process_name", found->second, 0, name);
        }
        return found->second;
    }
    // Work lies with its stream, the rest with its topic.
    int track(int pid, const TraceEvent& event) {
        const bool on_stream = event.topic == observe::Topic::work && event.stream_id != 0;
        Track& track =
            tracks_[{pid, on_stream ? -1 : static_cast<int>(event.topic), on_stream ? event.stream_id : 0}];
        if (track.name.empty()) {
            track.name = on_stream ? str("stream ", event.stream_id) : std::string(to_string(event.topic));
        }
        auto lane = std::find_if(track.lanes.begin(), track.lanes.end(),
                                 [&](const auto& each) { return each.second <= event.start_ns; });
        if (lane == track.lanes.end()) {
            if (track.lanes.size() >= kMaxLanes) return track.lanes.back().first;
            lane = track.lanes.insert(lane, {++last_tid_, 0});
            const std::size_t number = track.lanes.size();
            name_it("thread_name", pid, last_tid_,
                    number == 1 ? track.name : str(track.name, " (", number, ")"));
        }
        lane->second = event.end_ns;
        return lane->first;
    }

    void write(const TraceEvent& event) {
        const int pid = process(event);
        const bool span = event.form == observe::Form::span, level = event.form == observe::Form::level;
        begin(span ? "X" : level ? "C" : "i", pid, level ? 0 : track(pid, event));
        json_.raw(",\"ts\":").microseconds(std::max<std::int64_t>(event.start_ns - contents_.start_ns, 0));
        if (span) json_.raw(",\"dur\":").microseconds(event.end_ns - event.start_ns);
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
    std::stable_sort(contents.events.begin(), contents.events.end(),
                     [](const auto* a, const auto* b) { return a->start_ns < b->start_ns; });
    platform::NewFile file("trace", path);
    Json json(file);
    TraceWriter(json, contents).write();
    file.commit();
}

}  // namespace gpk
