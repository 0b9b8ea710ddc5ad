#include "jit/host_compile.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "base/error.hpp"
#include "base/platform.hpp"
#include "base/sha256.hpp"
#include "jit/cache.hpp"
#include "jit/compile.hpp"
#include "jit/host_runtime.hpp"
#include "jit/host_shim.hpp"
#include "jit/options.hpp"
#include "jit/source.hpp"

namespace gpk::jit {

namespace {

// As gpk_config in the shim has it.
static_assert(sizeof(LaunchConfig) == 32 && offsetof(LaunchConfig, block) == 12 &&
              offsetof(LaunchConfig, shared_bytes) == 24 && offsetof(LaunchConfig, cluster) == 28);

// What they declare is in the shim.
constexpr std::array kEmptyHeaders = {"cuda_runtime.h", "cuda_fp16.h",      "cuda_bf16.h",
                                      "cuda.h",         "math_constants.h", "device_launch_parameters.h",
                                      "assert.h",       "cassert"};

bool is(const Token& token, std::string_view text) { return token.text == text; }

// Functions of the shim at which the threads of a block wait for one another.
bool meets(std::string_view name) {
    return name.rfind("__syncthreads", 0) == 0 || name == "__syncwarp" || name.rfind("__shfl", 0) == 0 ||
           name.rfind("__reduce_", 0) == 0 || name.rfind("__match_", 0) == 0 || name == "__ballot_sync" ||
           name == "__any_sync" || name == "__all_sync";
}

// A header of the user's own may hold such a call.
bool threads_meet(const std::vector<Token>& tokens, const Flags& flags) {
    if (!flags.pre_includes.empty()) return true;
    return std::any_of(tokens.begin(), tokens.end(), [](const Token& token) {
        if (token.kind == TokenKind::identifier) return meets(token.text);
        if (token.kind != TokenKind::directive) return false;
        const std::vector<Token> words = tokenize(token.text.substr(1));
        if (!words.empty() && is(words[0], "include")) return token.text.find('"') != std::string_view::npos;
        return std::any_of(words.begin(), words.end(), [](const Token& word) { return meets(word.text); });
    });
}

// `extern __shared__ T name[];` is not C++: in a function it becomes a pointer, outside an object that
// turns into one. Lines stay where they are.
std::string with_dynamic_shared(const std::string& source, const std::vector<Token>& tokens) {
    std::string result;
    std::size_t copied = 0, begin = 0;
    std::vector<bool> in_function = {false};
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i].kind == TokenKind::directive || is(tokens[i], ";")) {
            begin = i + 1;
        } else if (is(tokens[i], "{")) {
            const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(begin);
            const auto last = tokens.begin() + static_cast<std::ptrdiff_t>(i);
            const bool outside = std::any_of(first, last, [](auto& t) { return is(t, "namespace"); }) ||
                                 (last - first == 2 && is(*first, "extern"));
            in_function.push_back(!outside || in_function.back());
            begin = i + 1;
        } else if (is(tokens[i], "}")) {
            if (in_function.size() > 1) in_function.pop_back();
            begin = i + 1;
        } else if (is(tokens[i], "extern") && i + 1 < tokens.size() && is(tokens[i + 1], "__shared__")) {
            std::size_t end = i + 2;
            while (end < tokens.size() && !is(tokens[end], ";")) ++end;
            // T name [ ]
            if (end >= tokens.size() || end < i + 6 || !is(tokens[end - 1], "]") ||
                !is(tokens[end - 2], "[") || tokens[end - 3].kind != TokenKind::identifier) {
                continue;
            }
            std::string type;
            for (std::size_t k = i + 2; k < end - 3; ++k) {
                if (is(tokens[k], "__align__") || is(tokens[k], "alignas") ||
                    is(tokens[k], "__attribute__")) {
                    int depth = 0;
                    do {
                        ++k;
                        depth += is(tokens[k], "(") - is(tokens[k], ")");
                    } while (depth > 0 && k + 1 < end - 3);
                    continue;
                }
                type += (type.empty() ? "" : " ") + std::string(tokens[k].text);
            }
            const std::string name(tokens[end - 3].text);
            const std::size_t after = tokens[end - 1].offset + 1;
            result += source.substr(copied, tokens[i].offset - copied);
            result += in_function.back() ? str(type, "* ", name, " = gpk_dynamic_shared<", type, ">()")
                                         : str("static const gpk_dynamic<", type, "> ", name, " = {}");
            const std::string_view replaced =
                std::string_view(source).substr(tokens[i].offset, after - tokens[i].offset);
            result.append(static_cast<std::size_t>(std::count(replaced.begin(), replaced.end(), '\n')), '\n');
            copied = after;
            i = end - 1;
        }
    }
    return result + source.substr(copied);
}

std::string unit_text(const std::string& source, const Signature& signature, const std::vector<Token>& tokens,
                      const std::string& file, bool meet) {
    return str(kHostShim, "#line 1 \"", file, "\"\n", with_dynamic_shared(source, tokens),
               "\n#line 1 \"entry\"\n", "static_assert(gpk_kernel<&::", signature.name,
               ">::params_bytes() == ", signature.params_bytes, ", \"parameters as PyGPUkit read them\");\n",
               "gpk_export void gpk_host_start(const gpk_runtime* runtime) { gpk_rt = *runtime; }\n",
               "gpk_export void gpk_host_entry(const void* params, const gpk_config& config) {\n",
               "    gpk_kernel<&::", signature.name, ">::run<", meet ? "true" : "false",
               ">(params, config);\n}\n");
}

std::string compile_library(const std::string& compiler, const std::string& unit, const std::string& source,
                            const Signature& signature, const std::string& file, const Flags& flags) {
    const platform::TemporaryFolder folder;
    const auto put = [&](const std::string& name, std::string_view text) {
        if (!platform::replace_file(folder.path() + "/" + name, text)) {
            throw error(ErrorKind::file, {.call = "jit", .got = str("cannot write to ", folder.path())});
        }
    };
    put("unit.cpp", unit);
    for (const char* header : kEmptyHeaders) put(header, "");
    std::error_code none;
    const std::string library = folder.path() + "/kernel.so";
    std::vector<std::string> arguments = {compiler,
                                          "-std=c++17",
                                          "-O2",
                                          "-shared",
                                          "-fPIC",
                                          "-fvisibility=hidden",
                                          "-fno-strict-aliasing",
                                          "-ffp-contract=off",
                                          "-w"};
    arguments.insert(arguments.end(), flags.for_host.begin(), flags.for_host.end());
    for (const std::string& more :
         {"-I" + folder.path(), std::string("-iquote"), std::filesystem::current_path(none).string(),
          std::string("-o"), library, folder.path() + "/unit.cpp"}) {
        arguments.push_back(more);
    }
    std::string log;
    const int status = platform::run_program(arguments, &log);
    if (status != 0) {
        const bool ran = status > 0;
        throw error(
            ErrorKind::compile,
            {.call = str("jit: kernel '", signature.name, "' does not compile for the simulated device"),
             .got = "\n" + (ran ? log_with_lines(log, file, source) : str(compiler, ": ", log)),
             .fix = "device 'cpu' runs the portable part of CUDA C++, with the machine's compiler"});
    }
    auto bytes = platform::read_own_file(library, std::size_t{256} << 20);
    if (!bytes)
        throw error(ErrorKind::file, {.call = "jit", .got = str(compiler, " left no readable library")});
    return std::move(*bytes);
}

HostTwin open_twin(const std::string& path) {
    std::string reason;
    void* const library = platform::open_library(path, &reason);
    void* const start = library == nullptr ? nullptr : platform::find_symbol(library, "gpk_host_start");
    void* const entry = library == nullptr ? nullptr : platform::find_symbol(library, "gpk_host_entry");
    if (start == nullptr || entry == nullptr) {
        throw error(ErrorKind::compile,
                    {.call = "jit", .got = str("the compiled kernel cannot be loaded: ", reason)});
    }
    reinterpret_cast<void (*)(const HostRuntime*)>(start)(&host_runtime());
    return reinterpret_cast<HostTwin>(entry);
}

}  // namespace

std::string host_compiler() {
    if (const auto chosen = platform::environment("PYGPUKIT_CXX")) {
        if (chosen->front() == '/' && platform::file_exists(*chosen)) return *chosen;
        throw error(ErrorKind::value, {.call = "PYGPUKIT_CXX",
                                       .expected = "the absolute path of a C++ compiler",
                                       .got = str("'", *chosen, "'")});
    }
    std::vector<std::string> names = {"c++", "g++", "clang++"};
    if (const auto chosen = platform::environment("CXX")) {
        if (chosen->front() == '/' && platform::file_exists(*chosen)) return *chosen;
        if (chosen->find('/') == std::string::npos) names.insert(names.begin(), *chosen);
    }
    for (const std::string& name : names) {
        if (std::string program = platform::find_program(name); !program.empty()) return program;
    }
    return {};
}

HostCompiled compile_host(const std::string& source, const Signature& signature,
                          const std::vector<std::string>& given) {
    if (source.find('\0') != std::string::npos) {
        throw error(ErrorKind::value,
                    {.call = "jit", .argument = "source", .expected = "text", .got = "a zero byte in it"});
    }
    const std::string compiler = host_compiler();
    if (compiler.empty()) {
        throw error(ErrorKind::unsupported,
                    {.call = "jit",
                     .expected = "a C++ compiler, which compiles kernels for the simulated device",
                     .got = "none on this machine",
                     .fix = "install one (apt-get install g++), set PYGPUKIT_CXX to its path, or use a GPU"});
    }
    const Flags flags = parse_flags(given);
    const std::vector<Token> tokens = tokenize(source);
    const std::string file = signature.name.substr(signature.name.rfind(':') + 1) + ".cu";
    HostCompiled result;
    result.threads_meet = threads_meet(tokens, flags);
    const std::string unit = unit_text(source, signature, tokens, file, result.threads_meet);

    std::string headers;
    const bool keep = included_identity(source, flags, "", &headers);
    Sha256 sum;
    sum.add_field("host 1").add_field(platform::file_identity(compiler)).add_field(unit).add_field(headers);
    for (const std::string& flag : flags.for_host) sum.add_field(flag);
    const std::string key = sum.hex();
    const Cache cache(keep ? cache_folder() : "");
    if (cache.read(key)) {
        result.from_cache = true;
    } else {
        const std::string library = compile_library(compiler, unit, source, signature, file, flags);
        if (!cache.write(key, library)) {
            // Nowhere to keep it: loaded from a file that goes again; what is loaded stays.
            const platform::TemporaryFolder folder;
            const std::string path = folder.path() + "/" + key + ".so";
            if (!platform::replace_file(path, library)) {
                throw error(ErrorKind::file, {.call = "jit", .got = str("cannot write to ", folder.path())});
            }
            result.twin = open_twin(path);
            return result;
        }
    }
    result.twin = open_twin(cache.path(key));
    return result;
}

}  // namespace gpk::jit
