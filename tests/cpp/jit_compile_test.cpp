// NVRTC needs no GPU: everything up to the cubin is tested anywhere it is installed.
#include "jit/compile.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/error.hpp"
#include "base/platform.hpp"
#include "jit/options.hpp"

namespace gpk::jit {
namespace {

const std::string kScale = R"(extern "C" __global__ void scale(float* x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
})";

class JitCompile : public testing::Test {
   protected:
    void SetUp() override {
        if (!is_nvrtc_available()) GTEST_SKIP() << nvrtc_status().problem;
        setenv("PYGPUKIT_CACHE_DIR", temporary.path().c_str(), 1);
    }
    void TearDown() override { unsetenv("PYGPUKIT_CACHE_DIR"); }

    static Compiled compile(const std::string& source, const std::string& function,
                            const std::vector<std::string>& flags = {}, int sm = 90) {
        return compile_cubin(source, parse_signature(source, function), sm, flags);
    }
    static std::string refusal(ErrorKind kind, const std::string& source, const std::string& function,
                               const std::vector<std::string>& flags = {}, int sm = 90) {
        try {
            compile(source, function, flags, sm);
        } catch (const Error& failure) {
            EXPECT_EQ(failure.kind(), kind) << failure.what();
            return failure.what();
        }
        ADD_FAILURE() << "compiled";
        return {};
    }

    platform::TemporaryFolder temporary;
};

TEST_F(JitCompile, GivesDeviceCodeAndKeepsIt) {
    const Compiled first = compile(kScale, "scale");
    EXPECT_EQ(first.image.substr(0, 4),
              "\x7f"
              "ELF");
    EXPECT_EQ(first.symbol, "scale");
    EXPECT_NE(first.image.find("scale"), std::string::npos);
    EXPECT_FALSE(first.from_cache);
    const Compiled second = compile(kScale, "scale");
    EXPECT_TRUE(second.from_cache);
    EXPECT_EQ(second.image, first.image);
    EXPECT_EQ(second.symbol, first.symbol);
    EXPECT_FALSE(compile(kScale, "scale", {}, 80).from_cache);
    EXPECT_FALSE(compile(kScale, "scale", {"-DX=1"}).from_cache);
    EXPECT_FALSE(compile(kScale + "\n", "scale").from_cache);
}

TEST_F(JitCompile, ADamagedEntryIsCompiledAgain) {
    const Compiled first = compile(kScale, "scale");
    const auto entries = platform::file_entries(temporary.path() + "/jit");
    ASSERT_EQ(entries.size(), 1u);
    std::fstream(entries[0].path, std::ios::in | std::ios::out | std::ios::binary).seekp(100) << "damage";
    const Compiled second = compile(kScale, "scale");
    EXPECT_FALSE(second.from_cache);
    EXPECT_EQ(second.image, first.image);
}

TEST_F(JitCompile, PlainFunctionsAreFoundByTheirLoweredName) {
    const std::string source = "namespace a { __global__ void f(float* x) { x[0] = 1; } }";
    const Compiled found = compile(source, "f");
    EXPECT_EQ(found.symbol, "_ZN1a1fEPf");
    EXPECT_NE(found.image.find(found.symbol), std::string::npos);
    EXPECT_EQ(compile(source, "f").symbol, "_ZN1a1fEPf");
}

TEST_F(JitCompile, CommonHeadersAreThere) {
    const std::string source =
        "#include <cstdint>\n#include <stddef.h>\n"
        "extern \"C\" __global__ void f(std::uint8_t* x, int64_t n, size_t m) { x[n] = m; }";
    EXPECT_FALSE(compile(source, "f").image.empty());
}

TEST_F(JitCompile, ErrorsShowTheLine) {
    const std::string text =
        refusal(ErrorKind::compile,
                "extern \"C\" __global__ void f(float* x) {\n  int a;\n  x[0] = unknown;\n}\n", "f");
    EXPECT_NE(text.find("f.cu(3)"), std::string::npos) << text;
    EXPECT_NE(text.find("> 3 |   x[0] = unknown;"), std::string::npos) << text;
}

TEST_F(JitCompile, RefusesWhatItCannotDo) {
    EXPECT_NE(refusal(ErrorKind::unsupported, kScale, "scale", {}, 42).find("an NVRTC that knows SM 42"),
              std::string::npos);
    EXPECT_NE(refusal(ErrorKind::value, kScale, "scale", {"-arch=sm_80"}).find("'-arch=sm_80'"),
              std::string::npos);
    EXPECT_NE(refusal(ErrorKind::value, kScale, "scale", {"-I"}).find("a value after '-I'"),
              std::string::npos);
    refusal(ErrorKind::compile, kScale, "scale", {"--no-such-flag"});
    refusal(ErrorKind::value, kScale + std::string(1, '\0'), "scale");
}

TEST_F(JitCompile, AChangedHeaderIsSeen) {
    const std::string folder = temporary.path();
    const auto write = [&](const char* name, const char* text) {
        std::ofstream(folder + "/" + name) << text;
    };
    write("outer.h", "#include \"inner.h\"\n");
    write("inner.h", "#define VALUE 1\n");
    const std::string source = "#include <outer.h>\nextern \"C\" __global__ void f(int* x) { *x = VALUE; }";
    const Compiled first = compile(source, "f", {"-I" + folder});
    EXPECT_TRUE(compile(source, "f", {"-I" + folder}).from_cache);
    write("inner.h", "#define VALUE 2\n");
    const Compiled second = compile(source, "f", {"-I" + folder});
    EXPECT_FALSE(second.from_cache);
    EXPECT_NE(second.image, first.image);
    const std::string computed =
        "#define NAME <outer.h>\n#include NAME\nextern \"C\" __global__ void f(int* x) { *x = VALUE; }";
    compile(computed, "f", {"-I", folder});
    EXPECT_FALSE(compile(computed, "f", {"-I", folder}).from_cache);
}

TEST(JitFlags, AreTakenApart) {
    const Flags flags = parse_flags({"-I/a", "-I", "/b", "--include-path=/c", "-DX=1", "-D", "Y", "-lineinfo",
                                     "-std=c++20", "-include", "/x.h", "--use_fast_math"});
    EXPECT_EQ(flags.include_folders, (std::vector<std::string>{"/a", "/b", "/c"}));
    EXPECT_EQ(flags.pre_includes, (std::vector<std::string>{"/x.h"}));
    EXPECT_EQ(flags.for_host, (std::vector<std::string>{"-I/a", "-I/b", "-I/c", "-DX=1", "-DY", "-std=c++20",
                                                        "-include", "/x.h"}));
    EXPECT_EQ(flags.all.size(), 12u);
}

}  // namespace
}  // namespace gpk::jit
