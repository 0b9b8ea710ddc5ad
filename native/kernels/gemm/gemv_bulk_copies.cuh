// What the products of gemv_bulk are made of: barriers, copies, and rows of x in shared memory.
#pragma once

#include "kernels/gemm/gemv_bulk.hpp"
#include "kernels/gemm/gemv_quantized.cuh"
#include "kernels/hopper.cuh"
#include "kernels/overlap.cuh"

namespace gpk::kernels {

namespace {

// As in hopper.cuh, of addresses that stay in registers.
__device__ __forceinline__ void bulk_wait(std::uint32_t barrier, std::uint32_t parity) {
    std::uint32_t done;
    do {
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, "
            "p;\n}\n"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
    } while (done == 0);
}
__device__ __forceinline__ void bulk_arrive(std::uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void bulk_expect(std::uint32_t barrier, std::uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void bulk_load(std::uint32_t to, const void* from, std::uint32_t bytes,
                                          std::uint32_t barrier,
                                          CachePolicy policy = CachePolicy::evict_first) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
        "[%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(static_cast<std::uint64_t>(policy))
        : "memory");
}
__device__ __forceinline__ void bulk_load_box(std::uint32_t to, const TensorMap& map, std::uint32_t barrier,
                                              int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], "
        "[%1, {%4, %5, %6}], [%2], %3;" ::"r"(to),
        "l"(&map), "r"(barrier), "l"(static_cast<std::uint64_t>(CachePolicy::evict_first)), "r"(x), "r"(y),
        "r"(z)
        : "memory");
}
__device__ __forceinline__ void bulk_prefetch(const void* from, std::uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bulk_prefetch_box(const TensorMap& map, int x, int y, int z) {
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(&map), "r"(x),
                 "r"(y), "r"(z)
                 : "memory");
}
// What the compiler should keep rather than make again in every round.
__device__ __forceinline__ std::uint32_t opaque(std::uint32_t value) {
    asm volatile("mov.b32 %0, %0;" : "+r"(value));
    return value;
}
__device__ __forceinline__ uint4 load_shared(std::uint32_t address) {
    uint4 words;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(address));
    return words;
}
__device__ __forceinline__ void load_shared_pair(std::uint32_t address, float (&pair)[2]) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair[0]), "=f"(pair[1]) : "r"(address));
}
__device__ __forceinline__ std::uint32_t load_shared_word(std::uint32_t address) {
    std::uint32_t word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address));
    return word;
}
__device__ __forceinline__ std::uint32_t load_shared_half(std::uint32_t address) {
    std::uint16_t half;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(address));
    return half;
}
__device__ __forceinline__ std::uint32_t load_shared_byte(std::uint32_t address) {
    std::uint32_t byte;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(byte) : "r"(address));
    return byte;
}
__device__ __forceinline__ void store_shared_word(std::uint32_t address, std::uint32_t word) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t address, const uint4& words) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words.x), "r"(words.y),
                 "r"(words.z), "r"(words.w)
                 : "memory");
}

// Where a block's part of x goes: for each unit of 32 of k, each row, four chunks of 16 bytes.
struct BulkX {
    std::uint32_t begin, m, chunks;
    std::uint32_t group_sums;  // [groups][rows up to 8 (16)] float32

    __device__ __forceinline__ std::uint32_t place(std::uint32_t chunk, std::uint32_t row) const {
        return begin + (chunk / 4 * m + row) * 64 + chunk % 4 * 16;
    }
};
// Eight of a row of x; zeros past its end.
template <class T>
__device__ __forceinline__ uint4 bulk_x(const T* row, std::uint32_t chunk, std::uint32_t k) {
    const std::uint32_t column = chunk * 8;
    if (column >= k) return {};
    return column + 8 <= k ? *reinterpret_cast<const uint4*>(row + column)
                           : load_some(row + column, 1, k - column);
}

// All threads that multiply; a barrier of them follows. What is stored is ordered(words, chunk).
template <class T, class Order>
__device__ __forceinline__ void bulk_take_x(const BulkX& to, const T* x, std::int64_t x_row, std::uint32_t k,
                                            std::uint32_t thread, Order ordered) {
    constexpr std::uint32_t kAhead = 4;
    for (std::uint32_t row = 0; row < to.m; row += kAhead) {
        for (std::uint32_t chunk = thread; chunk < to.chunks; chunk += 32 * kBulkWarps) {
            uint4 words[kAhead];
#pragma unroll
            for (std::uint32_t i = 0; i < kAhead; ++i) {
                words[i] = row + i < to.m ? bulk_x(x + (row + i) * x_row, chunk, k) : uint4{};
            }
#pragma unroll
            for (std::uint32_t i = 0; i < kAhead; ++i) {
                if (row + i < to.m) store_shared(to.place(chunk, row + i), ordered(words[i], chunk));
            }
        }
    }
}

}  // namespace

}  // namespace gpk::kernels
