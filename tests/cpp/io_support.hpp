// Model files in memory, for the tests of the readers.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "io/gguf.hpp"

namespace io_test {

using Bytes = std::vector<std::byte>;

template <class T>
void put(Bytes& bytes, T value) {
    const auto* raw = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), raw, raw + sizeof(T));
}
inline void put_text(Bytes& bytes, std::string_view text) {
    const auto raw = std::as_bytes(std::span(text));
    bytes.insert(bytes.end(), raw.begin(), raw.end());
}

inline Bytes safetensors(std::string_view header, std::size_t data_bytes) {
    Bytes file;
    put(file, std::uint64_t{header.size()});
    put_text(file, header);
    for (std::size_t i = 0; i < data_bytes; ++i) file.push_back(static_cast<std::byte>(i + 1));
    return file;
}

// Writes a GGUF file piece by piece; the caller sees to counts and offsets, right or wrong.
struct GgufWriter {
    Bytes bytes;

    GgufWriter(std::uint64_t tensors, std::uint64_t keys, std::uint32_t version = 3) {
        put_text(bytes, "GGUF");
        put(bytes, version);
        put(bytes, tensors);
        put(bytes, keys);
    }
    GgufWriter& string(std::string_view text) {
        put(bytes, std::uint64_t{text.size()});
        put_text(bytes, text);
        return *this;
    }
    GgufWriter& type(gpk::io::GgufType type) {
        put(bytes, static_cast<std::uint32_t>(type));
        return *this;
    }
    template <class T>
    GgufWriter& number(T value) {
        put(bytes, value);
        return *this;
    }
    template <class T>
    GgufWriter& key(std::string_view name, gpk::io::GgufType kind, T value) {
        return string(name).type(kind).number(value);
    }
    GgufWriter& key(std::string_view name, std::string_view value) {
        return string(name).type(gpk::io::GgufType::string).string(value);
    }
    // Dimensions in the file's order: the contiguous one first.
    GgufWriter& tensor(std::string_view name, std::initializer_list<std::uint64_t> ne, std::uint32_t type,
                       std::uint64_t offset) {
        string(name).number(static_cast<std::uint32_t>(ne.size()));
        for (const std::uint64_t extent : ne) number(extent);
        return number(type).number(offset);
    }
    Bytes with_data(std::size_t data_bytes, std::size_t alignment = 32) {
        Bytes file = bytes;
        while (file.size() % alignment != 0) file.push_back(std::byte{0});
        for (std::size_t i = 0; i < data_bytes; ++i) file.push_back(static_cast<std::byte>(i * 7 + 1));
        return file;
    }
};

// `call` must throw an Error (file) whose message holds each of `parts`.
inline void expect_file_error(const std::function<void()>& call,
                              std::initializer_list<std::string_view> parts) {
    try {
        call();
    } catch (const gpk::Error& e) {
        EXPECT_EQ(e.kind(), gpk::ErrorKind::file) << e.what();
        for (const std::string_view part : parts) {
            EXPECT_NE(std::string_view(e.what()).find(part), std::string_view::npos)
                << "no \"" << part << "\" in: " << e.what();
        }
        return;
    }
    ADD_FAILURE() << "no error";
}

// Reads every damaged form of `file`: each byte changed in several ways, and each shorter file. The
// bytes lie in an allocation of just their size, so that a sanitizer sees a read past the end.
// Returns how many still loaded; whatever else must be an Error.
inline int survive_damage(const Bytes& file, const std::function<void(std::span<const std::byte>)>& read) {
    int loaded = 0;
    const auto attempt = [&](std::span<const std::byte> damaged) {
        const auto copy = std::make_unique<std::byte[]>(damaged.size());
        std::memcpy(copy.get(), damaged.data(), damaged.size());
        try {
            read({copy.get(), damaged.size()});
            ++loaded;
        } catch (const gpk::Error& e) {
            EXPECT_EQ(e.kind(), gpk::ErrorKind::file) << e.what();
        }
    };
    for (std::size_t i = 0; i < file.size(); ++i) {
        attempt(std::span(file).first(i));
        for (const unsigned flip : {0x01u, 0x02u, 0x10u, 0x20u, 0x80u, 0xffu}) {
            Bytes damaged = file;
            damaged[i] ^= static_cast<std::byte>(flip);
            attempt(damaged);
        }
    }
    return loaded;
}

// A folder that goes with the test.
class TemporaryFolder {
   public:
    TemporaryFolder() {
        const auto* test = testing::UnitTest::GetInstance()->current_test_info();
        path_ = std::filesystem::temp_directory_path() /
                ("pygpukit-" + std::string(test->test_suite_name()) + "-" + test->name() + "-" +
                 std::to_string(testing::UnitTest::GetInstance()->start_timestamp()));
        std::filesystem::create_directories(path_);
    }
    ~TemporaryFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    std::string path(const std::string& name = {}) const {
        return (name.empty() ? path_ : path_ / name).string();
    }
    std::string write(const std::string& name, std::span<const std::byte> bytes) const {
        std::ofstream file(path(name), std::ios::binary);
        file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
        return path(name);
    }
    std::string write(const std::string& name, std::string_view text) const {
        return write(name, std::as_bytes(std::span(text)));
    }

   private:
    std::filesystem::path path_;
};

}  // namespace io_test
