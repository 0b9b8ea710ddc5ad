#include "io/json.hpp"

#include "io_support.hpp"

namespace {

using gpk::io::Json;
using gpk::io::JsonLimits;
using io_test::expect_file_error;

Json parse(std::string_view text) { return Json::parse(text, "config.json"); }

TEST(Json, ReadsEveryKind) {
    const Json json = parse(" {\"a\": [1, -2.5e2, true, false, null, \"x\"], \"b\": {}, \"c\": []}\n");
    ASSERT_NE(json.object(), nullptr);
    EXPECT_EQ(json.object()->size(), 3u);
    const Json::Array& a = *json.find("a")->array();
    ASSERT_EQ(a.size(), 6u);
    EXPECT_EQ(*a[0].integer(), 1);
    EXPECT_EQ(a[1].integer(), nullptr);
    EXPECT_EQ(a[1].number(), -250.0);
    EXPECT_TRUE(*a[2].boolean());
    EXPECT_FALSE(*a[3].boolean());
    EXPECT_TRUE(a[4].is_null());
    EXPECT_EQ(*a[5].string(), "x");
    EXPECT_TRUE(json.find("b")->object()->empty());
    EXPECT_TRUE(json.find("c")->array()->empty());
    EXPECT_EQ(json.find("d"), nullptr);
    EXPECT_EQ(a[0].find("a"), nullptr);
    EXPECT_EQ(json.find("b")->kind(), "an object");
    EXPECT_EQ(a[1].kind(), "a number");
}

TEST(Json, KeepsIntegersExact) {
    EXPECT_EQ(*parse("9223372036854775807").integer(), INT64_MAX);
    EXPECT_EQ(*parse("-9223372036854775808").integer(), INT64_MIN);
    EXPECT_EQ(parse("9223372036854775808").integer(), nullptr);
    EXPECT_EQ(parse("9223372036854775808").number(), 9223372036854775808.0);
    EXPECT_EQ(parse("1.0").integer(), nullptr);
    EXPECT_EQ(*parse("-0").integer(), 0);
}

TEST(Json, DecodesStrings) {
    EXPECT_EQ(*parse(R"("\"\\\/\b\f\n\r\t")").string(), "\"\\/\b\f\n\r\t");
    EXPECT_EQ(*parse(R"("\u0041\u00e9\u20AC\ud83d\ude00")").string(),
              "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    EXPECT_EQ(parse(R"("a\u0000b")").string()->size(), 3u);
    EXPECT_EQ(*parse("\"\xf0\x9f\x98\x80\"").string(), "\xf0\x9f\x98\x80");
}

TEST(Json, QuotesWhatItReads) {
    const std::string text = "a\"b\\c\n\x01 \xc3\xa9";
    EXPECT_EQ(*parse(gpk::io::json_quoted(text)).string(), text);
}

TEST(Json, RefusesWhatIsNoJson) {
    for (const char* text : {"",
                             " ",
                             "{",
                             "}",
                             "[1,]",
                             "[,1]",
                             "[1 2]",
                             "{\"a\"}",
                             "{\"a\":}",
                             "{\"a\":1,}",
                             "{a:1}",
                             "{'a':1}",
                             "tru",
                             "nul",
                             "True",
                             "NaN",
                             "Infinity",
                             "01",
                             "-",
                             "+1",
                             ".5",
                             "1.",
                             "1e",
                             "1e+",
                             "0x10",
                             "1 2",
                             "[1]]",
                             "\"a",
                             "\"\\x\"",
                             "\"\\u12\"",
                             "\"\\u12g4\"",
                             "\"\\ud800\"",
                             "\"\\udc00\"",
                             "\"\\ud800\\u0041\"",
                             "\"\n\"",
                             "\"\t\"",
                             "\xef\xbb\xbf{}",
                             "1e999",
                             "// x\n1",
                             "[\f1]"}) {
        SCOPED_TRACE(text);
        expect_file_error([&] { parse(text); }, {"config.json: JSON at byte", "expected"});
    }
    expect_file_error([] { parse(std::string_view("1\0", 2)); }, {"the end of the JSON text", "byte 0"});
}

TEST(Json, RefusesDuplicateKeys) {
    expect_file_error([] { parse(R"({"a":1,"b":2,"a":3})"); }, {"each key once", "\"a\" twice"});
    expect_file_error([] { parse(R"([{"x":{"k":1,"\u006b":2}}])"); }, {"\"k\" twice"});
}

TEST(Json, RefusesInvalidUtf8) {
    for (const char* bytes : {"\x80", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
                              "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xe2\x82"}) {
        SCOPED_TRACE(testing::PrintToString(std::string(bytes)));
        EXPECT_FALSE(gpk::io::is_utf8(bytes));
        expect_file_error([&] { parse("\"" + std::string(bytes) + "\""); }, {"valid UTF-8"});
    }
    EXPECT_TRUE(gpk::io::is_utf8("\x7f\xc2\x80\xe0\xa0\x80\xed\x9f\xbf\xf4\x8f\xbf\xbf"));
}

TEST(Json, LimitsDepthSizeAndValues) {
    const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
    EXPECT_NO_THROW(parse(nested(33)));
    expect_file_error([&] { parse(nested(34)); }, {"at most 32 levels"});
    expect_file_error([&] { parse(std::string(1'000'000, '[')); }, {"at most 32 levels"});
    expect_file_error([] { Json::parse("[1,2,3]", "x", {.max_values = 3}); }, {"at most 3 values"});
    EXPECT_NO_THROW(Json::parse("[1,2]", "x", {.max_values = 3}));
    expect_file_error([] { Json::parse("[1,2]", "x", {.max_bytes = 4}); }, {"at most 4 bytes"});
}

}  // namespace
