#include "jit/host_shim.hpp"

namespace gpk::jit {

const char* const kHostShim = R"shim(
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmath>
#include <cstdint>
#include <limits>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

// -- The other side (native/jit/host_runtime.hpp, native/driver/driver.hpp) --------------------------------
struct gpk_runtime {
    void (*parallel)(int64_t count, void (*body)(void*, int64_t, int64_t), void* context);
    void (*run_block)(uint32_t threads, void (*thread)(void*, uint32_t), void* context);
    uint64_t (*block_barrier)(uint32_t predicate);
    uint32_t (*warp_exchange)(uint32_t mask, uint64_t value, uint64_t* values);
    void (*fail)(const char* message);
};
static gpk_runtime gpk_rt;
struct gpk_dim { uint32_t x, y, z; };
struct gpk_config { gpk_dim grid, block; uint32_t shared_bytes, cluster; };

// -- Words ----------------------------------------------------------------------------------------------
#define __CUDACC__ 1
#define __PYGPUKIT_HOST__ 1
#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ static thread_local
#define __forceinline__ inline
#define __noinline__
#define __restrict__ __restrict
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#undef assert
#define gpk_text2(x) #x
#define gpk_text(x) gpk_text2(x)
#define assert(condition) \
    ((condition) ? (void)0 : gpk_rt.fail("assertion failed: " #condition " (line " gpk_text(__LINE__) ")"))
#define __trap() gpk_rt.fail("__trap() (line " gpk_text(__LINE__) ")")

// -- Vectors --------------------------------------------------------------------------------------------
typedef unsigned char uchar;
#define gpk_vector(T, name, align2, align4)                                                              \
    struct name##1 { T x; };                                                                             \
    struct __attribute__((aligned(align2))) name##2 { T x, y; };                                         \
    struct name##3 { T x, y, z; };                                                                       \
    struct __attribute__((aligned(align4))) name##4 { T x, y, z, w; };                                   \
    static inline name##1 make_##name##1(T x) { return {x}; }                                            \
    static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                    \
    static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                            \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
gpk_vector(signed char, char, 2, 4)
gpk_vector(unsigned char, uchar, 2, 4)
gpk_vector(short, short, 4, 8)
gpk_vector(unsigned short, ushort, 4, 8)
gpk_vector(int, int, 8, 16)
gpk_vector(unsigned, uint, 8, 16)
gpk_vector(long, long, 16, 16)
gpk_vector(unsigned long, ulong, 16, 16)
gpk_vector(long long, longlong, 16, 16)
gpk_vector(unsigned long long, ulonglong, 16, 16)
gpk_vector(float, float, 8, 16)
gpk_vector(double, double, 16, 16)
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

static thread_local uint3 threadIdx, blockIdx;
static thread_local dim3 blockDim, gridDim;
static thread_local char* gpk_dynamic_memory;
static constexpr int warpSize = 32;
template <class T> static inline T* gpk_dynamic_shared() { return (T*)gpk_dynamic_memory; }
// Dynamic shared memory declared outside of a function.
template <class T> struct gpk_dynamic {
    operator T*() const { return gpk_dynamic_shared<T>(); }
};

// -- Where threads meet ---------------------------------------------------------------------------------
static inline uint64_t gpk_meet(int predicate) {
    const uint3 self = threadIdx;
    const uint64_t vote = gpk_rt.block_barrier(predicate != 0);
    threadIdx = self;
    return vote;
}
static inline uint32_t gpk_exchange(unsigned mask, uint64_t value, uint64_t* values) {
    const uint3 self = threadIdx;
    const uint32_t lanes = gpk_rt.warp_exchange(mask, value, values);
    threadIdx = self;
    return lanes;
}
static inline unsigned gpk_lane() {
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}
static inline void __syncthreads() { gpk_meet(0); }
static inline int __syncthreads_count(int p) { return (int)(uint32_t)gpk_meet(p); }
static inline int __syncthreads_or(int p) { return (uint32_t)gpk_meet(p) != 0; }
static inline int __syncthreads_and(int p) { const uint64_t v = gpk_meet(p); return (v >> 32) == (uint32_t)v; }
static inline void __syncwarp(unsigned mask = ~0u) { gpk_exchange(mask, 0, nullptr); }
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __nanosleep(unsigned) {}

template <class T> static inline uint64_t gpk_bits(T value) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    return bits;
}
// The lane that `source` names, if it took part; else the caller's own value.
template <class T> static inline T gpk_shuffle(unsigned mask, T value, int source) {
    uint64_t values[32];
    const uint32_t lanes = gpk_exchange(mask, gpk_bits(value), values);
    if (source < 0 || source > 31 || (lanes >> source & 1) == 0) return value;
    T result;
    memcpy(&result, &values[source], sizeof(T));
    return result;
}
// CUDA C++ Programming Guide, "Warp Shuffle Functions": sub-warps of `width` lanes.
template <class T> static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    const int lane = gpk_lane();
    return gpk_shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    const int lane = gpk_lane(), source = lane - (int)delta;
    return gpk_shuffle(mask, value, source < (lane & ~(width - 1)) ? lane : source);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    const int lane = gpk_lane(), source = lane + (int)delta;
    return gpk_shuffle(mask, value, source > (lane | (width - 1)) ? lane : source);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    const int lane = gpk_lane(), source = lane ^ bits;
    return gpk_shuffle(mask, value, source > (lane | (width - 1)) ? lane : source);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    uint64_t values[32];
    gpk_exchange(mask, predicate != 0, values);
    unsigned result = 0;
    for (int lane = 0; lane < 32; ++lane) result |= (unsigned)values[lane] << lane;
    return result;
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
// Threads run one at a time, so the caller is the only one active.
static inline unsigned __activemask() { return 1u << gpk_lane(); }
template <class T> static inline unsigned __match_any_sync(unsigned mask, T value) {
    uint64_t values[32];
    const uint32_t lanes = gpk_exchange(mask, gpk_bits(value), values);
    unsigned result = 0;
    for (int lane = 0; lane < 32; ++lane) {
        if ((lanes >> lane & 1) && values[lane] == gpk_bits(value)) result |= 1u << lane;
    }
    return result;
}
template <class T, class Op> static inline T gpk_reduce(unsigned mask, T value, Op op) {
    uint64_t values[32];
    const uint32_t lanes = gpk_exchange(mask, gpk_bits(value), values);
    T result = value;
    for (int lane = 0; lane < 32; ++lane) {
        if (!(lanes >> lane & 1) || lane == (int)gpk_lane()) continue;
        T other;
        memcpy(&other, &values[lane], sizeof(T));
        result = op(result, other);
    }
    return result;
}
#define gpk_reduce_function(name, T, expression)                      \
    static inline T name(unsigned mask, T value) {                    \
        return gpk_reduce(mask, value, [](T a, T b) { return (T)(expression); }); \
    }
gpk_reduce_function(__reduce_add_sync, int, (unsigned)a + (unsigned)b)
gpk_reduce_function(__reduce_add_sync, unsigned, a + b)
gpk_reduce_function(__reduce_min_sync, int, a < b ? a : b)
gpk_reduce_function(__reduce_min_sync, unsigned, a < b ? a : b)
gpk_reduce_function(__reduce_max_sync, int, a > b ? a : b)
gpk_reduce_function(__reduce_max_sync, unsigned, a > b ? a : b)
gpk_reduce_function(__reduce_and_sync, unsigned, a & b)
gpk_reduce_function(__reduce_or_sync, unsigned, a | b)
gpk_reduce_function(__reduce_xor_sync, unsigned, a ^ b)

// -- Atomics: one loop for every type and operation -------------------------------------------------------
template <class T, class Op> static inline T gpk_update(T* address, Op op) {
    T old, next;
    __atomic_load(address, &old, __ATOMIC_RELAXED);
    do {
        next = op(old);
    } while (!__atomic_compare_exchange(address, &old, &next, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
    return old;
}
#define gpk_atomic(name, expression)                                                    \
    template <class T, class V> static inline T name(T* address, V operand) {           \
        const T value = (T)operand;                                                     \
        return gpk_update(address, [value](T old) -> T { return (T)(expression); });    \
    }                                                                                   \
    template <class T, class V> static inline T name##_block(T* address, V operand) { return name(address, operand); } \
    template <class T, class V> static inline T name##_system(T* address, V operand) { return name(address, operand); }
gpk_atomic(atomicAdd, old + value)
gpk_atomic(atomicSub, old - value)
gpk_atomic(atomicExch, value)
gpk_atomic(atomicMin, value < old ? value : old)
gpk_atomic(atomicMax, value > old ? value : old)
gpk_atomic(atomicAnd, old & value)
gpk_atomic(atomicOr, old | value)
gpk_atomic(atomicXor, old ^ value)
gpk_atomic(atomicInc, old >= value ? 0 : old + 1)
gpk_atomic(atomicDec, old == 0 || old > value ? value : old - 1)
template <class T, class C, class V> static inline T atomicCAS(T* address, C compare, V operand) {
    T old = (T)compare, next = (T)operand;
    __atomic_compare_exchange(address, &old, &next, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return old;
}

// -- Numbers --------------------------------------------------------------------------------------------
template <class A, class B> static constexpr auto min(A a, B b) {
    using T = typename std::common_type<A, B>::type;
    return (T)b < (T)a ? (T)b : (T)a;
}
template <class A, class B> static constexpr auto max(A a, B b) {
    using T = typename std::common_type<A, B>::type;
    return (T)a < (T)b ? (T)b : (T)a;
}
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float rsqrt(float x) { return rsqrtf(x); }
static inline float sinpif(float x) { return (float)sin(3.14159265358979323846 * fmod((double)x, 2.0)); }
static inline float cospif(float x) { return (float)cos(3.14159265358979323846 * fmod((double)x, 2.0)); }
static inline double sinpi(double x) { return sin(3.14159265358979323846 * fmod(x, 2.0)); }
static inline double cospi(double x) { return cos(3.14159265358979323846 * fmod(x, 2.0)); }
static inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678118654752f); }
static inline double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
// The C library has functions of these names for itself.
#define __expf gpk_fast_expf
#define __exp10f gpk_fast_exp10f
#define __logf gpk_fast_logf
#define __log2f gpk_fast_log2f
#define __log10f gpk_fast_log10f
#define __powf gpk_fast_powf
#define __sinf gpk_fast_sinf
#define __cosf gpk_fast_cosf
#define __tanf gpk_fast_tanf
#define __tanhf gpk_fast_tanhf
#define __sincosf gpk_fast_sincosf
static inline float __expf(float x) { return expf(x); }
static inline float __exp10f(float x) { return powf(10.0f, x); }
static inline float __logf(float x) { return logf(x); }
static inline float __log2f(float x) { return log2f(x); }
static inline float __log10f(float x) { return log10f(x); }
static inline float __powf(float x, float y) { return powf(x, y); }
static inline float __sinf(float x) { return sinf(x); }
static inline float __cosf(float x) { return cosf(x); }
static inline float __tanf(float x) { return tanf(x); }
static inline float __tanhf(float x) { return tanhf(x); }
static inline void __sincosf(float x, float* s, float* c) { *s = sinf(x); *c = cosf(x); }
static inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __frsqrt_rn(float x) { return (float)(1.0 / sqrt((double)x)); }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline double __dadd_rn(double x, double y) { return x + y; }
static inline double __dmul_rn(double x, double y) { return x * y; }
static inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }

template <class To, class From> static inline To gpk_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}
static inline int __float_as_int(float x) { return gpk_cast<int>(x); }
static inline unsigned __float_as_uint(float x) { return gpk_cast<unsigned>(x); }
static inline float __int_as_float(int x) { return gpk_cast<float>(x); }
static inline float __uint_as_float(unsigned x) { return gpk_cast<float>(x); }
static inline long long __double_as_longlong(double x) { return gpk_cast<long long>(x); }
static inline double __longlong_as_double(long long x) { return gpk_cast<double>(x); }
// Conversions saturate and give 0 for NaN, as the device's do.
template <class T> static inline T gpk_to_integer(double x) {
    if (x != x) return 0;
    if (x <= (double)std::numeric_limits<T>::min()) return std::numeric_limits<T>::min();
    if (x >= (double)std::numeric_limits<T>::max()) return std::numeric_limits<T>::max();
    return (T)x;
}
#define gpk_round(from, to, F, T)                                                               \
    static inline T __##from##2##to##_rn(F x) { return gpk_to_integer<T>(nearbyint((double)x)); } \
    static inline T __##from##2##to##_rz(F x) { return gpk_to_integer<T>(trunc((double)x)); }     \
    static inline T __##from##2##to##_ru(F x) { return gpk_to_integer<T>(ceil((double)x)); }      \
    static inline T __##from##2##to##_rd(F x) { return gpk_to_integer<T>(floor((double)x)); }
gpk_round(float, int, float, int)
gpk_round(float, uint, float, unsigned)
gpk_round(float, ll, float, long long)
gpk_round(float, ull, float, unsigned long long)
gpk_round(double, int, double, int)
gpk_round(double, uint, double, unsigned)
gpk_round(double, ll, double, long long)
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline float __ll2float_rn(long long x) { return (float)x; }
static inline double __int2double_rn(int x) { return x; }
static inline float __double2float_rn(double x) { return (float)x; }

static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x) {
    unsigned result = 0;
    for (int i = 0; i < 32; ++i) result |= (x >> i & 1u) << (31 - i);
    return result;
}
static inline int __mulhi(int a, int b) { return (int)(((long long)a * b) >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a * b) >> 32); }
static inline long long __mul64hi(long long a, long long b) { return (long long)(((__int128)a * b) >> 64); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)((((unsigned long long)high << 32 | low) << (shift & 31)) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (shift & 31));
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const unsigned long long bytes = (unsigned long long)b << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= (unsigned)(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
    return result;
}
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; ++i) c += (int)(signed char)(a >> (8 * i)) * (int)(signed char)(b >> (8 * i));
    return c;
}
#define gpk_load(name) template <class T> static inline T name(const T* address) { return *address; }
gpk_load(__ldg) gpk_load(__ldca) gpk_load(__ldcg) gpk_load(__ldcs) gpk_load(__ldcv) gpk_load(__ldlu)
#define gpk_store(name) template <class T, class V> static inline void name(T* address, V value) { *address = (T)value; }
gpk_store(__stcg) gpk_store(__stcs) gpk_store(__stwb) gpk_store(__stwt)

// -- 16-bit floats: stored types whose arithmetic runs in float32 -----------------------------------------
static inline uint16_t gpk_half_bits(float value) {
    const uint32_t bits = gpk_cast<uint32_t>(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00);  // rounds past 65504
    // Below 2^-14 the last bit is 2^-24: let float32's adder round there.
    if (magnitude < 0x38800000) {
        const float sum = gpk_cast<float>(magnitude) + 0.5f;
        return (uint16_t)(sign | (gpk_cast<uint32_t>(sum) - 0x3f000000));
    }
    return (uint16_t)(sign | ((magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13));
}
static inline float gpk_half_value(uint16_t bits) {
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
    if (magnitude >= 0x7c00) return gpk_cast<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    if (magnitude >= 0x400) return gpk_cast<float>(sign | ((magnitude << 13) + 0x38000000));
    const float value = (float)magnitude * 5.9604644775390625e-8f;  // 2^-24
    return sign ? -value : value;
}
static inline uint16_t gpk_bfloat_bits(float value) {
    const uint32_t bits = gpk_cast<uint32_t>(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static inline float gpk_bfloat_value(uint16_t bits) { return gpk_cast<float>((uint32_t)bits << 16); }
#define gpk_small_float(name, encode, decode)                                                    \
    struct name {                                                                                \
        uint16_t bits;                                                                           \
        name() = default;                                                                        \
        template <class T, class = typename std::enable_if<std::is_arithmetic<T>::value>::type>  \
        name(T value) : bits(encode((float)value)) {}                                            \
        operator float() const { return decode(bits); }                                          \
        name& operator+=(float v) { return *this = name((float)*this + v); }                     \
        name& operator-=(float v) { return *this = name((float)*this - v); }                     \
        name& operator*=(float v) { return *this = name((float)*this * v); }                     \
        name& operator/=(float v) { return *this = name((float)*this / v); }                     \
    };                                                                                           \
    static inline name __hadd(name a, name b) { return (float)a + (float)b; }                    \
    static inline name __hsub(name a, name b) { return (float)a - (float)b; }                    \
    static inline name __hmul(name a, name b) { return (float)a * (float)b; }                    \
    static inline name __hdiv(name a, name b) { return (float)a / (float)b; }                    \
    static inline name __hfma(name a, name b, name c) { return fmaf(a, b, c); }                  \
    static inline name __hneg(name a) { return -(float)a; }                                      \
    static inline name __habs(name a) { return fabsf(a); }                                       \
    static inline name __hmax(name a, name b) { return fmaxf(a, b); }                            \
    static inline name __hmin(name a, name b) { return fminf(a, b); }                            \
    static inline bool __hlt(name a, name b) { return (float)a < (float)b; }                     \
    static inline bool __hgt(name a, name b) { return (float)a > (float)b; }                     \
    static inline bool __heq(name a, name b) { return (float)a == (float)b; }
gpk_small_float(__half, gpk_half_bits, gpk_half_value)
gpk_small_float(__nv_bfloat16, gpk_bfloat_bits, gpk_bfloat_value)
typedef __half half;
typedef __nv_bfloat16 nv_bfloat16;
static inline __half __float2half(float x) { return x; }
static inline __half __float2half_rn(float x) { return x; }
static inline float __half2float(__half x) { return x; }
static inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
static inline float __bfloat162float(__nv_bfloat16 x) { return x; }
#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_PI_F 3.141592654f
#define CUDART_INF __builtin_inf()
#define CUDART_NAN __builtin_nan("")
#define CUDART_PI 3.1415926535897931

// -- Running a kernel -------------------------------------------------------------------------------------
struct gpk_dynamic_scope {
    explicit gpk_dynamic_scope(size_t bytes) { gpk_dynamic_memory = (char*)operator new(bytes + 1, std::align_val_t(128)); }
    ~gpk_dynamic_scope() { operator delete(gpk_dynamic_memory, std::align_val_t(128)); }
};
template <auto kernel> struct gpk_kernel;
template <class... A, void (*kernel)(A...)> struct gpk_kernel<kernel> {
    using Arguments = std::tuple<typename std::remove_cv<A>::type...>;
    template <class T> static T take(const char* params, size_t& offset) {
        offset = (offset + sizeof(T) - 1) / sizeof(T) * sizeof(T);
        T value;
        memcpy(&value, params + offset, sizeof(T));
        offset += sizeof(T);
        return value;
    }
    static constexpr size_t params_bytes() {
        size_t offset = 0;
        ((offset = (offset + sizeof(A) - 1) / sizeof(A) * sizeof(A) + sizeof(A)), ...);
        return offset;
    }
    static void call(const Arguments& arguments) { std::apply(kernel, arguments); }

    template <bool threads_meet> static void run(const void* params, const gpk_config& config) {
        struct Work {
            Arguments arguments;
            gpk_config config;
        };
        size_t offset = 0;
        const char* const bytes = (const char*)params;
        Work work = {Arguments{take<typename std::remove_cv<A>::type>(bytes, offset)...}, config};
        (void)bytes;
        const int64_t blocks = (int64_t)config.grid.x * config.grid.y * config.grid.z;
        gpk_rt.parallel(blocks, [](void* context, int64_t begin, int64_t end) {
            const Work& work = *(const Work*)context;
            const gpk_dim grid = work.config.grid, block = work.config.block;
            const gpk_dynamic_scope dynamic(work.config.shared_bytes);
            blockDim = dim3(block.x, block.y, block.z);
            gridDim = dim3(grid.x, grid.y, grid.z);
            for (int64_t i = begin; i < end; ++i) {
                blockIdx = {(unsigned)(i % grid.x), (unsigned)(i / grid.x % grid.y), (unsigned)(i / grid.x / grid.y)};
                if constexpr (threads_meet) {
                    gpk_rt.run_block(block.x * block.y * block.z, [](void* context, uint32_t thread) {
                        const Work& work = *(const Work*)context;
                        const gpk_dim block = work.config.block;
                        threadIdx = {thread % block.x, thread / block.x % block.y, thread / block.x / block.y};
                        call(work.arguments);
                    }, context);
                } else {
                    for (unsigned z = 0; z < block.z; ++z)
                        for (unsigned y = 0; y < block.y; ++y)
                            for (unsigned x = 0; x < block.x; ++x) {
                                threadIdx = {x, y, z};
                                call(work.arguments);
                            }
                }
            }
        }, &work);
    }
};
#define gpk_export extern "C" __attribute__((visibility("default")))
)shim";

}  // namespace gpk::jit
