#include "kernels.hpp"

#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "base/log.hpp"
#include "harness.hpp"
#include "jit/compile.hpp"

namespace bench {

namespace {

constexpr const char* kSource = R"cuda(
typedef unsigned long long u64;

extern "C" __global__ void record_smid(u64* counts, u64* span) {
    if (threadIdx.x != 0) return;
    unsigned smid;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(smid));
    atomicAdd(counts + smid, 1ULL);
    const bool first = blockIdx.x == 0, last = blockIdx.x == gridDim.x - 1;
    if (first || last) {
        u64 now;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        atomicMin(span, now);
        atomicMax(span + 1, now);
    }
}

extern "C" __global__ void __launch_bounds__(1024) victim(float* out, const float4* data, long long count, long long offset,
                                  int rounds, int steps, long long loads) {
    const long long threads = (long long)gridDim.x * blockDim.x;
    const long long self = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long groups = count / 4;
    long long at = (offset / 4 + self) % groups;
    float a = 1.0f + self * 1e-6f, b = 0.5f, c = 0.25f, d = 0.125f;
    for (int r = 0; r < rounds; ++r) {
        float4 v = make_float4(0.75f, 0.6f, 0.9f, 0.5f);
        if (loads) {
            v = __ldcs(data + at);
            at += threads;
            if (at >= groups) at -= groups;
        }
        for (int s = 0; s < steps; s += 4) {
            a = fmaf(a, 0.5f, v.x); b = fmaf(b, 0.5f, v.y);
            c = fmaf(c, 0.5f, v.z); d = fmaf(d, 0.5f, v.w);
        }
    }
    out[self] = a + b + c + d;
}

extern "C" __global__ void fma_chains(float* out, long long steps) {
    const long long self = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    float x[8];
    for (int k = 0; k < 8; ++k) x[k] = 1.0f + k + self * 1e-6f;
    for (long long s = 0; s < steps; s += 8)
        for (int k = 0; k < 8; ++k) x[k] = fmaf(x[k], 0.5f, 0.75f);
    float sum = 0;
    for (int k = 0; k < 8; ++k) sum += x[k];
    out[self] = sum;
}

extern "C" __global__ void stream_copy(float4* to, const float4* from, long long count, long long per_block) {
    const long long begin = blockIdx.x * per_block;
    const long long end = begin + per_block < count ? begin + per_block : count;
    for (long long i = begin + threadIdx.x; i < end; i += 4 * blockDim.x) {
        float4 v[4];
        for (int k = 0; k < 4; ++k)
            if (i + k * blockDim.x < end) v[k] = __ldcs(from + i + k * blockDim.x);
        for (int k = 0; k < 4; ++k)
            if (i + k * blockDim.x < end) __stcs(to + i + k * blockDim.x, v[k]);
    }
}

__device__ u64 mixed(u64 z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

extern "C" __global__ void fill_random(float* x, long long count, u64 seed) {
    const long long threads = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads)
        x[i] = __uint_as_float(0x3f000000u | (unsigned)(mixed(seed + i) >> 41));
}

extern "C" __global__ void checksum(u64* sum, const unsigned* x, long long count) {
    const long long threads = (long long)gridDim.x * blockDim.x;
    u64 own = 0;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads)
        own += (x[i] + 1ULL) * mixed(i + 1);
    for (int step = 16; step > 0; step /= 2) own += __shfl_down_sync(0xffffffffu, own, step);
    if (threadIdx.x % 32 == 0) atomicAdd(sum, own);
}

extern "C" __global__ void nothing(u64 pointer, float factor, unsigned n) {}
)cuda";

template <class Params>
const Params& as(const void* params) {
    return *static_cast<const Params*>(params);
}

// Nothing places blocks on the simulated device: the caller says for which SM all of them count.
void record_smid_host(const void* params, const gpk::LaunchConfig& config) {
    const auto& p = as<RecordSmidParams>(params);
    const auto now = static_cast<std::uint64_t>(Section::now_ns());
    p.counts[0] += config.grid.x;
    p.span[0] = std::min(p.span[0], now);
    p.span[1] = std::max(p.span[1], now);
}

void victim_host(const void* params, const gpk::LaunchConfig& config) {
    const auto& p = as<VictimParams>(params);
    const std::int64_t threads = std::int64_t{config.grid.x} * config.block.x;
    const std::int64_t groups = p.count / 4;
    for (std::int64_t self = 0; self < threads; ++self) {
        std::int64_t at = (p.offset / 4 + self) % groups;
        float x[4] = {1.0f + static_cast<float>(self) * 1e-6f, 0.5f, 0.25f, 0.125f};
        for (std::int32_t r = 0; r < p.rounds; ++r) {
            float v[4] = {0.75f, 0.6f, 0.9f, 0.5f};
            if (p.loads != 0) {
                std::memcpy(v, p.data + 4 * at, sizeof(v));
                at = (at + threads) % groups;
            }
            for (std::int32_t s = 0; s < p.steps; s += 4) {
                for (int k = 0; k < 4; ++k) x[k] = x[k] * 0.5f + v[k];
            }
        }
        p.out[self] = x[0] + x[1] + x[2] + x[3];
    }
}

void fma_host(const void* params, const gpk::LaunchConfig& config) {
    const auto& p = as<FmaParams>(params);
    const std::int64_t threads = std::int64_t{config.grid.x} * config.block.x;
    for (std::int64_t self = 0; self < threads; ++self) {
        float sum = 0;
        for (int k = 0; k < 8; ++k) {
            float x = 1.0f + static_cast<float>(k) + static_cast<float>(self) * 1e-6f;
            for (std::int64_t s = 0; s < p.steps; s += 8) x = x * 0.5f + 0.75f;
            sum += x;
        }
        p.out[self] = sum;
    }
}

void stream_copy_host(const void* params, const gpk::LaunchConfig& config) {
    const auto& p = as<StreamCopyParams>(params);
    const std::int64_t count = std::min(p.count, p.per_block * config.grid.x);
    std::memcpy(p.to, p.from, static_cast<std::size_t>(count) * 16);
}

std::uint64_t mixed(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

void fill_random_host(const void* params, const gpk::LaunchConfig&) {
    const auto& p = as<FillRandomParams>(params);
    for (std::int64_t i = 0; i < p.count; ++i) {
        const auto bits =
            0x3f000000u | static_cast<std::uint32_t>(mixed(p.seed + static_cast<std::uint64_t>(i)) >> 41);
        std::memcpy(p.x + i, &bits, sizeof(bits));
    }
}

void checksum_host(const void* params, const gpk::LaunchConfig&) {
    const auto& p = as<ChecksumParams>(params);
    for (std::int64_t i = 0; i < p.count; ++i) {
        *p.sum += (p.x[i] + std::uint64_t{1}) * mixed(static_cast<std::uint64_t>(i) + 1);
    }
}

void nothing_host(const void*, const gpk::LaunchConfig&) {}

constexpr const char* kNames[] = {"record_smid", "victim",   "fma_chains", "stream_copy",
                                  "fill_random", "checksum", "nothing"};

constexpr gpk::LaunchConfig kWide = {.grid = {1024}, .block = {256}};

}  // namespace

void compile_kernels(int sm) {
    for (const char* name : kNames) {
        gpk::jit::compile_cubin(kSource, gpk::jit::parse_signature(kSource, name), sm, {});
    }
}

BenchKernel::BenchKernel(gpk::Device& device, const char* name, gpk::HostTwin twin,
                         std::uint32_t max_shared_bytes)
    : device_(device), symbol_(name) {
    gpk::KernelDef def{.name = symbol_.c_str(), .twin = twin, .max_shared_bytes = max_shared_bytes};
    if (device.is_cuda()) {
        gpk::jit::Compiled compiled =
            gpk::jit::compile_cubin(kSource, gpk::jit::parse_signature(kSource, name), device.info().sm, {});
        symbol_ = std::move(compiled.symbol);
        code_ = std::move(compiled.image);
        image_ = {reinterpret_cast<const unsigned char*>(code_.data()), code_.size()};
        def.name = symbol_.c_str();
        def.image = &image_;
    }
    kernel_ = std::make_unique<gpk::Kernel>(def);
    kernel_->on(device);
}

BenchKernel::~BenchKernel() {
    if (image_.data == nullptr) return;
    try {
        device_.synchronize();
    } catch (const gpk::Error& failure) {
        gpk::log(gpk::LogLevel::info, failure.what());
    }
    device_.driver().unload(image_);
}

Kernels::Kernels(gpk::Device& device)
    : record_smid(device, "record_smid", record_smid_host),
      victim(device, "victim", victim_host, kVictimSharedBytes),
      fma(device, "fma_chains", fma_host),
      stream_copy(device, "stream_copy", stream_copy_host),
      fill_random(device, "fill_random", fill_random_host),
      checksum(device, "checksum", checksum_host),
      nothing(device, "nothing", nothing_host) {}

void fill_random(const Kernels& kernels, gpk::Stream& stream, gpk::DevicePtr pointer, std::size_t bytes,
                 std::uint64_t seed) {
    kernels.fill_random.launch(stream, kWide,
                               FillRandomParams{reinterpret_cast<float*>(pointer),
                                                static_cast<std::int64_t>(bytes / sizeof(float)), seed});
    stream.synchronize();
}

std::uint64_t checksum(const Kernels& kernels, gpk::Stream& stream, gpk::DevicePtr pointer,
                       std::size_t bytes) {
    gpk::Launcher& launcher = stream.device().launcher();
    const Memory sum(stream.device(), sizeof(std::uint64_t));
    stream.device().default_stream()->synchronize();
    launcher.fill(stream, sum.pointer(), 0, sum.bytes());
    kernels.checksum.launch(stream, kWide,
                            ChecksumParams{sum.as<std::uint64_t>(), reinterpret_cast<std::uint32_t*>(pointer),
                                           static_cast<std::int64_t>(bytes / sizeof(std::uint32_t))});
    std::uint64_t result = 0;
    launcher.copy_to_host(stream, &result, sum.pointer(), sizeof(result));
    stream.synchronize();
    return result;
}

}  // namespace bench
