// wgmma: the matrix instructions of SM 90a. A warpgroup (4 warps, the first of a number divisible by 4)
// multiplies A (64 x k, from shared memory or registers) by B (k x N, from shared memory) into accumulators
// in its registers: d = a * b + d, or a * b where `add` is false.
//
// Thread t of the warpgroup holds of row 16 * (t / 32) + (t % 32) / 4 + 8 * i, for i = 0, 1, the columns
// 8 * j + 2 * (t % 4) and the next one in d[4 * j + 2 * i] and d[4 * j + 2 * i + 1].
// PTX ISA 9.0, "Asynchronous warpgroup level matrix instructions".
#pragma once

#include <cstdint>

#include "base/float_types.hpp"
#include "kernels/hopper.cuh"

namespace gpk::kernels {

// Before the first wgmma, and after registers of accumulators or of A were written by other instructions.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending committed groups are under way.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving uses of registers over a wait.
template <int kCount>
__device__ __forceinline__ void wgmma_hold(float (&registers)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void wgmma_hold(int (&registers)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

// A matrix in shared memory in rows of 128 bytes with the 128-byte swizzle, as the copy engine leaves a box
// of TensorSwizzle::bytes_128 at an address that 1024 divides.
//   k along the rows: 8 rows (of m or n) are `stride_bytes` from the next 8 (1024 where nothing lies
//   between);
//     a step along k adds its bytes / 16 to the descriptor. leading_bytes is not used.
//   m or n along the rows (16-bit elements only): 64 elements are a row; the next 64 are `leading_bytes`
//   away,
//     the next 8 of k `stride_bytes`.
__device__ __forceinline__ std::uint64_t wgmma_matrix(const void* shared, int leading_bytes,
                                                      int stride_bytes) {
    return static_cast<std::uint64_t>((shared_address(shared) & 0x3ffff) >> 4) |
           static_cast<std::uint64_t>(leading_bytes >> 4) << 16 |
           static_cast<std::uint64_t>(stride_bytes >> 4) << 32 | std::uint64_t{1} << 62;
}

// What the instruction calls its element types. k of one instruction is 32 bytes.
struct Tf32 {};  // float32 whose low 13 bits are not looked at
template <class T>
struct WgmmaType;
template <>
struct WgmmaType<bfloat16> {
    static constexpr int id = 0;
};
template <>
struct WgmmaType<float16> {
    static constexpr int id = 1;
};
template <>
struct WgmmaType<Tf32> {
    static constexpr int id = 2;
};
template <>
struct WgmmaType<float8_e4m3> {
    static constexpr int id = 3;
};
template <>
struct WgmmaType<float8_e5m2> {
    static constexpr int id = 4;
};
template <>
struct WgmmaType<std::int8_t> {
    static constexpr int id = 5;
};
template <>
struct WgmmaType<std::uint8_t> {
    static constexpr int id = 6;
};

// clang-format off

#define GPK_S0 "%0, %1, %2, %3"
#define GPK_S1 ", %4, %5, %6, %7"
#define GPK_S2 ", %8, %9, %10, %11"
#define GPK_S3 ", %12, %13, %14, %15"
#define GPK_S4 ", %16, %17, %18, %19"
#define GPK_S5 ", %20, %21, %22, %23"
#define GPK_S6 ", %24, %25, %26, %27"
#define GPK_S7 ", %28, %29, %30, %31"
#define GPK_S8 ", %32, %33, %34, %35"
#define GPK_S9 ", %36, %37, %38, %39"
#define GPK_S10 ", %40, %41, %42, %43"
#define GPK_S11 ", %44, %45, %46, %47"
#define GPK_S12 ", %48, %49, %50, %51"
#define GPK_S13 ", %52, %53, %54, %55"
#define GPK_S14 ", %56, %57, %58, %59"
#define GPK_S15 ", %60, %61, %62, %63"
#define GPK_S16 ", %64, %65, %66, %67"
#define GPK_S17 ", %68, %69, %70, %71"
#define GPK_S18 ", %72, %73, %74, %75"
#define GPK_S19 ", %76, %77, %78, %79"
#define GPK_S20 ", %80, %81, %82, %83"
#define GPK_S21 ", %84, %85, %86, %87"
#define GPK_S22 ", %88, %89, %90, %91"
#define GPK_S23 ", %92, %93, %94, %95"
#define GPK_S24 ", %96, %97, %98, %99"
#define GPK_S25 ", %100, %101, %102, %103"
#define GPK_S26 ", %104, %105, %106, %107"
#define GPK_S27 ", %108, %109, %110, %111"
#define GPK_S28 ", %112, %113, %114, %115"
#define GPK_S29 ", %116, %117, %118, %119"
#define GPK_S30 ", %120, %121, %122, %123"
#define GPK_S31 ", %124, %125, %126, %127"
#define GPK_D4(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define GPK_REGS_4 GPK_S0
#define GPK_DATA_4(c) GPK_D4(c, 0)
#define GPK_REGS_8 GPK_REGS_4 GPK_S1
#define GPK_DATA_8(c) GPK_DATA_4(c), GPK_D4(c, 4)
#define GPK_REGS_12 GPK_REGS_8 GPK_S2
#define GPK_DATA_12(c) GPK_DATA_8(c), GPK_D4(c, 8)
#define GPK_REGS_16 GPK_REGS_12 GPK_S3
#define GPK_DATA_16(c) GPK_DATA_12(c), GPK_D4(c, 12)
#define GPK_REGS_24 GPK_REGS_16 GPK_S4 GPK_S5
#define GPK_DATA_24(c) GPK_DATA_16(c), GPK_D4(c, 16), GPK_D4(c, 20)
#define GPK_REGS_32 GPK_REGS_24 GPK_S6 GPK_S7
#define GPK_DATA_32(c) GPK_DATA_24(c), GPK_D4(c, 24), GPK_D4(c, 28)
#define GPK_REGS_40 GPK_REGS_32 GPK_S8 GPK_S9
#define GPK_DATA_40(c) GPK_DATA_32(c), GPK_D4(c, 32), GPK_D4(c, 36)
#define GPK_REGS_48 GPK_REGS_40 GPK_S10 GPK_S11
#define GPK_DATA_48(c) GPK_DATA_40(c), GPK_D4(c, 40), GPK_D4(c, 44)
#define GPK_REGS_56 GPK_REGS_48 GPK_S12 GPK_S13
#define GPK_DATA_56(c) GPK_DATA_48(c), GPK_D4(c, 48), GPK_D4(c, 52)
#define GPK_REGS_64 GPK_REGS_56 GPK_S14 GPK_S15
#define GPK_DATA_64(c) GPK_DATA_56(c), GPK_D4(c, 56), GPK_D4(c, 60)
#define GPK_REGS_72 GPK_REGS_64 GPK_S16 GPK_S17
#define GPK_DATA_72(c) GPK_DATA_64(c), GPK_D4(c, 64), GPK_D4(c, 68)
#define GPK_REGS_80 GPK_REGS_72 GPK_S18 GPK_S19
#define GPK_DATA_80(c) GPK_DATA_72(c), GPK_D4(c, 72), GPK_D4(c, 76)
#define GPK_REGS_88 GPK_REGS_80 GPK_S20 GPK_S21
#define GPK_DATA_88(c) GPK_DATA_80(c), GPK_D4(c, 80), GPK_D4(c, 84)
#define GPK_REGS_96 GPK_REGS_88 GPK_S22 GPK_S23
#define GPK_DATA_96(c) GPK_DATA_88(c), GPK_D4(c, 88), GPK_D4(c, 92)
#define GPK_REGS_104 GPK_REGS_96 GPK_S24 GPK_S25
#define GPK_DATA_104(c) GPK_DATA_96(c), GPK_D4(c, 96), GPK_D4(c, 100)
#define GPK_REGS_112 GPK_REGS_104 GPK_S26 GPK_S27
#define GPK_DATA_112(c) GPK_DATA_104(c), GPK_D4(c, 104), GPK_D4(c, 108)
#define GPK_REGS_120 GPK_REGS_112 GPK_S28 GPK_S29
#define GPK_DATA_120(c) GPK_DATA_112(c), GPK_D4(c, 112), GPK_D4(c, 116)
#define GPK_REGS_128 GPK_REGS_120 GPK_S30 GPK_S31
#define GPK_DATA_128(c) GPK_DATA_120(c), GPK_D4(c, 120), GPK_D4(c, 124)
// clang-format on

template <int N>
struct WgmmaColumns;

// r: the accumulators of a thread and the number of the first operand after them; r1 = r + 1 and so on.
#define GPK_WGMMA_SHARED(n, r, r1, r2, type, k, result, tail, constraint, ...)              \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r2                                   \
                 ", 0;\n"                                                                   \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k" #k "." result "." type "." type \
                 " {" GPK_REGS_##r "}, %" #r ", %" #r1 ", p" tail ";\n}\n"                  \
                 : GPK_DATA_##r(constraint)                                                 \
                 : "l"(a), "l"(b), "r"(static_cast<int>(add))__VA_OPT__(, ) __VA_ARGS__)
#define GPK_WGMMA_REGISTERS(n, r, r1, r2, r3, r4, r5, type, k, result, tail, constraint, ...)              \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r5                                                  \
                 ", 0;\n"                                                                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k" #k "." result "." type "." type                \
                 " {" GPK_REGS_##r "}, {%" #r ", %" #r1 ", %" #r2 ", %" #r3 "}, %" #r4 ", p" tail ";\n}\n" \
                 : GPK_DATA_##r(constraint)                                                                \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                                     \
                   "r"(static_cast<int>(add))__VA_OPT__(, ) __VA_ARGS__)
// What follows the predicate: signs of a and b, and for 16-bit types whether they lie across k.
#define GPK_SIGNS ", 1, 1"
#define GPK_WGMMA_COLUMNS(n, r, r1, r2, r3, r4, r5, r6)                                                     \
    template <>                                                                                             \
    struct WgmmaColumns<n> {                                                                                \
        template <class T, bool kAAcross, bool kBAcross>                                                    \
        static __device__ __forceinline__ void shared(float (&d)[r], std::uint64_t a, std::uint64_t b,      \
                                                      bool add) {                                           \
            if constexpr (WgmmaType<T>::id == 0)                                                            \
                GPK_WGMMA_SHARED(n, r, r1, r2, "bf16", 16, "f32", ", 1, 1, %" #r3 ", %" #r4, "+f",          \
                                 "n"(kAAcross ? 1 : 0), "n"(kBAcross ? 1 : 0));                             \
            if constexpr (WgmmaType<T>::id == 1)                                                            \
                GPK_WGMMA_SHARED(n, r, r1, r2, "f16", 16, "f32", ", 1, 1, %" #r3 ", %" #r4, "+f",           \
                                 "n"(kAAcross ? 1 : 0), "n"(kBAcross ? 1 : 0));                             \
            if constexpr (WgmmaType<T>::id == 2)                                                            \
                GPK_WGMMA_SHARED(n, r, r1, r2, "tf32", 8, "f32", GPK_SIGNS, "+f");                          \
            if constexpr (WgmmaType<T>::id == 3)                                                            \
                GPK_WGMMA_SHARED(n, r, r1, r2, "e4m3", 32, "f32", GPK_SIGNS, "+f");                         \
            if constexpr (WgmmaType<T>::id == 4)                                                            \
                GPK_WGMMA_SHARED(n, r, r1, r2, "e5m2", 32, "f32", GPK_SIGNS, "+f");                         \
        }                                                                                                   \
        template <class T>                                                                                  \
        static __device__ __forceinline__ void shared(int (&d)[r], std::uint64_t a, std::uint64_t b,        \
                                                      bool add) {                                           \
            if constexpr (WgmmaType<T>::id == 5) GPK_WGMMA_SHARED(n, r, r1, r2, "s8", 32, "s32", "", "+r"); \
            if constexpr (WgmmaType<T>::id == 6) GPK_WGMMA_SHARED(n, r, r1, r2, "u8", 32, "s32", "", "+r"); \
        }                                                                                                   \
        template <class T, bool kBAcross>                                                                   \
        static __device__ __forceinline__ void registers(float (&d)[r], const std::uint32_t (&a)[4],        \
                                                         std::uint64_t b, bool add) {                       \
            if constexpr (WgmmaType<T>::id == 0)                                                            \
                GPK_WGMMA_REGISTERS(n, r, r1, r2, r3, r4, r5, "bf16", 16, "f32", ", 1, 1, %" #r6, "+f",     \
                                    "n"(kBAcross ? 1 : 0));                                                 \
            if constexpr (WgmmaType<T>::id == 1)                                                            \
                GPK_WGMMA_REGISTERS(n, r, r1, r2, r3, r4, r5, "f16", 16, "f32", ", 1, 1, %" #r6, "+f",      \
                                    "n"(kBAcross ? 1 : 0));                                                 \
            if constexpr (WgmmaType<T>::id == 2)                                                            \
                GPK_WGMMA_REGISTERS(n, r, r1, r2, r3, r4, r5, "tf32", 8, "f32", GPK_SIGNS, "+f");           \
            if constexpr (WgmmaType<T>::id == 3)                                                            \
                GPK_WGMMA_REGISTERS(n, r, r1, r2, r3, r4, r5, "e4m3", 32, "f32", GPK_SIGNS, "+f");          \
            if constexpr (WgmmaType<T>::id == 4)                                                            \
                GPK_WGMMA_REGISTERS(n, r, r1, r2, r3, r4, r5, "e5m2", 32, "f32", GPK_SIGNS, "+f");          \
        }                                                                                                   \
    };
GPK_WGMMA_COLUMNS(8, 4, 5, 6, 7, 8, 9, 10)
GPK_WGMMA_COLUMNS(16, 8, 9, 10, 11, 12, 13, 14)
GPK_WGMMA_COLUMNS(24, 12, 13, 14, 15, 16, 17, 18)
GPK_WGMMA_COLUMNS(32, 16, 17, 18, 19, 20, 21, 22)
GPK_WGMMA_COLUMNS(48, 24, 25, 26, 27, 28, 29, 30)
GPK_WGMMA_COLUMNS(64, 32, 33, 34, 35, 36, 37, 38)
GPK_WGMMA_COLUMNS(80, 40, 41, 42, 43, 44, 45, 46)
GPK_WGMMA_COLUMNS(96, 48, 49, 50, 51, 52, 53, 54)
GPK_WGMMA_COLUMNS(112, 56, 57, 58, 59, 60, 61, 62)
GPK_WGMMA_COLUMNS(128, 64, 65, 66, 67, 68, 69, 70)
GPK_WGMMA_COLUMNS(144, 72, 73, 74, 75, 76, 77, 78)
GPK_WGMMA_COLUMNS(160, 80, 81, 82, 83, 84, 85, 86)
GPK_WGMMA_COLUMNS(176, 88, 89, 90, 91, 92, 93, 94)
GPK_WGMMA_COLUMNS(192, 96, 97, 98, 99, 100, 101, 102)
GPK_WGMMA_COLUMNS(208, 104, 105, 106, 107, 108, 109, 110)
GPK_WGMMA_COLUMNS(224, 112, 113, 114, 115, 116, 117, 118)
GPK_WGMMA_COLUMNS(240, 120, 121, 122, 123, 124, 125, 126)
GPK_WGMMA_COLUMNS(256, 128, 129, 130, 131, 132, 133, 134)
#undef GPK_WGMMA_COLUMNS
#undef GPK_WGMMA_REGISTERS
#undef GPK_WGMMA_SHARED
#undef GPK_SIGNS

// A from shared memory. kAAcross, kBAcross: m (of A) or n (of B) runs along the rows, not k.
template <class T, int kColumns, bool kAAcross = false, bool kBAcross = false>
__device__ __forceinline__ void wgmma(float (&d)[kColumns / 2], std::uint64_t a, std::uint64_t b, bool add) {
    WgmmaColumns<kColumns>::template shared<T, kAAcross, kBAcross>(d, a, b, add);
}
template <class T, int kColumns>
__device__ __forceinline__ void wgmma(int (&d)[kColumns / 2], std::uint64_t a, std::uint64_t b, bool add) {
    WgmmaColumns<kColumns>::template shared<T>(d, a, b, add);
}
// A from registers. Of 16-bit elements, a[2 * i + j] holds row (t % 32) / 4 + 8 * j, columns
// 8 * i + 2 * (t % 4) and the next one: the same places as accumulators have.
template <class T, int kColumns, bool kBAcross = false>
__device__ __forceinline__ void wgmma(float (&d)[kColumns / 2], const std::uint32_t (&a)[4], std::uint64_t b,
                                      bool add) {
    WgmmaColumns<kColumns>::template registers<T, kBAcross>(d, a, b, add);
}

}  // namespace gpk::kernels
