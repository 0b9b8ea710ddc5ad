// Users' kernels, compiled and run on the device that the suite runs on: the same sources on both.
#include "jit/jit_kernel.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>

#include "base/error.hpp"
#include "base/float_types.hpp"
#include "base/platform.hpp"
#include "jit/compile.hpp"
#include "jit/host_compile.hpp"
#include "runtime/graph.hpp"
#include "support.hpp"

namespace gpk::jit {
namespace {

class JitKernelTest : public testing::Test {
   protected:
    void SetUp() override {
        if (device.is_cuda() && !is_nvrtc_available()) GTEST_SKIP() << nvrtc_status().problem;
        if (!device.is_cuda() && host_compiler().empty()) GTEST_SKIP() << "no C++ compiler";
        setenv("PYGPUKIT_CACHE_DIR", temporary.path().c_str(), 1);
    }
    void TearDown() override { unsetenv("PYGPUKIT_CACHE_DIR"); }

    std::shared_ptr<JitKernel> compile(const std::string& source, const std::string& function,
                                       const std::vector<std::string>& flags = {}) {
        return JitKernel::compile(device, source, function, {flags});
    }

    // Runs a kernel whose first parameter is an array of T; the rest are numbers.
    template <class T>
    std::vector<T> run(const std::string& source, const std::string& function, const LaunchConfig& config,
                       std::vector<T> array, const std::vector<Scalar>& rest = {}) {
        const auto kernel = compile(source, function);
        return run_compiled(*kernel, config, std::move(array), rest);
    }
    template <class T>
    std::vector<T> run_compiled(JitKernel& kernel, const LaunchConfig& config, std::vector<T> array,
                                const std::vector<Scalar>& rest = {}) {
        Stream& stream = *device.default_stream();
        const std::size_t bytes = array.size() * sizeof(T);
        const DevicePtr pointer = device.driver().allocate(bytes);
        device.launcher().copy_to_device(stream, pointer, array.data(), bytes);
        alignas(16) char params[256] = {};
        std::memcpy(params, &pointer, sizeof(pointer));
        const Signature& signature = kernel.signature();
        for (std::size_t i = 0; i < rest.size(); ++i) {
            pack_scalar(signature, signature.parameters.at(i + 1), rest[i], params);
        }
        kernel.launch(stream, config, params);
        device.launcher().copy_to_host(stream, array.data(), pointer, bytes);
        stream.synchronize();
        device.driver().free(pointer);
        return array;
    }
    std::string refusal(ErrorKind kind, const std::function<void()>& call) {
        try {
            call();
        } catch (const Error& failure) {
            EXPECT_EQ(failure.kind(), kind) << failure.what();
            return failure.what();
        }
        ADD_FAILURE() << "accepted";
        return {};
    }

    Device& device = test_device();
    platform::TemporaryFolder temporary;
};

const std::string kScale = R"(extern "C" __global__ void scale(float* x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= factor; })";

TEST_F(JitKernelTest, TheReadmesKernel) {
    std::vector<float> x(1000);
    std::iota(x.begin(), x.end(), 0.0f);
    const auto y = run(kScale, "scale", {{4}, {256}}, x, {0.5, 1000});
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(y[static_cast<std::size_t>(i)], 0.5f * static_cast<float>(i));
    const auto again = compile(kScale, "scale");
    EXPECT_TRUE(again->from_cache());
    EXPECT_EQ(again->signature().text(), "scale(float* x, float factor, int n)");
}

TEST_F(JitKernelTest, AllDimensionsAreThere) {
    const std::string source = R"(namespace mine {
__global__ void index(int* x, unsigned char tag) {
    int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    x[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread + tag;
} })";
    const auto x = run<int>(source, "index", {{2, 3, 2}, {4, 2, 3}}, std::vector<int>(12 * 24), {200});
    for (int i = 0; i < 12 * 24; ++i) ASSERT_EQ(x[static_cast<std::size_t>(i)], i / 24 * 1000 + i % 24 + 200);
}

TEST_F(JitKernelTest, SharedMemoryAndBarriers) {
    const std::string source = R"(
extern "C" __global__ void sum(float* x, int n) {
    __shared__ float part[128];
    float value = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) value += x[blockIdx.x * n + i];
    part[threadIdx.x] = value;
    __syncthreads();
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
        __syncthreads();
    }
    __syncthreads();
    x[blockIdx.x * n + threadIdx.x] = part[0];
})";
    constexpr int kBlocks = 9, kLength = 300;
    std::vector<float> x(kBlocks * kLength);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17);
    const auto y = run(source, "sum", {{kBlocks}, {128}}, x, {kLength});
    for (std::size_t b = 0; b < kBlocks; ++b) {
        const float expected =
            std::accumulate(x.begin() + static_cast<std::ptrdiff_t>(b * kLength),
                            x.begin() + static_cast<std::ptrdiff_t>((b + 1) * kLength), 0.0f);
        for (std::size_t t = 0; t < 128; ++t) ASSERT_EQ(y[b * kLength + t], expected) << b << " " << t;
    }
}

TEST_F(JitKernelTest, DynamicSharedMemoryInBothPlaces) {
    const std::string source = R"(
extern __shared__ int outside[];
extern "C" __global__ void reverse(int* x) {
    extern __shared__ __align__(16) unsigned char
        inside[];
    int* words = reinterpret_cast<int*>(inside);
    words[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = outside[blockDim.x - 1 - threadIdx.x];
})";
    std::vector<int> x(500);
    std::iota(x.begin(), x.end(), 0);
    const auto y = run(source, "reverse", {{1}, {500}, 500 * sizeof(int)}, x);
    for (int i = 0; i < 500; ++i) ASSERT_EQ(y[static_cast<std::size_t>(i)], 499 - i);
}

TEST_F(JitKernelTest, ALotOfDynamicSharedMemory) {
    const std::string source = R"(extern "C" __global__ void far(int* x) {
    extern __shared__ int s[];
    s[x[0]] = 7; x[1] = s[x[0]]; })";
    const std::uint32_t bytes = 96 * 1024;  // past the 48 KiB that need no opting in
    const auto y = run<int>(source, "far", {{1}, {1}, bytes}, {static_cast<int>(bytes / 4 - 1), 0});
    EXPECT_EQ(y[1], 7);
}

TEST_F(JitKernelTest, WarpShuffles) {
    const std::string source = R"(
extern "C" __global__ void warp(int* x) {
    const unsigned all = 0xffffffffu;
    int t = threadIdx.x, v = t * 10;
    int* out = x + t * 8;
    int sum = v;
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(all, sum, d);
    out[0] = sum;
    out[1] = __shfl_sync(all, v, 5);
    out[2] = __shfl_up_sync(all, v, 1);
    out[3] = __shfl_down_sync(all, v, 2, 8);
    out[4] = __ballot_sync(all, t % 3 == 0);
    out[5] = __any_sync(all, t == 40) * 2 + __all_sync(all, t < 64);
    out[6] = (int)__shfl_sync(all, (double)v, t % 4, 4);
    out[7] = __syncthreads_count(t % 5 == 0);
})";
    const auto x = run<int>(source, "warp", {{1}, {64}}, std::vector<int>(64 * 8));
    for (int t = 0; t < 64; ++t) {
        const int* out = x.data() + t * 8;
        const int first = t / 32 * 32, lane = t % 32;
        int sum = 0;
        std::uint32_t ballot = 0;
        for (int l = 0; l < 32; ++l) {
            sum += (first + l) * 10;
            ballot |= ((first + l) % 3 == 0 ? 1u : 0u) << l;
        }
        EXPECT_EQ(out[0], sum);
        EXPECT_EQ(out[1], (first + 5) * 10);
        EXPECT_EQ(out[2], (lane == 0 ? t : t - 1) * 10);
        EXPECT_EQ(out[3], (lane % 8 + 2 < 8 ? t + 2 : t) * 10);
        EXPECT_EQ(static_cast<std::uint32_t>(out[4]), ballot);
        EXPECT_EQ(out[5], (t / 32 == 1 ? 2 : 0) + 1);
        EXPECT_EQ(out[6], (t / 4 * 4 + t % 4) * 10);
        EXPECT_EQ(out[7], 13);
    }
}

TEST_F(JitKernelTest, PartsOfAWarpMayMeetApart) {
    const std::string source = R"(
extern "C" __global__ void halves(int* x) {
    int t = threadIdx.x, v = t;
    if (t >= 40) return;
    if (t % 32 < 8) {
        for (int d = 4; d > 0; d /= 2) v += __shfl_xor_sync(0xffu, v, d);
    } else if (t < 32) {
        v = __shfl_sync(0xffffff00u, v, 9);
    }
    __syncthreads();
    x[t] = v;
})";
    const auto x = run<int>(source, "halves", {{1}, {64}}, std::vector<int>(64, -1));
    for (int t = 0; t < 64; ++t) {
        const int expected = t < 8 ? 28 : t < 32 ? 9 : t < 40 ? 8 * 32 + 28 : -1;
        EXPECT_EQ(x[static_cast<std::size_t>(t)], expected) << t;
    }
}

TEST_F(JitKernelTest, Atomics) {
    const std::string source = R"(
struct Results { int add, sub, min, max, exch, cas, bits_and, bits_or; float sum; unsigned inc; double big; };
extern "C" __global__ void count(void* memory) {
    Results* r = (Results*)memory;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&r->add, 2);
    atomicSub(&r->sub, 1);
    atomicMin(&r->min, -i);
    atomicMax(&r->max, i);
    atomicExch(&r->exch, 5);
    atomicCAS(&r->cas, 0, 1);
    atomicAnd(&r->bits_and, ~(1 << (i % 8)));
    atomicOr(&r->bits_or, 1 << (i % 8));
    atomicAdd(&r->sum, 0.5f);
    atomicInc(&r->inc, 9u);
    atomicAdd(&r->big, 1.0);
})";
    struct Results {
        int add, sub, min, max, exch, cas, bits_and, bits_or;
        float sum;
        unsigned inc;
        double big;
    };
    const auto y =
        run<Results>(source, "count", {{64}, {64}}, {Results{0, 0, 0, 0, 0, 0, 0xfff, 0, 0, 0, 0}});
    EXPECT_EQ(y[0].add, 8192);
    EXPECT_EQ(y[0].sub, -4096);
    EXPECT_EQ(y[0].min, -4095);
    EXPECT_EQ(y[0].max, 4095);
    EXPECT_EQ(y[0].exch, 5);
    EXPECT_EQ(y[0].cas, 1);
    EXPECT_EQ(y[0].bits_and, 0xf00);
    EXPECT_EQ(y[0].bits_or, 0xff);
    EXPECT_EQ(y[0].sum, 2048.0f);
    EXPECT_EQ(y[0].inc, 4096u % 10);
    EXPECT_EQ(y[0].big, 4096.0);
}

TEST_F(JitKernelTest, Intrinsics) {
    const std::string source = R"(extern "C" __global__ void math(double* x) {
    float v = (float)x[0];
    int k = 0;
    x[k++] = __expf(v); x[k++] = rsqrtf(v); x[k++] = __fmaf_rn(v, v, 1.0f); x[k++] = fminf(v, 1.0f);
    x[k++] = max(3, 7); x[k++] = min(2.5f, 1.5f); x[k++] = __popc(0xf0f0u); x[k++] = __clz(1);
    x[k++] = __float2int_rn(2.5f); x[k++] = __float2int_rz(-2.7f); x[k++] = __int_as_float(0x40490fdb);
    x[k++] = __brev(1u); x[k++] = __umulhi(0x80000000u, 4u); x[k++] = __byte_perm(0x03020100u, 0x07060504u, 0x7531u);
    x[k++] = __saturatef(1.5f); x[k++] = __ldg((const double*)x + 31); x[k++] = __ffs(8); x[k++] = __float2int_rn(3e10f);
    x[k++] = tanhf(v); x[k++] = __logf(v);
    float4 q = make_float4(1, 2, 3, 4); x[k++] = q.w; x[k++] = sizeof(float3) + sizeof(float4);
})";
    const auto x = run<double>(source, "math", {{1}, {1}}, [] {
        std::vector<double> start(32);
        start[0] = 2.0;
        start[31] = 7.0;
        return start;
    }());
    const double expected[] = {std::exp(2.0),
                               1 / std::sqrt(2.0),
                               5,
                               1,
                               7,
                               1.5,
                               8,
                               31,
                               2,
                               -2,
                               3.14159265,
                               2147483648.0,
                               2,
                               0x07050301,
                               1,
                               7,
                               4,
                               2147483647,
                               std::tanh(2.0),
                               std::log(2.0),
                               4,
                               28};
    for (std::size_t i = 0; i < std::size(expected); ++i) {
        EXPECT_NEAR(x[i], expected[i], 2e-6 * std::abs(expected[i])) << i;
    }
}

TEST_F(JitKernelTest, SixteenBitFloats) {
    const std::string source = R"(
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void small(unsigned short* x, half factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const __half h = ((const __half*)x)[i];
    float value = __half2float(h);
    ((__nv_bfloat16*)(x + n))[i] = __float2bfloat16(value);
    ((__half*)x)[i] = __hmul(h, factor);
})";
    if (device.is_cuda() && !platform::file_exists("/usr/local/cuda/include/cuda_fp16.h"))
        GTEST_SKIP() << "no headers";
    constexpr int kAll = 65536;
    std::vector<std::uint16_t> x(2 * kAll);
    for (std::size_t i = 0; i < kAll; ++i) x[i] = static_cast<std::uint16_t>(i);
    const auto y = run(source, "small", {{256}, {256}}, x, {0.75, kAll});
    for (std::size_t i = 0; i < kAll; ++i) {
        float16 h;
        h.bits = static_cast<std::uint16_t>(i);
        const float value = static_cast<float>(h);
        if (std::isnan(value)) continue;
        ASSERT_EQ(y[i], float16(value * 0.75f).bits) << value;
        ASSERT_EQ(y[kAll + i], bfloat16(value).bits) << value;
    }
}

TEST_F(JitKernelTest, NoParametersAndManyKernelsOfOneSource) {
    const std::string source = "__device__ int state; __global__ void none() { state = 1; }\n" + kScale;
    const auto none = compile(source, "none");
    EXPECT_EQ(none->signature().params_bytes, 0u);
    none->launch(*device.default_stream(), {{3}, {3}}, nullptr);
    device.synchronize();
    EXPECT_EQ(run<float>(source, "scale", {{1}, {1}}, {3.0f}, {2.0, 1})[0], 6.0f);
}

TEST_F(JitKernelTest, FlagsReachTheCompiler) {
    const std::string source = R"(extern "C" __global__ void f(int* x) { *x = VALUE; })";
    for (int value : {3, 4}) {
        const auto kernel = compile(source, "f", {"-DVALUE=" + std::to_string(value)});
        EXPECT_EQ(run_compiled<int>(*kernel, {}, {0})[0], value);
    }
}

TEST_F(JitKernelTest, ErrorsShowTheLine) {
    const std::string text = refusal(ErrorKind::compile, [&] {
        compile("extern \"C\" __global__ void f(float* x) {\n  int a;\n  x[0] = unknown;\n}\n", "f");
    });
    EXPECT_NE(text.find("> 3 |   x[0] = unknown;"), std::string::npos) << text;
    EXPECT_NE(text.find("'f' does not compile"), std::string::npos) << text;
    // Below a declaration over several lines, lines still count right.
    const std::string below = refusal(ErrorKind::compile, [&] {
        compile(
            "extern \"C\" __global__ void f(float* x) {\n  extern __shared__\n float s[];\n  x[0] = "
            "unknown;\n}\n",
            "f");
    });
    EXPECT_NE(below.find("> 4 |   x[0] = unknown;"), std::string::npos) << below;
}

TEST_F(JitKernelTest, LaunchesThatCannotBe) {
    const auto kernel = compile(kScale, "scale");
    const auto refuse = [&](const LaunchConfig& config) {
        char params[16] = {};
        return refusal(ErrorKind::value, [&] { kernel->launch(*device.default_stream(), config, params); });
    };
    EXPECT_NE(refuse({{0}, {1}}).find("argument 'grid'"), std::string::npos);
    EXPECT_NE(refuse({{1, 70000}, {1}}).find("argument 'grid'"), std::string::npos);
    EXPECT_NE(refuse({{1}, {0}}).find("argument 'block'"), std::string::npos);
    EXPECT_NE(refuse({{1}, {1025}}).find("1 to 1024 threads"), std::string::npos);
    EXPECT_NE(refuse({{1}, {0x80000000u, 2}}).find("argument 'block'"), std::string::npos);
    EXPECT_NE(refuse({{1}, {1, 1, 65}}).find("argument 'block'"), std::string::npos);
    EXPECT_NE(refuse({{1}, {1}, 1u << 30}).find("argument 'shared_bytes'"), std::string::npos);
    EXPECT_NE(refuse({{3}, {1}, 0, 2}).find("argument 'cluster'"), std::string::npos);
}

TEST_F(JitKernelTest, AGraphKeepsItsKernel) {
    auto kernel = compile(kScale, "scale");
    const auto stream = Stream::create(device);
    const DevicePtr pointer = device.driver().allocate(4);
    float value = 1;
    device.launcher().copy_to_device(*stream, pointer, &value, 4);
    alignas(8) char params[16];
    std::memcpy(params, &pointer, 8);
    pack_scalar(kernel->signature(), kernel->signature().parameters[1], 3.0, params);
    pack_scalar(kernel->signature(), kernel->signature().parameters[2], 1, params);
    const std::weak_ptr<JitKernel> watched = kernel;
    {
        const auto graph = Graph::capture(stream, [&] { kernel->launch(*stream, {}, params); });
        kernel.reset();
        EXPECT_FALSE(watched.expired());
        graph->launch(stream);
        graph->launch(stream);
        device.launcher().copy_to_host(*stream, &value, pointer, 4);
        stream->synchronize();
        EXPECT_EQ(value, 9.0f);
    }
    EXPECT_TRUE(watched.expired());
    device.driver().free(pointer);
}

// -- What only the simulated device does --------------------------------------------------------------------

class HostCompileTest : public JitKernelTest {
   protected:
    void SetUp() override {
        JitKernelTest::SetUp();
        if (device.is_cuda()) GTEST_SKIP() << "of the simulated device";
    }
    HostCompiled host(const std::string& source, const std::string& function) {
        return compile_host(source, parse_signature(source, function), {});
    }
};

TEST_F(HostCompileTest, FibersOnlyWhereThreadsMeet) {
    EXPECT_FALSE(host(kScale, "scale").threads_meet);
    EXPECT_TRUE(host("__global__ void f(int* x) { __syncthreads(); }", "f").threads_meet);
    EXPECT_TRUE(host("#define SYNC __syncwarp()\n__global__ void f(int* x) { SYNC; }", "f").threads_meet);
    EXPECT_FALSE(host("__global__ void f(int* x) { /* __syncthreads(); */ }", "f").threads_meet);
}

TEST_F(HostCompileTest, WaitingForEverIsAnError) {
    const std::string source = R"(extern "C" __global__ void stuck(int* x) {
    if (threadIdx.x < 16) __syncthreads(); else __shfl_sync(0xffffffffu, 1, 0); })";
    const std::string text = refusal(ErrorKind::driver, [&] { run<int>(source, "stuck", {{1}, {32}}, {0}); });
    EXPECT_NE(text.find("wait for one another for ever"), std::string::npos) << text;
    EXPECT_EQ(run<float>(kScale, "scale", {{1}, {1}}, {3.0f}, {2.0, 1})[0], 6.0f);
}

TEST_F(HostCompileTest, AssertionsAreErrors) {
    for (const char* sync : {"", "__syncthreads();"}) {
        const std::string source = str("#include <cassert>\nextern \"C\" __global__ void check(int* x) {\n",
                                       sync, "\nassert(*x == 1); }");
        const std::string text =
            refusal(ErrorKind::driver, [&] { run<int>(source, "check", {{2}, {32}}, {0}); });
        EXPECT_NE(text.find("*x == 1"), std::string::npos) << text;
    }
}

TEST_F(HostCompileTest, ExceptionsAreErrors) {
    for (const char* sync : {"", "__syncthreads();"}) {
        for (const char* thrown : {"1", "std::runtime_error(\"no\")"}) {
            const std::string source =
                str("#include <stdexcept>\nextern \"C\" __global__ void thrower(int* x) {\n", sync,
                    "\nif (*x == 0) throw ", thrown, "; }");
            const std::string text =
                refusal(ErrorKind::driver, [&] { run<int>(source, "thrower", {{2}, {32}, 64}, {0}); });
            EXPECT_NE(text.find("threw an exception"), std::string::npos) << text;
        }
    }
    EXPECT_EQ(run<float>(kScale, "scale", {{1}, {1}}, {3.0f}, {2.0, 1})[0], 6.0f);
}

TEST_F(HostCompileTest, WithoutACacheItStillRuns) {
    setenv("PYGPUKIT_CACHE_DIR", "/dev/null", 1);
    const auto kernel = compile(kScale, "scale");
    EXPECT_FALSE(kernel->from_cache());
    EXPECT_EQ(run_compiled<float>(*kernel, {{1}, {1}}, {3.0f}, {2.0, 1})[0], 6.0f);
}

TEST_F(HostCompileTest, ADamagedEntryIsCompiledAgain) {
    compile("__global__ void damaged(int* x) {}", "damaged");
    const auto entries = platform::file_entries(temporary.path() + "/jit");
    ASSERT_EQ(entries.size(), 1u);
    ASSERT_TRUE(platform::replace_file(entries[0].path, "not a library"));
    EXPECT_FALSE(compile("__global__ void damaged(int* x) {}", "damaged")->from_cache());
}

TEST_F(HostCompileTest, TheCompilerIsChosenAndMissed) {
    setenv("PYGPUKIT_CXX", "g++", 1);
    EXPECT_NE(refusal(ErrorKind::value, [&] { host(kScale, "scale"); }).find("absolute path"),
              std::string::npos);
    setenv("PYGPUKIT_CXX", "/usr/bin/env", 1);  // runs, but compiles nothing
    refusal(ErrorKind::compile, [&] { host(kScale + " ", "scale"); });
    unsetenv("PYGPUKIT_CXX");
    EXPECT_FALSE(host_compiler().empty());
}

}  // namespace
}  // namespace gpk::jit
