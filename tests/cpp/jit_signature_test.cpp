#include "jit/signature.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.hpp"
#include "base/float_types.hpp"
#include "jit/source.hpp"

namespace gpk::jit {
namespace {

std::string refusal(std::string_view source, std::string_view function = "f") {
    try {
        parse_signature(source, function);
    } catch (const Error& failure) {
        EXPECT_EQ(failure.kind(), ErrorKind::compile);
        return failure.what();
    }
    ADD_FAILURE() << "accepted: " << source;
    return {};
}

// What `f`'s single parameter is.
Parameter one(const std::string& declaration) {
    const Signature found = parse_signature("__global__ void f(" + declaration + ") {}", "f");
    EXPECT_EQ(found.parameters.size(), 1u) << declaration;
    return found.parameters.at(0);
}

TEST(JitSignature, TheReadmesKernel) {
    const Signature found = parse_signature(
        R"(extern "C" __global__ void scale(float* x, float factor, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= factor; })",
        "scale");
    EXPECT_TRUE(found.extern_c);
    EXPECT_FALSE(found.dynamic_shared);
    EXPECT_EQ(found.text(), "scale(float* x, float factor, int n)");
    ASSERT_EQ(found.parameters.size(), 3u);
    EXPECT_EQ(found.parameters[0].name, "x");
    EXPECT_TRUE(found.parameters[0].pointer);
    EXPECT_FALSE(found.parameters[0].read_only);
    EXPECT_EQ(found.parameters[0].dtype, DType::float32);
    EXPECT_EQ(found.parameters[1].offset, 8u);
    EXPECT_EQ(found.parameters[2].offset, 12u);
    EXPECT_EQ(found.params_bytes, 16u);
}

TEST(JitSignature, ScalarTypes) {
    const std::pair<const char*, DType> kTypes[] = {
        {"bool", DType::bool_},
        {"char", DType::int8},
        {"signed char", DType::int8},
        {"unsigned char", DType::uint8},
        {"short", DType::int16},
        {"unsigned short int", DType::uint16},
        {"int", DType::int32},
        {"signed", DType::int32},
        {"unsigned", DType::uint32},
        {"unsigned int", DType::uint32},
        {"int unsigned", DType::uint32},
        {"long", DType::int64},
        {"unsigned long", DType::uint64},
        {"long long", DType::int64},
        {"long unsigned int long", DType::uint64},
        {"unsigned long long", DType::uint64},
        {"size_t", DType::uint64},
        {"std::size_t", DType::uint64},
        {"::std::int64_t", DType::int64},
        {"int8_t", DType::int8},
        {"uint8_t", DType::uint8},
        {"int16_t", DType::int16},
        {"uint32_t", DType::uint32},
        {"float", DType::float32},
        {"double", DType::float64},
        {"half", DType::float16},
        {"__half", DType::float16},
        {"__nv_bfloat16", DType::bfloat16},
    };
    for (const auto& [type, dtype] : kTypes) {
        for (const char* form : {"%", "% v", "const % v", "% const v", "volatile % v"}) {
            std::string text = form;
            text.replace(text.find('%'), 1, type);
            const Parameter found = one(text);
            EXPECT_EQ(found.dtype, dtype) << text;
            EXPECT_EQ(found.size, itemsize(dtype)) << text;
            EXPECT_FALSE(found.pointer) << text;
            EXPECT_EQ(found.name, text.find(" v") == std::string::npos || text == type ? "" : "v") << text;
        }
    }
}

TEST(JitSignature, Pointers) {
    struct Case {
        const char* text;
        const char* name;
        bool read_only;
        std::optional<DType> dtype;
    };
    const Case kCases[] = {
        {"float* x", "x", false, DType::float32},
        {"float *x", "x", false, DType::float32},
        {"float*x", "x", false, DType::float32},
        {"float*", "", false, DType::float32},
        {"const float* __restrict__ x", "x", true, DType::float32},
        {"float const* x", "x", true, DType::float32},
        {"float* const x", "x", false, DType::float32},
        {"const float* const __restrict x", "x", true, DType::float32},
        {"unsigned long long* counter", "counter", false, DType::uint64},
        {"const unsigned char data[]", "data", true, DType::uint8},
        {"int table[16]", "table", false, DType::int32},
        {"void* x", "x", false, std::nullopt},
        {"const void* x", "x", true, std::nullopt},
        {"float4* x", "x", false, std::nullopt},
        {"struct Node* x", "x", false, std::nullopt},
        {"ns::Node* x", "x", false, std::nullopt},
        {"float** x", "x", false, std::nullopt},
        {"const __half* x", "x", true, DType::float16},
    };
    for (const Case& c : kCases) {
        const Parameter found = one(c.text);
        EXPECT_TRUE(found.pointer) << c.text;
        EXPECT_EQ(found.name, c.name) << c.text;
        EXPECT_EQ(found.read_only, c.read_only) << c.text;
        EXPECT_EQ(found.dtype, c.dtype) << c.text;
        EXPECT_EQ(found.size, 8u) << c.text;
    }
}

TEST(JitSignature, PackedAsTheDeviceDoes) {
    const Signature found =
        parse_signature("__global__ void f(bool a, double b, char c, short d, float* e, char g) {}", "f");
    const std::size_t offsets[] = {0, 8, 16, 18, 24, 32};
    ASSERT_EQ(found.parameters.size(), 6u);
    for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(found.parameters[i].offset, offsets[i]) << i;
    EXPECT_EQ(found.params_bytes, 33u);
}

TEST(JitSignature, CommentsAttributesAndPlacesOfTheKernel) {
    const char* source = R"cuda(
#include <cuda_fp16.h>
#define T float
#define SQUARE(x) ((x) * (x))
typedef unsigned int uint_type;
using index_type = const long long;
// __global__ void f(int wrong) {}
/* __global__ void f(int wrong) {} */
const char* text = "__global__ void f(int wrong) {}";
__device__ float helper(float x) { return SQUARE(x); }
template <class U> __global__ void other(U* x) {}
namespace detail {
extern "C" {
static __global__ __launch_bounds__(256, 2) void
f(const T* /* input */ __restrict__ x, // first
  uint_type n, index_type m)
{ extern __shared__ float buffer[]; }
}
}
)cuda";
    const Signature found = parse_signature(source, "f");
    EXPECT_EQ(found.text(), "detail::f(const float* x, unsigned int n, long long m)");
    EXPECT_TRUE(found.extern_c);
    EXPECT_TRUE(found.dynamic_shared);
    EXPECT_EQ(parse_signature(source, "detail::f").parameters.size(), 3u);
}

TEST(JitSignature, NoParameters) {
    EXPECT_EQ(parse_signature("__global__ void f() {}", "f").params_bytes, 0u);
    EXPECT_TRUE(parse_signature("__global__ void f(void) {}", "f").parameters.empty());
}

TEST(JitSignature, TheDefinitionCountsNotTheDeclaration) {
    const Signature found =
        parse_signature("__global__ void f(float*, int);\n__global__ void f(float* x, int n) {}", "f");
    EXPECT_EQ(found.text(), "f(float* x, int n)");
}

TEST(JitSignature, Refusals) {
    const std::pair<const char*, const char*> kCases[] = {
        {"__global__ void f(float& x) {}", "a reference"},
        {"__global__ void f(int n = 3) {}", "a default argument"},
        {"__global__ void f(float4 v) {}", "'float4' by value"},
        {"struct P { int a; }; __global__ void f(P p) {}", "'P' by value"},
        {"struct P { int a; }; __global__ void f(struct P p) {}", "by value"},
        {"__global__ void f(long double x) {}", "by value"},
        {"__global__ void f(void (*g)(int)) {}", "a function pointer"},
        {"__global__ void f(std::array<int, 4> x) {}", "a template type"},
        {"__global__ void f(int n, ...) {}", "a variable number"},
        {"__global__ void f(int n,, int m) {}", "nothing between two commas"},
        {"template <class T> __global__ void f(T* x) {}", "a template"},
        {"__global__ void f(int a) {}\n__global__ void f(float a) {}", "overloaded"},
        {"namespace a { __global__ void f(int x) {} } namespace b { __global__ void f(int x) {} }",
         "'a::f' and 'b::f'"},
        {"#define A B\n#define B A\n__global__ void f(A x) {}", "never end"},
        {"__global__ void g(int a) {} __global__ void h(int a) {}", "one of 'g', 'h'"},
        {"__device__ void f(int a) {}", "a source with a __global__ function"},
        {"", "a source with a __global__ function"},
        {"__global__ void f(int a", "a source with a __global__ function"},
        {"__global__", "a source with a __global__ function"},
    };
    for (const auto& [source, expected] : kCases) {
        const std::string text = refusal(source);
        EXPECT_NE(text.find(expected), std::string::npos) << source << "\n" << text;
    }
    EXPECT_NE(refusal("\n\n__global__ void f(\n  float& x) {}").find("line 4"), std::string::npos);
}

TEST(JitSignature, AnyTextEndsWithAnErrorOrASignature) {
    const std::string source =
        "extern \"C\" __global__ void f(const float* x, int n) { x[0] /* \" */; } R\"(";
    for (std::size_t cut = 0; cut <= source.size(); ++cut) {
        try {
            EXPECT_EQ(parse_signature(std::string_view(source).substr(0, cut), "f").parameters.size(), 2u);
        } catch (const Error& failure) {
            EXPECT_EQ(failure.kind(), ErrorKind::compile);
        }
    }
}

TEST(JitSignature, PacksArguments) {
    const Signature found =
        parse_signature("__global__ void f(float* x, half h, unsigned char c, double d, bool b) {}", "f");
    alignas(8) char params[64] = {};
    pack_pointer(found, found.parameters[0], 0x1234, DType::float32, params);
    pack_scalar(found, found.parameters[1], 0.5, params);
    pack_scalar(found, found.parameters[2], 255, params);
    pack_scalar(found, found.parameters[3], 3, params);
    pack_scalar(found, found.parameters[4], true, params);
    std::uint64_t address;
    float16 h;
    double d;
    std::memcpy(&address, params, 8);
    std::memcpy(&h, params + 8, 2);
    std::memcpy(&d, params + 16, 8);
    EXPECT_EQ(address, 0x1234u);
    EXPECT_EQ(static_cast<float>(h), 0.5f);
    EXPECT_EQ(static_cast<unsigned char>(params[10]), 255);
    EXPECT_EQ(d, 3.0);
    EXPECT_EQ(params[24], 1);
    const auto kind_of = [](auto&& call) {
        try {
            call();
        } catch (const Error& failure) {
            return failure.kind();
        }
        return ErrorKind::file;  // none
    };
    EXPECT_EQ(kind_of([&] { pack_scalar(found, found.parameters[0], 1, params); }), ErrorKind::type);
    EXPECT_EQ(kind_of([&] { pack_scalar(found, found.parameters[2], 0.5, params); }), ErrorKind::type);
    EXPECT_EQ(kind_of([&] { pack_scalar(found, found.parameters[2], 256, params); }), ErrorKind::value);
    EXPECT_EQ(kind_of([&] { pack_pointer(found, found.parameters[0], 1, DType::int32, params); }),
              ErrorKind::type);
    EXPECT_EQ(kind_of([&] { pack_pointer(found, found.parameters[3], 1, DType::float64, params); }),
              ErrorKind::type);
}

TEST(JitSource, LinesAroundAnError) {
    EXPECT_EQ(numbered_lines("a\nb\nc\nd\ne\nf", 3), "  1 | a\n  2 | b\n> 3 | c\n  4 | d\n  5 | e\n");
    EXPECT_EQ(line_of("a\nb\nc", 4), 3u);
}

}  // namespace
}  // namespace gpk::jit
