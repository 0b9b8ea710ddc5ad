// What kernels for SM 90 share: barriers in shared memory, the bulk copy engine, clusters, fences, and
// registers handed from one warpgroup to another. wgmma.cuh has the matrix instructions.
//
// Names and meanings: PTX ISA 9.0, "mbarrier", "cp.async.bulk.tensor", "barrier.cluster", "setmaxnreg".
// Addresses of shared memory are 32-bit, in the block's own window unless they say cluster.
#pragma once

#include <cstdint>

#include "driver/driver.hpp"

namespace gpk::kernels {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// One thread of a warp, the same each time.
__device__ __forceinline__ bool elect_one() {
    std::uint32_t elected;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}\n" : "=r"(elected));
    return elected != 0;
}

// -- Barriers ------------------------------------------------------------------------------------------

// A phase ends when `arrivals` threads have arrived and all bytes that were announced have come.
using Barrier = std::uint64_t;

__device__ __forceinline__ void barrier_init(Barrier& barrier, std::uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals));
}
// By the thread that initialised, before others (of the cluster) are let go.
__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(Barrier& barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
// Arrives, and announces bytes that the copy engine will bring.
__device__ __forceinline__ void barrier_expect(Barrier& barrier, std::uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
                 "r"(bytes)
                 : "memory");
}
// At the barrier of the same place in another block of the cluster.
__device__ __forceinline__ void barrier_arrive_at(Barrier& barrier, std::uint32_t block) {
    asm volatile(
        "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}\n" ::"r"(
            shared_address(&barrier)),
        "r"(block)
        : "memory");
}
// The same without ordering what the thread wrote before: it costs no fence of the whole device. For stages
// that wgmma has read.
__device__ __forceinline__ void barrier_free_at(Barrier& barrier, std::uint32_t block) {
    asm volatile(
        "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote];\n}\n" ::"r"(
            shared_address(&barrier)),
        "r"(block)
        : "memory");
}
__device__ __forceinline__ bool barrier_try(Barrier& barrier, std::uint32_t parity) {
    std::uint32_t done;
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(shared_address(&barrier)), "r"(parity)
        : "memory");
    return done != 0;
}
// Until the phase of that parity is over. A fresh barrier lets parity 1 pass.
__device__ __forceinline__ void barrier_wait(Barrier& barrier, std::uint32_t parity) {
    while (!barrier_try(barrier, parity)) {
    }
}
// As barrier_wait, and sees what threads of other blocks of the cluster wrote before they arrived.
__device__ __forceinline__ void barrier_wait_cluster(Barrier& barrier, std::uint32_t parity) {
    asm volatile(
        "{\n.reg .pred p;\nwaiting:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
        "@p bra.uni done;\nbra.uni waiting;\ndone:\n}\n" ::"r"(shared_address(&barrier)),
        "r"(parity)
        : "memory");
}

// Barriers of the block by number (1 to 15; 0 is __syncthreads), for `threads` in whole warps.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// -- Clusters ------------------------------------------------------------------------------------------

__device__ __forceinline__ std::uint32_t cluster_rank() {
    std::uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ std::uint32_t cluster_blocks() {
    std::uint32_t blocks;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
    return blocks;
}
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}

// The same where the compiler may have parted the threads of a warp.
__device__ __forceinline__ void cluster_sync_threads() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// What `shared`, of another block of the cluster, holds; whole words. That block must not end before.
template <class Value>
__device__ __forceinline__ Value cluster_load(const Value& shared, std::uint32_t block) {
    static_assert(sizeof(Value) % 4 == 0);
    std::uint32_t remote, words[sizeof(Value) / 4];
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(&shared)), "r"(block));
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(Value) / 4); ++i) {
        asm volatile("ld.shared::cluster.b32 %0, [%1];" : "=r"(words[i]) : "r"(remote + 4 * i) : "memory");
    }
    Value value;
    memcpy(&value, words, sizeof(Value));
    return value;
}

// -- The bulk copy engine --------------------------------------------------------------------------------

__device__ __forceinline__ void tma_prefetch(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// What was written to shared memory by ordinary stores is visible to the copy engine and to wgmma after
// it, on the writing thread; a barrier then tells the thread that starts these.
__device__ __forceinline__ void fence_async_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// How long what a copy brings should stay in the L2 cache: createpolicy's fractional policies, encoded.
enum class CachePolicy : std::uint64_t {
    normal = 0x1000000000000000,
    evict_first = 0x12f0000000000000,
    evict_last = 0x14f0000000000000,
};

// Starts the copy of a box to shared memory (128-byte aligned; 1024 with the widest swizzle) by one thread.
// Coordinates are in elements, the innermost first, and may lie outside. The barrier must expect the bytes of
// the whole box.
template <class... Coordinates>
__device__ __forceinline__ void tma_load(void* to, const TensorMap& map, Barrier& barrier, CachePolicy policy,
                                         Coordinates... at) {
    constexpr int kRank = sizeof...(Coordinates);
    static_assert(kRank >= 1 && kRank <= kMaxTensorMapRank);
    const int c[kMaxTensorMapRank] = {static_cast<int>(at)...};
#define GPK_LOAD(rank, coordinates)                                                                        \
    asm volatile(                                                                                          \
        "cp.async.bulk.tensor." rank                                                                       \
        ".shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, " coordinates \
        "], [%2], %3;" ::"r"(shared_address(to)),                                                          \
        "l"(&map), "r"(shared_address(&barrier)), "l"(static_cast<std::uint64_t>(policy)), "r"(c[0]),      \
        "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4])                                                         \
        : "memory")
    if constexpr (kRank == 1) GPK_LOAD("1d", "{%4}");
    if constexpr (kRank == 2) GPK_LOAD("2d", "{%4, %5}");
    if constexpr (kRank == 3) GPK_LOAD("3d", "{%4, %5, %6}");
    if constexpr (kRank == 4) GPK_LOAD("4d", "{%4, %5, %6, %7}");
    if constexpr (kRank == 5) GPK_LOAD("5d", "{%4, %5, %6, %7, %8}");
#undef GPK_LOAD
}

// The same into the shared memory of every block of the cluster that has its bit in `blocks`, at the same
// place, and to each one's own barrier.
template <class... Coordinates>
__device__ __forceinline__ void tma_multicast(void* to, const TensorMap& map, Barrier& barrier,
                                              std::uint16_t blocks, CachePolicy policy, Coordinates... at) {
    constexpr int kRank = sizeof...(Coordinates);
    static_assert(kRank >= 1 && kRank <= kMaxTensorMapRank);
    const int c[kMaxTensorMapRank] = {static_cast<int>(at)...};
#define GPK_LOAD(rank, coordinates)                                                                      \
    asm volatile("cp.async.bulk.tensor." rank                                                            \
                 ".shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"          \
                 ".L2::cache_hint [%0], [%1, " coordinates "], [%2], %9, %3;" ::"r"(shared_address(to)), \
                 "l"(&map), "r"(shared_address(&barrier)), "l"(static_cast<std::uint64_t>(policy)),      \
                 "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]), "h"(blocks)                      \
                 : "memory")
    if constexpr (kRank == 1) GPK_LOAD("1d", "{%4}");
    if constexpr (kRank == 2) GPK_LOAD("2d", "{%4, %5}");
    if constexpr (kRank == 3) GPK_LOAD("3d", "{%4, %5, %6}");
    if constexpr (kRank == 4) GPK_LOAD("4d", "{%4, %5, %6, %7}");
    if constexpr (kRank == 5) GPK_LOAD("5d", "{%4, %5, %6, %7, %8}");
#undef GPK_LOAD
}

// Starts the copy of a box from shared memory by one thread. Its shared memory may be written again after
// tma_store_wait; what it wrote is there when the kernel has ended.
template <class... Coordinates>
__device__ __forceinline__ void tma_store(const TensorMap& map, const void* from, Coordinates... at) {
    constexpr int kRank = sizeof...(Coordinates);
    static_assert(kRank >= 1 && kRank <= kMaxTensorMapRank);
    const int c[kMaxTensorMapRank] = {static_cast<int>(at)...};
#define GPK_STORE(rank, coordinates)                                                                  \
    asm volatile("cp.async.bulk.tensor." rank ".global.shared::cta.tile.bulk_group [%0, " coordinates \
                 "], [%1];" ::"l"(&map),                                                              \
                 "r"(shared_address(from)), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4])     \
                 : "memory")
    if constexpr (kRank == 1) GPK_STORE("1d", "{%2}");
    if constexpr (kRank == 2) GPK_STORE("2d", "{%2, %3}");
    if constexpr (kRank == 3) GPK_STORE("3d", "{%2, %3, %4}");
    if constexpr (kRank == 4) GPK_STORE("4d", "{%2, %3, %4, %5}");
    if constexpr (kRank == 5) GPK_STORE("5d", "{%2, %3, %4, %5, %6}");
#undef GPK_STORE
}
__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;"); }
// Until all but the last `kPending` committed groups have read their shared memory.
template <int kPending>
__device__ __forceinline__ void tma_store_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// -- Registers -------------------------------------------------------------------------------------------

// Of each thread of a warpgroup: a multiple of 8 from 24 to 256. The kernel needs __launch_bounds__.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace gpk::kernels
