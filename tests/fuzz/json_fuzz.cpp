#include <string_view>

#include "base/error.hpp"
#include "io/json.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    try {
        const gpk::io::Json json = gpk::io::Json::parse(text, "fuzz");
        if (!gpk::io::is_utf8(text)) __builtin_trap();
        // What was read can be quoted and read again.
        if (const std::string* value = json.string()) {
            if (*gpk::io::Json::parse(gpk::io::json_quoted(*value), "again").string() != *value)
                __builtin_trap();
        }
    } catch (const gpk::Error& error) {
        if (error.kind() != gpk::ErrorKind::file) __builtin_trap();
    }
    return 0;
}
