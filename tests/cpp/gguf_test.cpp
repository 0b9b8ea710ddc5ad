#include "io/gguf.hpp"

#include <sys/stat.h>

#include "io/dequantize.hpp"
#include "io_support.hpp"

namespace {

using namespace gpk;
using namespace gpk::io;
using io_test::Bytes;
using io_test::expect_file_error;
using io_test::GgufWriter;

constexpr std::uint32_t kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ8_0 = 8, kQ4_K = 12, kIQ4_NL = 20, kI32 = 26;

Gguf parse(const Bytes& file) { return Gguf::parse(file, "m.gguf"); }

// Every value type once, and two tensors.
GgufWriter sample() {
    GgufWriter writer(2, 16);
    writer.key("u8", GgufType::uint8, std::uint8_t{200})
        .key("i8", GgufType::int8, std::int8_t{-5})
        .key("u16", GgufType::uint16, std::uint16_t{60000})
        .key("i16", GgufType::int16, std::int16_t{-300})
        .key("u32", GgufType::uint32, std::uint32_t{4000000000})
        .key("i32", GgufType::int32, std::int32_t{-70000})
        .key("f32", GgufType::float32, 0.5f)
        .key("flag", GgufType::bool_, std::uint8_t{1})
        .key("general.architecture", "llama")
        .key("u64", GgufType::uint64, UINT64_MAX)
        .key("i64", GgufType::int64, INT64_MIN)
        .key("f64", GgufType::float64, 1e300);
    writer.string("tokens").type(GgufType::array).type(GgufType::string).number(std::uint64_t{2});
    writer.string("a").string("");
    writer.string("scores").type(GgufType::array).type(GgufType::float32).number(std::uint64_t{2});
    writer.number(1.5f).number(-2.0f);
    writer.string("types").type(GgufType::array).type(GgufType::int8).number(std::uint64_t{3});
    writer.number(std::int8_t{-1}).number(std::int8_t{0}).number(std::int8_t{1});
    writer.string("nested").type(GgufType::array).type(GgufType::array).number(std::uint64_t{1});
    writer.type(GgufType::uint8).number(std::uint64_t{1}).number(std::uint8_t{9});
    writer.tensor("w", {3, 2}, kF32, 0).tensor("q", {32, 2}, kQ4_0, 32);
    return writer;
}

TEST(Gguf, ReadsMetadata) {
    const Bytes bytes = sample().with_data(68);
    const Gguf file = parse(bytes);
    EXPECT_EQ(file.version(), 3u);
    EXPECT_EQ(file.metadata().size(), 16u);
    EXPECT_EQ(file.integer("u8"), 200);
    EXPECT_EQ(file.integer("i8"), -5);
    EXPECT_EQ(file.integer("u16"), 60000);
    EXPECT_EQ(file.integer("i16"), -300);
    EXPECT_EQ(file.integer("u32"), 4000000000);
    EXPECT_EQ(file.integer("i32"), -70000);
    EXPECT_EQ(file.integer("i64"), INT64_MIN);
    EXPECT_EQ(file.number("f32"), 0.5);
    EXPECT_EQ(file.number("f64"), 1e300);
    EXPECT_EQ(file.number("i8"), -5.0);
    EXPECT_EQ(file.number("u64"), 18446744073709551616.0);
    EXPECT_TRUE(file.boolean("flag", false));
    EXPECT_EQ(file.string("general.architecture"), "llama");
    EXPECT_EQ(file.strings("tokens"), (std::vector<std::string>{"a", ""}));
    EXPECT_EQ(file.numbers("scores"), (std::vector<double>{1.5, -2.0}));
    EXPECT_EQ(file.integers("types"), (std::vector<std::int64_t>{-1, 0, 1}));
    EXPECT_EQ(file.numbers("types"), (std::vector<double>{-1, 0, 1}));
    const auto& nested = *std::get<std::shared_ptr<const GgufArray>>(file.find_metadata("nested")->value);
    ASSERT_EQ(nested.arrays.size(), 1u);
    EXPECT_EQ(nested.arrays[0].count, 1u);

    EXPECT_EQ(file.integer("none", 7), 7);
    EXPECT_EQ(file.number("none", 0.25), 0.25);
    EXPECT_EQ(file.string("none", "x"), "x");
    EXPECT_TRUE(file.boolean("none", true));
    EXPECT_EQ(file.find_metadata("none"), nullptr);
}

TEST(Gguf, NamesKeyExpectedAndFoundType) {
    const Bytes bytes = sample().with_data(68);
    const Gguf file = parse(bytes);
    expect_file_error([&] { file.integer("none"); }, {"m.gguf: key 'none'", "an integer", "no such key"});
    expect_file_error([&] { file.strings("none"); }, {"key 'none'", "an array of strings", "no such key"});
    expect_file_error([&] { file.integer("f32"); }, {"key 'f32'", "an integer", "got float32"});
    expect_file_error([&] { file.integer("flag", 3); }, {"key 'flag'", "an integer", "got bool"});
    expect_file_error([&] { file.integer("u64"); }, {"key 'u64'", "below 2**63"});
    expect_file_error([&] { file.number("tokens"); },
                      {"key 'tokens'", "a number", "got an array of 2 string"});
    expect_file_error([&] { file.string("u8"); }, {"key 'u8'", "a string", "got uint8"});
    expect_file_error([&] { file.string("u8", "x"); }, {"key 'u8'", "a string", "got uint8"});
    expect_file_error([&] { file.boolean("u8", true); }, {"key 'u8'", "a bool", "got uint8"});
    expect_file_error([&] { file.strings("scores"); }, {"key 'scores'", "an array of strings", "2 float32"});
    expect_file_error([&] { file.strings("u8"); }, {"key 'u8'", "an array of strings", "got uint8"});
    expect_file_error([&] { file.integers("scores"); },
                      {"key 'scores'", "an array of integers", "2 float32"});
    expect_file_error([&] { file.numbers("tokens"); }, {"key 'tokens'", "an array of numbers", "2 string"});
}

TEST(Gguf, ReadsTensorsRowMajor) {
    const Bytes bytes = sample().with_data(68);
    const Gguf file = parse(bytes);
    EXPECT_EQ(file.names(), (std::vector<std::string>{"w", "q"}));
    const TensorView& w = file.tensor("w");
    EXPECT_EQ(w.shape, (Dims{2, 3}));
    EXPECT_EQ(w.dtype, DType::float32);
    EXPECT_EQ(w.bytes.size(), 24u);
    EXPECT_EQ(w.bytes[0], std::byte{1});
    const TensorView& q = file.tensor("q");
    EXPECT_EQ(q.type, StoredType::q4_0);
    EXPECT_EQ(q.shape, (Dims{2, 32}));
    EXPECT_EQ(q.bytes.size(), 36u);
    EXPECT_EQ(q.bytes[0], static_cast<std::byte>(32 * 7 + 1));
    expect_file_error([&] { file.tensor("v"); }, {"m.gguf", "'v'", "among 2"});
}

TEST(Gguf, ReadsVersion2AndOtherAlignments) {
    GgufWriter writer(2, 1, 2);
    writer.key("general.alignment", GgufType::uint32, std::uint32_t{8});
    writer.tensor("a", {3}, kF16, 0).tensor("b", {}, kI32, 8);
    const Bytes bytes = writer.with_data(12, 8);
    const Gguf file = parse(bytes);
    EXPECT_EQ(file.version(), 2u);
    EXPECT_EQ(file.tensor("a").bytes.size(), 6u);
    EXPECT_EQ(file.tensor("b").shape, Dims{});
    EXPECT_EQ(file.tensor("b").bytes[0], static_cast<std::byte>(8 * 7 + 1));
    for (const std::uint32_t bad : {0u, 24u, 1u << 21, UINT32_MAX}) {
        GgufWriter other(0, 1);
        other.key("general.alignment", GgufType::uint32, bad);
        expect_file_error([&] { parse(other.bytes); },
                          {"general.alignment", "a power of two", std::to_string(bad)});
    }
    GgufWriter other(0, 1);
    other.key("general.alignment", "32");
    expect_file_error([&] { parse(other.bytes); }, {"general.alignment", "an integer", "got string"});
}

TEST(Gguf, ReadsNothingAtAll) {
    const Gguf file = parse(GgufWriter(0, 0).bytes);
    EXPECT_TRUE(file.tensors().empty());
    EXPECT_TRUE(file.metadata().empty());
}

TEST(Gguf, RefusesOtherFiles) {
    expect_file_error([] { parse({}); }, {"m.gguf", "magic number"});
    expect_file_error([] { parse(Bytes(64)); }, {"a GGUF file"});
    expect_file_error([] { parse(GgufWriter(0, 0, 1).bytes); }, {"GGUF version 2 or 3", "version 1"});
    expect_file_error([] { parse(GgufWriter(0, 0, 4).bytes); }, {"version 4"});
    expect_file_error([] { parse(GgufWriter(0, 0, 3u << 24).bytes); },
                      {"little endian", "a big-endian file"});
    expect_file_error([] { parse(GgufWriter(UINT64_MAX, 0).bytes); }, {"the number of tensors", "at most 0"});
    expect_file_error([] { parse(GgufWriter(0, 1'000'000).bytes); }, {"the number of keys", "1000000"});
}

TEST(Gguf, RefusesBadMetadata) {
    const auto read = [](const auto& write) {
        GgufWriter writer(0, 1);
        write(writer);
        writer.number(std::uint64_t{0}).number(std::uint64_t{0});
        parse(writer.bytes);
    };
    expect_file_error([&] { read([](GgufWriter& w) { w.number(UINT64_MAX); }); }, {"a metadata key"});
    expect_file_error([&] { read([](GgufWriter& w) { w.key("", "x"); }); }, {"a metadata key", "nothing"});
    expect_file_error([&] { read([](GgufWriter& w) { w.key("\xff", "x"); }); }, {"a metadata key", "UTF-8"});
    expect_file_error([&] { read([](GgufWriter& w) { w.string("k").number(std::uint32_t{13}); }); },
                      {"key 'k'", "a value type below 13"});
    expect_file_error([&] { read([](GgufWriter& w) { w.key("k", GgufType::bool_, std::uint8_t{2}); }); },
                      {"key 'k'", "a bool of 0 or 1", "got 2"});
    expect_file_error([&] { read([](GgufWriter& w) { w.key("k", GgufType::string, UINT64_MAX); }); },
                      {"key 'k'"});
    for (const GgufType type : {GgufType::uint8, GgufType::string, GgufType::float64, GgufType::array}) {
        expect_file_error(
            [&] {
                read([&](GgufWriter& w) {
                    w.string("k").type(GgufType::array).type(type).number(std::uint64_t{1} << 61);
                });
            },
            {"key 'k'", "for which the file has room", "2305843009213693952"});
    }
    expect_file_error(
        [&] {
            read([](GgufWriter& w) {
                w.string("k").type(GgufType::array);
                for (int i = 0; i < 100; ++i) w.type(GgufType::array).number(std::uint64_t{1});
            });
        },
        {"key 'k'", "arrays at most 4 deep"});
    GgufWriter twice(0, 2);
    twice.key("k", "1").key("k", "2");
    expect_file_error([&] { parse(twice.bytes); }, {"key 'k'", "twice"});
}

TEST(Gguf, RefusesBadTensors) {
    const auto read = [](std::initializer_list<std::uint64_t> ne, std::uint32_t type, std::uint64_t offset) {
        GgufWriter writer(1, 0);
        writer.tensor("blk.0.w", ne, type, offset);
        parse(writer.with_data(64));
    };
    const std::string_view who = "m.gguf: tensor 'blk.0.w'";
    EXPECT_NO_THROW(read({16}, kF32, 0));
    EXPECT_NO_THROW(read({0, 5}, kF32, 64));
    expect_file_error([&] { read({17}, kF32, 0); }, {who, "68 bytes at offset 0", "64 bytes of data"});
    expect_file_error([&] { read({9}, kF32, 32); }, {who, "36 bytes at offset 32"});
    expect_file_error([&] { read({1}, kF32, 96); }, {who, "at offset 96"});
    expect_file_error([&] { read({1}, kF32, UINT64_MAX - 31); }, {who, "at offset 18446744073709551584"});
    expect_file_error([&] { read({1}, kF32, 4); }, {who, "a multiple of 32", "got 4"});
    expect_file_error([&] { read({UINT64_MAX}, kF32, 0); }, {who, "extents of 0 or more"});
    expect_file_error([&] { read({1ull << 32, 1ull << 32}, kF32, 0); }, {who, "below 2**63 bytes"});
    expect_file_error([&] { read({0, 1ull << 62, 1ull << 62}, kF32, 0); }, {who, "below 2**63 bytes"});
    expect_file_error([&] { read({1, 1, 1, 1, 1}, kF32, 0); }, {who, "at most 4 dimensions", "got 5"});
    expect_file_error([&] { read({33}, kQ8_0, 0); }, {who, "whole Q8_0 blocks of 32", "(33,)"});
    expect_file_error([&] { read({128, 2}, kQ4_K, 0); }, {who, "whole Q4_K blocks of 256", "(2, 128)"});
    expect_file_error([&] { read({}, kQ8_0, 0); }, {who, "whole Q8_0 blocks"});
    expect_file_error([&] { read({32}, kIQ4_NL, 0); }, {who, "a type of F32, F16, Q4_0", "got IQ4_NL"});
    expect_file_error([&] { read({32}, 99, 0); }, {who, "type number 99"});
}

TEST(Gguf, RefusesSharedDataAndNames) {
    const auto read = [](std::string_view first, std::uint64_t offset) {
        GgufWriter writer(3, 0);
        writer.tensor(first, {16}, kF32, offset).tensor("b", {16}, kF32, 0).tensor("none", {0}, kF32, 32);
        parse(writer.with_data(128));
    };
    EXPECT_NO_THROW(read("a", 64));
    expect_file_error([&] { read("a", 32); }, {"tensor 'a'", "data shared with 'b'"});
    expect_file_error([&] { read("b", 64); }, {"tensor 'b'", "twice"});
    expect_file_error([&] { read("", 64); }, {"a tensor's name", "nothing"});
}

TEST(Gguf, SurvivesDamage) {
    const Bytes bytes = sample().with_data(68);
    const int loaded = io_test::survive_damage(bytes, [](std::span<const std::byte> damaged) {
        const Gguf file = Gguf::parse(damaged, "m");
        for (const TensorView& tensor : file.tensors()) {
            Bytes copy(static_cast<std::size_t>(tensor.size()) * itemsize(tensor.dtype));
            convert(tensor, 0, tensor.size(), tensor.dtype, copy);
        }
        for (const auto& [key, value] : file.metadata()) {
            const auto* array = std::get_if<std::shared_ptr<const GgufArray>>(&value.value);
            if (array != nullptr && (*array)->type != GgufType::string && (*array)->type != GgufType::array &&
                (*array)->type != GgufType::bool_) {
                EXPECT_EQ(file.numbers(key).size(), (*array)->count);
            }
        }
    });
    EXPECT_GE(loaded, 68 * 6);
}

TEST(Gguf, OpensFilesAndOutlivesMoves) {
    const io_test::TemporaryFolder folder;
    const std::string path = folder.write("m.gguf", sample().with_data(68));
    Gguf file = Gguf::open(path);
    const Gguf moved = std::move(file);
    EXPECT_EQ(moved.path(), path);
    EXPECT_EQ(moved.tensor("w").bytes[0], std::byte{1});
    EXPECT_EQ(moved.numbers("scores"), (std::vector<double>{1.5, -2.0}));
    expect_file_error([&] { Gguf::open(folder.path("none.gguf")); }, {"none.gguf"});
    expect_file_error([&] { Gguf::open(folder.path()); }, {folder.path()});
    ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
    expect_file_error([&] { Gguf::open(folder.path("pipe")); }, {"pipe"});
    folder.write("empty.gguf", "");
    expect_file_error([&] { Gguf::open(folder.path("empty.gguf")); }, {"empty.gguf"});
}

}  // namespace
