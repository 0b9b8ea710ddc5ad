#include "io/safetensors.hpp"

#include "io/dequantize.hpp"
#include "io/json.hpp"
#include "io_support.hpp"

namespace {

using namespace gpk;
using namespace gpk::io;
using io_test::Bytes;
using io_test::expect_file_error;

SafeTensors parse(const Bytes& file) { return SafeTensors::parse(file, "m.safetensors"); }

std::string entry(std::string_view name, std::string_view dtype, std::string_view shape, int begin, int end) {
    return str('"', name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape, ",\"data_offsets\":[", begin,
               ",", end, "]}");
}

TEST(SafeTensors, ReadsTensorsAndMetadata) {
    const Bytes file = io_test::safetensors(
        str("{", entry("b", "F32", "[2,3]", 0, 24), ",\"__metadata__\":{\"format\":\"pt\"},",
            entry("a", "BF16", "[]", 24, 26), ",", entry("empty", "I64", "[0,4]", 26, 26), "}   "),
        26);
    const SafeTensors opened = parse(file);
    EXPECT_EQ(opened.path(), "m.safetensors");
    EXPECT_EQ(opened.names(), (std::vector<std::string>{"b", "a", "empty"}));
    EXPECT_EQ(opened.metadata(), (StringMap{{"format", "pt"}}));
    const TensorView& b = opened.tensor("b");
    EXPECT_EQ(b.type, StoredType::f32);
    EXPECT_EQ(b.dtype, DType::float32);
    EXPECT_EQ(b.shape, (Dims{2, 3}));
    ASSERT_EQ(b.bytes.size(), 24u);
    EXPECT_EQ(b.bytes[0], std::byte{1});
    EXPECT_EQ(opened.tensor("a").shape, Dims{});
    EXPECT_EQ(opened.tensor("a").bytes[0], std::byte{25});
    EXPECT_EQ(opened.tensor("empty").bytes.size(), 0u);
    EXPECT_EQ(opened.find("c"), nullptr);
    expect_file_error([&] { opened.tensor("c"); }, {"m.safetensors", "'c'", "among 3"});
}

TEST(SafeTensors, KnowsTheDtypes) {
    const std::pair<const char*, DType> dtypes[] = {
        {"BOOL", DType::bool_},         {"I8", DType::int8},
        {"I16", DType::int16},          {"I32", DType::int32},
        {"I64", DType::int64},          {"U8", DType::uint8},
        {"U16", DType::uint16},         {"U32", DType::uint32},
        {"U64", DType::uint64},         {"F16", DType::float16},
        {"BF16", DType::bfloat16},      {"F32", DType::float32},
        {"F64", DType::float64},        {"F8_E4M3", DType::float8_e4m3},
        {"F8_E5M2", DType::float8_e5m2}};
    for (const auto& [dtype_name, dtype] : dtypes) {
        const int bytes = 3 * static_cast<int>(itemsize(dtype));
        const Bytes file = io_test::safetensors("{" + entry("x", dtype_name, "[3]", 0, bytes) + "}", bytes);
        EXPECT_EQ(parse(file).tensor("x").dtype, dtype) << dtype_name;
    }
    const auto read = [](std::string_view dtype) {
        parse(io_test::safetensors("{" + entry("w.0", dtype, "[4]", 0, 4) + "}", 4));
    };
    for (const char* unsupported : {"F4", "F6_E2M3", "F8_E8M0", "C64"}) {
        expect_file_error([&] { read(unsupported); },
                          {"tensor 'w.0'", unsupported, "which is not supported"});
    }
    expect_file_error([&] { read("float32"); }, {"tensor 'w.0'", "a dtype of BOOL, I8", "got 'float32'"});
    expect_file_error([&] { read("Q4_0"); }, {"tensor 'w.0'", "got 'Q4_0'"});
}

TEST(SafeTensors, ReadsNoTensors) { EXPECT_TRUE(parse(io_test::safetensors("{}", 0)).tensors().empty()); }

TEST(SafeTensors, RefusesBadHeaders) {
    expect_file_error([] { parse({}); }, {"m.safetensors", "at least 8 bytes", "0 bytes"});
    expect_file_error([] { parse(Bytes(7)); }, {"7 bytes"});
    expect_file_error([] { parse(io_test::safetensors("", 0)); }, {"begins with '{'", "nothing"});
    expect_file_error([] { parse(io_test::safetensors(" {}", 0)); }, {"begins with '{'"});
    expect_file_error([] { parse(io_test::safetensors("[]", 0)); }, {"begins with '{'"});
    expect_file_error([] { parse(io_test::safetensors("{}x", 0)); }, {"JSON at byte 2"});
    expect_file_error([] { parse(io_test::safetensors("{", 0)); }, {"header: JSON"});
    for (const std::uint64_t length :
         {std::uint64_t{3}, std::uint64_t{1} << 40, UINT64_MAX, UINT64_MAX - 7}) {
        Bytes file;
        io_test::put(file, length);
        io_test::put_text(file, "{}");
        expect_file_error([&] { parse(file); }, {"at most 2 bytes", std::to_string(length)});
    }
}

TEST(SafeTensors, CapsTheHeader) {
    Bytes file;
    io_test::put(file, std::uint64_t{100'000'001});
    file.resize(8 + 100'000'002);
    expect_file_error([&] { parse(file); }, {"at most 100000000 bytes", "100000001"});
}

TEST(SafeTensors, RefusesBadEntries) {
    const std::pair<std::string, std::string_view> cases[] = {
        {R"({"w":3})", "an object, got an integer"},
        {R"({"w":{"shape":[1],"data_offsets":[0,4]}})", "\"dtype\""},
        {R"({"w":{"dtype":"F32","data_offsets":[0,4]}})", "\"shape\""},
        {R"({"w":{"dtype":"F32","shape":[1]}})", "\"data_offsets\""},
        {R"({"w":{"dtype":1,"shape":[1],"data_offsets":[0,4]}})", "a string, got an integer"},
        {R"({"w":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", "an array, got an integer"},
        {R"({"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "0 or more, got -1"},
        {R"({"w":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", "got a number"},
        {R"({"w":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})", "got a string"},
        {R"({"w":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]}})", "below 2**63"},
        {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", "a begin and an end, got 1 numbers"},
        {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", "got 3 numbers"},
        {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "data from byte 0"},
        {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "at most 4, where the file ends"},
        {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "8 bytes for F32 of shape (2,), got 4"},
        {R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})",
         "below 2**63 bytes"},
        {R"({"w":{"dtype":"F32","shape":[0,9223372036854775807,3],"data_offsets":[0,0]}})",
         "below 2**63 bytes"},
        {R"({"w":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})",
         "at most 16 dimensions, got 17"},
    };
    for (const auto& [header, part] : cases) {
        SCOPED_TRACE(header);
        expect_file_error([&] { parse(io_test::safetensors(header, 4)); },
                          {"m.safetensors: tensor 'w'", part});
    }
    expect_file_error([] { parse(io_test::safetensors(R"({"__metadata__":{"a":1}})", 0)); },
                      {"__metadata__", "'a'", "a string"});
    expect_file_error([] { parse(io_test::safetensors(R"({"__metadata__":[]})", 0)); },
                      {"an object of strings"});
}

TEST(SafeTensors, RefusesHolesAndOverlaps) {
    const auto two = [](int begin, int end, int data) {
        parse(io_test::safetensors("{" + entry("late", "U8", str("[", end - begin, "]"), begin, end) + "," +
                                       entry("w", "U8", "[4]", 0, 4) + "}",
                                   data));
    };
    EXPECT_NO_THROW(two(4, 8, 8));
    expect_file_error([&] { two(5, 8, 8); }, {"tensor 'late'", "data from byte 4"});
    expect_file_error([&] { two(3, 8, 8); }, {"tensor 'late'", "data from byte 4"});
    expect_file_error([&] { two(0, 4, 4); }, {"data from byte 4"});
    expect_file_error([&] { two(4, 8, 9); }, {"cover all 9 bytes", "8 bytes covered"});
    expect_file_error([&] { two(4, 8, 7); }, {"tensor 'late'", "not completely downloaded"});
    expect_file_error(
        [] {
            parse(io_test::safetensors(
                "{" + entry("w", "U8", "[1]", 0, 1) + "," + entry("w", "U8", "[1]", 1, 2) + "}", 2));
        },
        {"\"w\" twice"});
}

TEST(SafeTensors, ShowsHostileNamesEscaped) {
    const std::string name = "\x1b[31m" + std::string(5000, 'x');
    const std::string header = "{" + json_quoted(name) + ":3}";
    try {
        parse(io_test::safetensors(header, 0));
        FAIL();
    } catch (const Error& e) {
        EXPECT_EQ(std::string_view(e.what()).find('\x1b'), std::string_view::npos);
        EXPECT_LT(std::string_view(e.what()).size(), 400u);
    }
}

TEST(SafeTensors, SurvivesDamage) {
    const Bytes file = io_test::safetensors(
        str("{\"__metadata__\":{\"k\":\"v\"},", entry("a.weight", "F16", "[2,3]", 0, 12), ",",
            entry("b", "F8_E4M3", "[3]", 12, 15), ",", entry("c", "BOOL", "[]", 15, 16), "}"),
        16);
    const int loaded = io_test::survive_damage(file, [](std::span<const std::byte> bytes) {
        const SafeTensors opened = SafeTensors::parse(bytes, "m");
        for (const TensorView& tensor : opened.tensors()) {
            Bytes copy(static_cast<std::size_t>(tensor.size()) * itemsize(tensor.dtype));
            convert(tensor, 0, tensor.size(), tensor.dtype, copy);
        }
    });
    EXPECT_GE(loaded, 16 * 6);  // the elements may be anything
}

TEST(SafeTensorsSet, OpensFilesAndFolders) {
    const io_test::TemporaryFolder folder;
    const Bytes file = io_test::safetensors("{" + entry("w", "U8", "[4]", 0, 4) + "}", 4);
    const std::string path = folder.write("model.safetensors", file);
    for (const std::string& given : {path, folder.path()}) {
        const SafeTensorsSet set = SafeTensorsSet::open(given);
        EXPECT_EQ(set.names(), std::vector<std::string>{"w"});
        EXPECT_EQ(set.tensor("w").bytes[3], std::byte{4});
        EXPECT_EQ(set.files().size(), 1u);
    }
    expect_file_error([&] { SafeTensorsSet::open(folder.path("none")); }, {"none", "got neither"});
}

TEST(SafeTensorsSet, OpensShards) {
    const io_test::TemporaryFolder folder;
    folder.write("a.safetensors", io_test::safetensors("{" + entry("x", "U8", "[2]", 0, 2) + "}", 2));
    folder.write("b.safetensors",
                 io_test::safetensors(
                     "{" + entry("y", "U8", "[1]", 0, 1) + "," + entry("z", "U8", "[1]", 1, 2) + "}", 2));
    const auto open = [&](std::string_view index) {
        folder.write("model.safetensors.index.json", index);
        return SafeTensorsSet::open(folder.path());
    };
    const SafeTensorsSet set = open(
        R"({"metadata":{"total_size":4},"weight_map":{"z":"b.safetensors","x":"a.safetensors","y":"b.safetensors"}})");
    EXPECT_EQ(set.names(), (std::vector<std::string>{"x", "y", "z"}));
    EXPECT_EQ(set.files().size(), 2u);
    EXPECT_EQ(set.tensor("z").bytes[0], std::byte{2});

    expect_file_error([&] { open(R"({"weight_map":{"q":"a.safetensors"}})"); },
                      {"tensor 'q'", "it in 'a.safetensors'", "no tensor of that name"});
    expect_file_error([&] { open(R"({"weight_map":{"x":"c.safetensors"}})"); },
                      {"tensor 'x'", "'c.safetensors'", "download all shards"});
    for (const char* name :
         {"../a.safetensors", "/etc/passwd", "sub/a.safetensors", "..", ".", "", "a\\\\b", "C:a"}) {
        SCOPED_TRACE(name);
        expect_file_error([&] { open(str(R"({"weight_map":{"x":")", name, "\"}}")); },
                          {"tensor 'x'", "the name of a file in the same folder"});
    }
    expect_file_error([&] { open(R"({"weight_map":[]})"); }, {"weight_map", "an object of strings"});
    expect_file_error([&] { open(R"({"weight_map":{"x":1}})"); }, {"'x'", "a string"});
    expect_file_error([&] { open(R"({})"); }, {"index.json", "\"weight_map\""});
    expect_file_error([&] { open(R"([])"); }, {"index.json", "\"weight_map\""});
    expect_file_error([&] { open("{"); }, {"index.json", "JSON"});
}

TEST(SaveSafeTensors, WritesWhatIsReadBack) {
    const io_test::TemporaryFolder folder;
    const float values[] = {1, 2, 3, 4, 5, 6};
    const std::uint8_t small[] = {7, 8, 9};
    std::vector<TensorView> tensors(3);
    tensors[0] = {"small \"quoted\"", StoredType::u8, DType::uint8, {3}, std::as_bytes(std::span(small))};
    tensors[1] = {"w", StoredType::f32, DType::float32, {2, 3}, std::as_bytes(std::span(values))};
    tensors[2] = {"empty", StoredType::f16, DType::float16, {0}, {}};
    const std::string path = folder.path("out.safetensors");
    folder.write("out.safetensors", "old");
    save_safetensors(path, tensors, {{"format", "pt"}, {"note", "a\nb"}});

    const SafeTensors opened = SafeTensors::open(path);
    EXPECT_EQ(opened.metadata(), (StringMap{{"format", "pt"}, {"note", "a\nb"}}));
    EXPECT_EQ(opened.tensors().size(), 3u);
    EXPECT_EQ(opened.tensor("w").shape, (Dims{2, 3}));
    EXPECT_EQ(read_float32(opened.tensor("w")), std::vector<float>(values, values + 6));
    EXPECT_EQ(opened.tensor("small \"quoted\"").bytes[2], std::byte{9});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(opened.tensor("w").bytes.data()) % 4, 0u);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);

    expect_file_error([&] { save_safetensors(folder.path("no/such/folder"), tensors); },
                      {"write", "no/such/folder"});
    tensors[1].bytes = tensors[1].bytes.first(20);
    EXPECT_THROW(save_safetensors(path, tensors), Error);
    tensors[1] = {"w", StoredType::q4_0, DType::float32, {32}, std::as_bytes(std::span(values)).first(18)};
    EXPECT_THROW(save_safetensors(path, tensors), Error);
    tensors[1] = tensors[0];
    EXPECT_THROW(save_safetensors(path, tensors), Error);
    EXPECT_EQ(SafeTensors::open(path).tensors().size(), 3u);  // nothing above touched the file
}

}  // namespace
