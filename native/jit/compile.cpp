#include "jit/compile.hpp"

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "base/error.hpp"
#include "base/platform.hpp"
#include "base/sha256.hpp"
#include "driver/libraries.hpp"
#include "jit/cache.hpp"
#include "jit/options.hpp"
#include "jit/source.hpp"

namespace gpk::jit {

namespace {

using nvrtcResult = int;
using nvrtcProgram = struct _nvrtcProgram*;
constexpr nvrtcResult NVRTC_SUCCESS = 0;
constexpr nvrtcResult NVRTC_ERROR_INVALID_OPTION = 5;
constexpr nvrtcResult NVRTC_ERROR_COMPILATION = 6;

#define GPK_NVRTC_CALLS(X)                                                                                  \
    X(nvrtcVersion, nvrtcResult, (int* major, int* minor))                                                  \
    X(nvrtcGetErrorString, const char*, (nvrtcResult code))                                                 \
    X(nvrtcGetNumSupportedArchs, nvrtcResult, (int* count))                                                 \
    X(nvrtcGetSupportedArchs, nvrtcResult, (int* archs))                                                    \
    X(nvrtcCreateProgram, nvrtcResult,                                                                      \
      (nvrtcProgram * program, const char* source, const char* name, int count, const char* const* headers, \
       const char* const* header_names))                                                                    \
    X(nvrtcDestroyProgram, nvrtcResult, (nvrtcProgram * program))                                           \
    X(nvrtcCompileProgram, nvrtcResult, (nvrtcProgram program, int count, const char* const* options))      \
    X(nvrtcGetCUBINSize, nvrtcResult, (nvrtcProgram program, std::size_t* size))                            \
    X(nvrtcGetCUBIN, nvrtcResult, (nvrtcProgram program, char* cubin))                                      \
    X(nvrtcGetProgramLogSize, nvrtcResult, (nvrtcProgram program, std::size_t* size))                       \
    X(nvrtcGetProgramLog, nvrtcResult, (nvrtcProgram program, char* log))                                   \
    X(nvrtcAddNameExpression, nvrtcResult, (nvrtcProgram program, const char* expression))                  \
    X(nvrtcGetLoweredName, nvrtcResult, (nvrtcProgram program, const char* expression, const char** name))

struct Nvrtc {
#define GPK_DECLARE(name, result, arguments) result(*name) arguments = nullptr;
    GPK_NVRTC_CALLS(GPK_DECLARE)
#undef GPK_DECLARE
    NvrtcStatus status;
    std::string include_folder;  // of the CUDA headers; empty where there are none
    std::vector<int> archs;
};

void load(Nvrtc& nvrtc, const FoundLibrary& library) {
    nvrtc.status = {library.status.path, library.status.version, library.status.problem};
    if (library.handle == nullptr) return;
    std::string missing;
#define GPK_RESOLVE(name, result, arguments)                                                           \
    nvrtc.name = reinterpret_cast<decltype(nvrtc.name)>(platform::find_symbol(library.handle, #name)); \
    if (nvrtc.name == nullptr) missing += " " #name;
    GPK_NVRTC_CALLS(GPK_RESOLVE)
#undef GPK_RESOLVE
    if (!missing.empty()) {
        nvrtc.status.problem = str(library.status.path, " lacks", missing);
        return;
    }
    const std::string folder = library.status.path.substr(0, library.status.path.rfind('/'));
    // NVRTC opens its builtins by bare name; found here first, they need no search path.
    for (const std::string& file :
         platform::list_files(folder, "libnvrtc-builtins.so." + nvrtc.status.version)) {
        std::string ignored;
        platform::open_library(file, &ignored);
    }
    for (const char* place : {"/../include", "/../../cuda_runtime/include"}) {
        if (nvrtc.include_folder.empty() && platform::file_exists(folder + place + "/cuda_fp16.h")) {
            nvrtc.include_folder = folder + place;
        }
    }
    int count = 0;
    if (nvrtc.nvrtcGetNumSupportedArchs(&count) == NVRTC_SUCCESS && count > 0 && count < 1000) {
        nvrtc.archs.resize(static_cast<std::size_t>(count));
        if (nvrtc.nvrtcGetSupportedArchs(nvrtc.archs.data()) != NVRTC_SUCCESS) nvrtc.archs.clear();
    }
}

// Asked again, as long as there is none, since the library folders may have been told meanwhile.
const Nvrtc& the_nvrtc() {
    static std::mutex mutex;
    static auto* nvrtc = new Nvrtc;
    static bool loaded = false;
    std::lock_guard lock(mutex);
    if (!loaded) {
        const FoundLibrary& library = find_library(Library::nvrtc);
        load(*nvrtc, library);
        loaded = library.handle != nullptr;
    }
    return *nvrtc;
}

// Headers that kernels commonly name and that neither NVRTC nor the CUDA headers have.
constexpr const char* kStdint = R"(#pragma once
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef long long intptr_t;
typedef unsigned long long uintptr_t;
namespace std {
using ::int8_t; using ::int16_t; using ::int32_t; using ::int64_t; using ::intptr_t;
using ::uint8_t; using ::uint16_t; using ::uint32_t; using ::uint64_t; using ::uintptr_t;
}
)";
constexpr const char* kStddef = R"(#pragma once
namespace std { using size_t = decltype(sizeof(0)); using ptrdiff_t = decltype((char*)0 - (char*)0); }
using std::ptrdiff_t;
)";
constexpr const char* kHeaderNames[] = {"stdint.h", "cstdint", "stddef.h", "cstddef"};
constexpr const char* kHeaders[] = {kStdint, kStdint, kStddef, kStddef};

class Program {
   public:
    Program(const Nvrtc& nvrtc, const std::string& source, const std::string& file) : nvrtc_(nvrtc) {
        check("nvrtcCreateProgram", nvrtc.nvrtcCreateProgram(&program_, source.c_str(), file.c_str(),
                                                             std::size(kHeaders), kHeaders, kHeaderNames));
    }
    ~Program() { nvrtc_.nvrtcDestroyProgram(&program_); }
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    nvrtcProgram get() const { return program_; }
    void check(const char* call, nvrtcResult code) const {
        if (code == NVRTC_SUCCESS) return;
        throw error(ErrorKind::compile,
                    {.call = call, .got = str(nvrtc_.nvrtcGetErrorString(code), " (", code, ")")});
    }
    std::string log() const {
        std::size_t size = 0;
        if (nvrtc_.nvrtcGetProgramLogSize(program_, &size) != NVRTC_SUCCESS || size <= 1) return {};
        std::string text(size, '\0');
        if (nvrtc_.nvrtcGetProgramLog(program_, text.data()) != NVRTC_SUCCESS) return {};
        text.resize(size - 1);
        return text;
    }

   private:
    const Nvrtc& nvrtc_;
    nvrtcProgram program_ = nullptr;
};

// sm_90 and newer have code that only the exact architecture runs, with its tensor and copy instructions;
// the device at hand is that one.
std::string architecture(int sm) { return str("sm_", sm, sm >= 90 ? "a" : ""); }

void check_architecture(const Nvrtc& nvrtc, int sm) {
    if (nvrtc.archs.empty() || std::find(nvrtc.archs.begin(), nvrtc.archs.end(), sm) != nvrtc.archs.end())
        return;
    throw error(ErrorKind::unsupported,
                {.call = "jit",
                 .expected = str("an NVRTC that knows SM ", sm),
                 .got = str("NVRTC ", nvrtc.status.version, " (", nvrtc.status.path, "), which knows SM ",
                            *std::min_element(nvrtc.archs.begin(), nvrtc.archs.end()), " to ",
                            *std::max_element(nvrtc.archs.begin(), nvrtc.archs.end())),
                 .fix = "install a newer one: pip install --upgrade nvidia-cuda-nvrtc"});
}

Compiled run_nvrtc(const Nvrtc& nvrtc, const std::string& source, const Signature& signature,
                   const std::vector<std::string>& options) {
    const std::string file = signature.name.substr(signature.name.rfind(':') + 1) + ".cu";
    const Program program(nvrtc, source, file);
    if (!signature.extern_c) {
        program.check("nvrtcAddNameExpression",
                      nvrtc.nvrtcAddNameExpression(program.get(), signature.name.c_str()));
    }
    std::vector<const char*> raw;
    for (const std::string& option : options) raw.push_back(option.c_str());
    const nvrtcResult code =
        nvrtc.nvrtcCompileProgram(program.get(), static_cast<int>(raw.size()), raw.data());
    if (code == NVRTC_ERROR_COMPILATION || code == NVRTC_ERROR_INVALID_OPTION) {
        const std::string log = program.log();
        const bool header = log.find("could not open source file") != std::string::npos;
        throw error(
            ErrorKind::compile,
            {.call = str("jit: kernel '", signature.name, "' does not compile"),
             .got = "\n" + log_with_lines(log, file, source),
             .fix = header && nvrtc.include_folder.empty()
                        ? "the CUDA headers come with: pip install nvidia-cuda-runtime nvidia-cuda-crt"
                        : ""});
    }
    program.check("nvrtcCompileProgram", code);
    Compiled result;
    std::size_t size = 0;
    program.check("nvrtcGetCUBINSize", nvrtc.nvrtcGetCUBINSize(program.get(), &size));
    result.image.resize(size);
    program.check("nvrtcGetCUBIN", nvrtc.nvrtcGetCUBIN(program.get(), result.image.data()));
    result.symbol = signature.name.substr(signature.name.rfind(':') + 1);
    if (!signature.extern_c) {
        const char* lowered = nullptr;
        program.check("nvrtcGetLoweredName",
                      nvrtc.nvrtcGetLoweredName(program.get(), signature.name.c_str(), &lowered));
        result.symbol = lowered;
    }
    return result;
}

}  // namespace

NvrtcStatus nvrtc_status() { return the_nvrtc().status; }
bool is_nvrtc_available() { return the_nvrtc().status.problem.empty(); }

std::string log_with_lines(std::string_view log, std::string_view file, std::string_view source) {
    std::string text(log);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    // "scale.cu(3): error: ..." by NVRTC, "scale.cu:3:5: error: ..." by host compilers
    for (std::size_t at = text.find("error"); at != std::string::npos; at = text.find("error", at + 1)) {
        const std::size_t begin = text.rfind('\n', at) == std::string::npos ? 0 : text.rfind('\n', at) + 1;
        if (text.compare(begin, file.size(), file) != 0) continue;
        const char mark = begin + file.size() < text.size() ? text[begin + file.size()] : '\0';
        if (mark != '(' && mark != ':') continue;
        const std::size_t line = std::strtoul(text.c_str() + begin + file.size() + 1, nullptr, 10);
        if (line > 0) return text + "\n" + numbered_lines(source, line);
    }
    return text;
}

Compiled compile_cubin(const std::string& source, const Signature& signature, int sm,
                       const std::vector<std::string>& flags) {
    const Nvrtc& nvrtc = the_nvrtc();
    if (!nvrtc.status.problem.empty()) {
        throw error(ErrorKind::unsupported,
                    {.call = "jit",
                     .got = str("NVRTC JIT compiler not available (", nvrtc.status.problem, ")"),
                     .fix = "pip install nvidia-cuda-nvrtc, or set PYGPUKIT_NVRTC to the library's path"});
    }
    if (source.find('\0') != std::string::npos) {
        throw error(ErrorKind::value,
                    {.call = "jit", .argument = "source", .expected = "text", .got = "a zero byte in it"});
    }
    const Flags parsed = parse_flags(flags);
    check_architecture(nvrtc, sm);
    std::vector<std::string> options = {"--gpu-architecture=" + architecture(sm)};
    options.insert(options.end(), parsed.all.begin(), parsed.all.end());
    if (!nvrtc.include_folder.empty()) options.push_back("--include-path=" + nvrtc.include_folder);

    std::string headers;
    const bool keep = included_identity(source, parsed, nvrtc.include_folder, &headers);
    Sha256 sum;
    sum.add_field("cubin 1").add_field(nvrtc.status.version).add_field(signature.name).add_field(source);
    sum.add_field(headers).add_field(kStdint).add_field(kStddef);
    for (const std::string& option : options) sum.add_field(option);
    const std::string key = sum.hex();

    // An entry is the symbol, a zero byte, and the cubin.
    const Cache cache(keep ? cache_folder() : "");
    if (const auto known = cache.read(key)) {
        if (const std::size_t end = known->find('\0'); end != std::string::npos) {
            return {known->substr(end + 1), known->substr(0, end), true};
        }
    }
    Compiled result = run_nvrtc(nvrtc, source, signature, options);
    cache.write(key, result.symbol + '\0' + result.image);
    return result;
}

}  // namespace gpk::jit
