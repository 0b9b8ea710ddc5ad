#include "jit/options.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <string_view>

#include "base/error.hpp"
#include "base/platform.hpp"
#include "base/sha256.hpp"
#include "jit/source.hpp"

namespace gpk::jit {

namespace {

enum class FlagUse { include_folder, define, undefine, pre_include, standard };

struct FlagSpec {
    std::string_view spelling;
    FlagUse use;
};

// Longest first where one begins another.
constexpr std::array kKnown = {
    FlagSpec{"--include-path", FlagUse::include_folder},
    FlagSpec{"-I", FlagUse::include_folder},
    FlagSpec{"--define-macro", FlagUse::define},
    FlagSpec{"-D", FlagUse::define},
    FlagSpec{"--undefine-macro", FlagUse::undefine},
    FlagSpec{"-U", FlagUse::undefine},
    FlagSpec{"--pre-include", FlagUse::pre_include},
    FlagSpec{"-include", FlagUse::pre_include},
    FlagSpec{"--std", FlagUse::standard},
    FlagSpec{"-std", FlagUse::standard},
};

constexpr std::array<std::string_view, 12> kRefused = {
    "-arch",    "--gpu-architecture",
    "-gencode", "-ptx",
    "--ptx",    "-dc",
    "-rdc",     "--device-c",
    "-dlto",    "--dlink-time-opt",
    "-cubin",   "--relocatable-device-code",
};

// The host compiler's spelling.
std::string for_host(FlagUse use, const std::string& value) {
    switch (use) {
        case FlagUse::include_folder: return "-I" + value;
        case FlagUse::define: return "-D" + value;
        case FlagUse::undefine: return "-U" + value;
        case FlagUse::standard: return "-std=" + value;
        case FlagUse::pre_include: break;  // two words, added by the caller
    }
    return "-include";
}

}  // namespace

Flags parse_flags(const std::vector<std::string>& flags) {
    Flags parsed;
    parsed.all = flags;
    for (std::size_t i = 0; i < flags.size(); ++i) {
        const std::string& flag = flags[i];
        for (const std::string_view refused : kRefused) {
            if (flag.rfind(refused, 0) == 0 &&
                (flag.size() == refused.size() || flag[refused.size()] == '=')) {
                throw error(ErrorKind::value,
                            {.call = "jit",
                             .argument = "options",
                             .expected = "flags that leave the architecture and the output to PyGPUkit",
                             .got = str("'", flag, "'"),
                             .fix = "leave it out: kernels are compiled for the device at hand"});
            }
        }
        const auto spec = std::find_if(kKnown.begin(), kKnown.end(), [&](const FlagSpec& known) {
            return flag.rfind(known.spelling, 0) == 0;
        });
        if (spec == kKnown.end()) continue;
        std::string value = flag.substr(spec->spelling.size());
        if (!value.empty() && value.front() == '=') value.erase(0, 1);
        if (value.empty() && i + 1 < flags.size()) value = flags[++i];
        if (value.empty()) {
            throw error(ErrorKind::value, {.call = "jit",
                                           .argument = "options",
                                           .expected = str("a value after '", flag, "'"),
                                           .got = "none"});
        }
        parsed.for_host.push_back(for_host(spec->use, value));
        if (spec->use == FlagUse::include_folder) parsed.include_folders.push_back(value);
        if (spec->use == FlagUse::pre_include) {
            parsed.for_host.push_back(value);
            parsed.pre_includes.push_back(value);
        }
    }
    return parsed;
}

namespace {

namespace fs = std::filesystem;

class IncludeScan {
   public:
    IncludeScan(const Flags& flags, const std::string& toolkit) : flags_(flags), toolkit_(toolkit) {}

    bool scan(std::string_view text, const std::string& own_folder) {
        for (const Token& token : tokenize(text)) {
            if (token.kind != TokenKind::directive) continue;
            const std::vector<Token> words = tokenize(token.text.substr(1));
            if (words.empty() || words[0].text != "include") continue;
            std::string_view rest = token.text.substr(1 + words[0].offset + words[0].text.size());
            rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
            const char close = rest.empty()          ? '\0'
                               : rest.front() == '"' ? '"'
                               : rest.front() == '<' ? '>'
                                                     : '\0';
            const std::size_t end = close == '\0' ? std::string_view::npos : rest.find(close, 1);
            if (end == std::string_view::npos) return false;
            if (!add(std::string(rest.substr(1, end - 1)), close == '"' ? own_folder : "")) return false;
        }
        return true;
    }

    bool add(const std::string& name, const std::string& own_folder) {
        std::vector<std::string> folders;
        if (!own_folder.empty()) folders.push_back(own_folder);
        folders.insert(folders.end(), flags_.include_folders.begin(), flags_.include_folders.end());
        for (const std::string& folder : folders) {
            const std::string path = name.front() == '/' ? name : folder + "/" + name;
            if (platform::file_exists(path)) return add_file(path);
        }
        std::error_code none;
        const fs::path known = fs::path(toolkit_) / name;
        if (!toolkit_.empty() && platform::file_exists(known.string())) {
            sum_.add_field(known.string()).add_field(std::to_string(fs::file_size(known, none)));
            sum_.add_field(std::to_string(fs::last_write_time(known, none).time_since_epoch().count()));
        } else {
            sum_.add_field("not found").add_field(name);
        }
        return true;
    }

    std::string hex() { return sum_.hex(); }

   private:
    bool add_file(const std::string& path) {
        if (!seen_.insert(path).second) return true;
        const platform::MappedFile file(path);
        const auto bytes = file.bytes();
        const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        sum_.add_field(path).add_field(text);
        return scan(text, fs::path(path).parent_path().string());
    }

    const Flags& flags_;
    const std::string& toolkit_;
    std::set<std::string> seen_;
    Sha256 sum_;
};

}  // namespace

bool included_identity(const std::string& source, const Flags& flags, const std::string& toolkit_include,
                       std::string* identity) {
    IncludeScan scan(flags, toolkit_include);
    // A file that -include names, and one that the source names in quotes, may be in the working folder.
    std::error_code none;
    const std::string here = fs::current_path(none).string();
    for (const std::string& name : flags.pre_includes) {
        if (!scan.add(name, here)) return false;
    }
    if (!scan.scan(source, here)) return false;
    *identity = scan.hex();
    return true;
}

}  // namespace gpk::jit
