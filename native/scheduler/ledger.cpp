#include "scheduler/ledger.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include "base/error.hpp"
#include "base/log.hpp"

namespace gpk {

namespace {

constexpr std::string_view kHeader = "pygpukit ledger 1\n";
constexpr std::string_view kPrefix = "ledger-";
constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
constexpr int kMaxGroup = 4096;

// FNV-1a: a damaged line must not pass for a whole one.
std::uint64_t checksum(std::string_view text) {
    std::uint64_t sum = 0xcbf29ce484222325u;
    for (const char c : text) sum = (sum ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return sum;
}

std::string to_hex(std::string_view text) {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string out = "x";
    for (const char c : text) {
        out += kDigits[static_cast<unsigned char>(c) >> 4];
        out += kDigits[static_cast<unsigned char>(c) & 15];
    }
    return out;
}

bool from_hex(const std::string& hex, std::string* text) {
    if (hex.empty() || hex.front() != 'x' || hex.size() % 2 == 0) return false;
    if (hex.find_first_not_of("0123456789abcdef", 1) != std::string::npos) return false;
    for (std::size_t i = 1; i < hex.size(); i += 2) {
        *text += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
    return true;
}

bool is_share(double value) { return value >= 0 && value <= 1; }  // false for NaN

bool parse_entry(const std::string& body, LedgerEntry* entry) {
    std::istringstream fields(body);
    std::string name, groups;
    int qos = -1;
    Share& share = entry->share;
    fields >> entry->owner.pid >> entry->owner.started >> entry->owner.space >> entry->id >> name >> qos >>
        share.memory_bytes >> share.compute >> share.bandwidth >> groups;
    if (fields.fail() || !from_hex(name, &share.name) || qos < 0 || qos > 2 || !is_share(share.compute) ||
        !is_share(share.bandwidth)) {
        return false;
    }
    share.qos = static_cast<QosClass>(qos);
    std::istringstream list(groups == "-" ? "" : groups);
    for (std::string each; std::getline(list, each, ',');) {
        if (each.empty() || each.size() > 4 || each.find_first_not_of("0123456789") != std::string::npos) {
            return false;
        }
        const int group = std::stoi(each);
        if (group >= kMaxGroup) return false;
        share.groups.push_back(group);
    }
    return true;
}

bool shares_a_group(const Share& a, const Share& b) {
    return std::any_of(a.groups.begin(), a.groups.end(), [&](int group) {
        return std::find(b.groups.begin(), b.groups.end(), group) != b.groups.end();
    });
}

std::string holders(const std::vector<LedgerEntry>& entries) {
    std::string text;
    for (const LedgerEntry& each : entries) {
        text += str(text.empty() ? "" : "; ", "'", each.share.name, "' of process ", each.owner.pid, ": ",
                    each.share.memory_bytes, " bytes, ", each.share.groups.size(), " SM groups, bandwidth ",
                    each.share.bandwidth);
    }
    return text.empty() ? "no partition has anything" : text;
}

[[noreturn]] void no_room(ErrorKind kind, const std::string& what, const std::string& wanted,
                          const std::string& left, const std::vector<LedgerEntry>& others) {
    throw error(kind, {.call = "partition",
                       .argument = what,
                       .expected = str("at most what is free, ", left),
                       .got = str(wanted, " (", holders(others), ")"),
                       .fix = "ask for less, or destroy a partition"});
}

// "ledger-<device>-<boot>": what was written before the system's last start counts for nothing.
std::string boot_suffix() { return "-" + platform::boot_id().substr(0, 8); }

std::string path_of(Device& device) {
    const bool shared = device.is_cuda() || device.name() == "cpu";
    if (!shared) return {};
    std::string key = device.is_cuda() ? device.info().pci_bus_id : "cpu";
    if (key.empty()) key = device.name();
    for (char& c : key) {
        if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != ':') c = '_';
    }
    std::string failed;
    const std::string folder = platform::runtime_folder(&failed);
    if (folder.empty()) {
        log(LogLevel::warning, str("partitions of ", device.name(), " are not shared with other processes: ",
                                   failed, "; set PYGPUKIT_RUNTIME_DIR to a private folder"));
        return {};
    }
    return str(folder, "/", kPrefix, key, boot_suffix());
}

}  // namespace

std::string write_ledger(const std::vector<LedgerEntry>& entries) {
    std::string text(kHeader);
    for (const LedgerEntry& each : entries) {
        const Share& share = each.share;
        std::string groups;
        for (const int group : share.groups) groups += str(groups.empty() ? "" : ",", group);
        std::ostringstream body;
        body.precision(17);
        body << each.owner.pid << ' ' << each.owner.started << ' ' << each.owner.space << ' ' << each.id
             << ' ' << to_hex(share.name) << ' ' << static_cast<int>(share.qos) << ' ' << share.memory_bytes
             << ' ' << share.compute << ' ' << share.bandwidth << ' ' << (groups.empty() ? "-" : groups);
        text += str(checksum(body.str()), ' ', body.str(), '\n');
    }
    return text;
}

std::vector<LedgerEntry> parse_ledger(const std::string& text, int* damaged) {
    std::vector<LedgerEntry> entries;
    *damaged = 0;
    if (text.empty()) return entries;
    const bool known = text.starts_with(kHeader);
    if (!known) ++*damaged;
    std::istringstream lines(known ? text.substr(kHeader.size()) : text);
    for (std::string line; std::getline(lines, line);) {
        const auto space = line.find(' ');
        LedgerEntry entry;
        const bool whole = space != std::string::npos && space <= 20 &&
                           line.find_first_not_of("0123456789") == space &&
                           line.substr(0, space) == std::to_string(checksum(line.substr(space + 1))) &&
                           parse_entry(line.substr(space + 1), &entry);
        const bool fits =
            whole && std::none_of(entries.begin(), entries.end(), [&](const LedgerEntry& other) {
                return shares_a_group(other.share, entry.share);
            });
        if (fits) {
            entries.push_back(std::move(entry));
        } else {
            ++*damaged;
        }
    }
    return entries;
}

template <class Change>
void Ledger::update(Change&& change) {
    std::lock_guard lock(mutex_);
    const platform::Process now = platform::this_process();
    if (!(now == self_)) own_.clear();  // after a fork, what was there is the parent's
    self_ = now;
    if (path_.empty()) {
        std::vector<LedgerEntry> entries = own_;
        change(entries);
        own_ = std::move(entries);
        return;
    }
    platform::LockedFile file(path_);
    const std::string before = file.read(kMaxBytes);
    int damaged = 0;
    std::vector<LedgerEntry> entries = parse_ledger(before, &damaged);
    if (damaged > 0) log(LogLevel::warning, str("'", path_, "' was damaged; what was whole is kept"));
    std::erase_if(entries, [&](const LedgerEntry& each) {
        return each.owner == self_ || !platform::is_alive(each.owner);
    });
    // A process's own account counts, also where somebody emptied the file.
    for (const LedgerEntry& mine : own_) {
        for (const LedgerEntry& other : entries) {
            if (shares_a_group(other.share, mine.share)) {
                log(LogLevel::warning, str("'", path_, "' was changed by others: SM groups of '",
                                           mine.share.name, "' and '", other.share.name, "' overlap"));
            }
        }
    }
    entries.insert(entries.end(), own_.begin(), own_.end());
    change(entries);
    const std::string after = write_ledger(entries);
    if (after.size() > kMaxBytes) {
        throw error(ErrorKind::unsupported,
                    {.call = "partition",
                     .expected = str("a ledger of at most ", kMaxBytes, " bytes: '", path_, "'"),
                     .got = str(after.size()),
                     .fix = "make fewer partitions, or give them shorter names"});
    }
    if (after != before) file.write(after);
    std::erase_if(entries, [&](const LedgerEntry& each) { return !(each.owner == self_); });
    own_ = std::move(entries);
}

LedgerEntry Ledger::place(std::uint64_t id, Share wanted, int groups, const Capacity& capacity) {
    LedgerEntry made;
    update([&](std::vector<LedgerEntry>& entries) {
        std::vector<LedgerEntry> others = entries;
        std::erase_if(others, [&](const auto& each) { return each.owner == self_ && each.id == id; });
        if (id != 0 && others.size() == entries.size()) {
            throw error(ErrorKind::value, {.call = "partition",
                                           .expected = "one that this process has made",
                                           .got = str("'", wanted.name, "', which it has not")});
        }
        std::size_t memory_left = capacity.memory_bytes;
        double bandwidth_left = 1, compute_left = 1;
        std::set<int> taken;
        for (const LedgerEntry& each : others) {
            taken.insert(each.share.groups.begin(), each.share.groups.end());
            if (each.share.qos != QosClass::guaranteed) continue;
            memory_left -= std::min(memory_left, each.share.memory_bytes);
            bandwidth_left -= each.share.bandwidth;
            compute_left -= each.share.compute;
        }
        constexpr double kRounding = 1e-9;
        if (wanted.qos == QosClass::guaranteed) {
            if (wanted.memory_bytes > memory_left) {
                no_room(ErrorKind::memory, "memory", str(wanted.memory_bytes, " bytes"),
                        str(memory_left, " of ", capacity.memory_bytes, " bytes"), others);
            }
            if (wanted.bandwidth > bandwidth_left + kRounding) {
                no_room(ErrorKind::unsupported, "bandwidth", str(wanted.bandwidth),
                        str(std::max(bandwidth_left, 0.0)), others);
            }
            if (capacity.groups == 0 && wanted.compute > compute_left + kRounding) {
                no_room(ErrorKind::unsupported, "compute", str(wanted.compute),
                        str(std::max(compute_left, 0.0)), others);
            }
        }
        // What it has is kept as far as it goes: work that stays where it is needs no new place.
        std::vector<int> chosen = wanted.groups;
        if (chosen.size() > static_cast<std::size_t>(groups)) chosen.resize(static_cast<std::size_t>(groups));
        for (int group = 0; group < capacity.groups && chosen.size() < static_cast<std::size_t>(groups);
             ++group) {
            if (!taken.contains(group) && std::find(chosen.begin(), chosen.end(), group) == chosen.end()) {
                chosen.push_back(group);
            }
        }
        if (chosen.size() < static_cast<std::size_t>(groups)) {
            no_room(
                ErrorKind::unsupported, "compute", str(groups, " SM groups"),
                str(capacity.groups - static_cast<int>(taken.size()), " of ", capacity.groups, " SM groups"),
                others);
        }
        std::sort(chosen.begin(), chosen.end());
        wanted.groups = std::move(chosen);
        made = {self_, id != 0 ? id : next_id_++, std::move(wanted)};
        others.push_back(made);
        entries = std::move(others);
    });
    return made;
}

LedgerEntry Ledger::take(Share wanted, int groups, const Capacity& capacity) {
    wanted.groups.clear();
    return place(0, std::move(wanted), groups, capacity);
}

LedgerEntry Ledger::change(std::uint64_t id, Share wanted, int groups, const Capacity& capacity) {
    return place(id, std::move(wanted), groups, capacity);
}

void Ledger::give_back(std::uint64_t id) noexcept {
    try {
        update([&](std::vector<LedgerEntry>& entries) {
            std::erase_if(entries, [&](const auto& each) { return each.owner == self_ && each.id == id; });
        });
    } catch (const std::exception& failure) {
        // The file keeps it until the next change, or this process's end.
        std::lock_guard lock(mutex_);
        std::erase_if(own_, [&](const auto& each) { return each.id == id; });
        log(LogLevel::warning, failure.what());
    }
}

std::vector<LedgerEntry> Ledger::entries() {
    std::vector<LedgerEntry> all;
    update([&](std::vector<LedgerEntry>& entries) { all = entries; });
    return all;
}

DeviceLedger::DeviceLedger(Device& device) : ledger(std::make_shared<Ledger>(path_of(device))) {}

std::vector<LedgerView> read_ledgers() {
    std::string failed;
    const std::string folder = platform::runtime_folder(&failed);
    std::vector<LedgerView> views;
    if (folder.empty()) return views;
    const std::string suffix = boot_suffix();
    for (const std::string& path : platform::list_files(folder, std::string(kPrefix))) {
        if (!path.ends_with(suffix)) continue;
        std::string name = path.substr(path.rfind('/') + 1 + kPrefix.size());
        name.resize(name.size() - suffix.size());
        try {
            const std::string text = platform::LockedFile(path).read(kMaxBytes);
            int damaged = 0;
            std::vector<LedgerEntry> entries = parse_ledger(text, &damaged);
            std::erase_if(entries, [](const auto& each) { return !platform::is_alive(each.owner); });
            views.push_back({std::move(name), std::move(entries)});
        } catch (const Error& failure) {
            log(LogLevel::warning, failure.what());
        }
    }
    return views;
}

}  // namespace gpk
