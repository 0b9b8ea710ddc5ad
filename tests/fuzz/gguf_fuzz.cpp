#include "io/gguf.hpp"
#include "io_fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    try {
        const auto file = gpk::io::Gguf::parse(std::as_bytes(std::span(data, size)), "fuzz");
        read_all(file, size);
        for (const auto& [key, value] : file.metadata()) {
            try {
                file.numbers(key);
                file.integers(key);
            } catch (const gpk::Error&) {
                // The key is of another type.
            }
        }
    } catch (const gpk::Error& error) {
        if (error.kind() != gpk::ErrorKind::file) __builtin_trap();
    }
    return 0;
}
