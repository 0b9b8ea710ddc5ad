// How blocks of one launch hand each other numbers: in words of 64 bits, a payload of 32 and the epoch that
// it is of. A word is written and read as one (relaxed, at the scope of the device), so whoever sees its
// epoch has the payload, and no fence or barrier is needed: a reader asks for the words until they are of the
// epoch.
//
// Epochs go up with each layer and never come again, and a place is written once a layer. Nobody writes it
// again before all its readers have read it: what they make of it is needed for that, if they make something;
// so a block that makes nothing of a stage must not read its words.
#pragma once

#include <cstdint>

#include "kernels/decode/decode_step.hpp"
#include "kernels/device.cuh"
#include "kernels/hopper.cuh"

namespace gpk::kernels {

// Asked for anew at each use, as opaque() below: the compiler would keep what it derives from these through
// all layers, and spill. There is next to no L1 cache beside the ring, so that what is spilled is far away.
__device__ __forceinline__ int thread_index() {
    int index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return index;
}
template <class T>
__device__ __forceinline__ T* opaque_pointer(T* pointer) {
    asm volatile("" : "+l"(pointer));
    return pointer;
}

struct TwoWords {
    std::uint64_t first, second;
    __device__ __forceinline__ bool of(std::uint32_t epoch) const {
        return static_cast<std::uint32_t>(first >> 32) == epoch &&
               static_cast<std::uint32_t>(second >> 32) == epoch;
    }
    __device__ __forceinline__ uint2 payload() const {
        return {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(second)};
    }
};

__device__ __forceinline__ void publish(std::uint64_t* to, std::uint32_t payload, std::uint32_t epoch) {
    const std::uint64_t word = std::uint64_t{epoch} << 32 | payload;
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ std::uint64_t peek(const std::uint64_t* from) {
    std::uint64_t word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
    return word;
}
// 16-byte aligned.
__device__ __forceinline__ TwoWords peek_two(const std::uint64_t* from) {
    TwoWords words;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(words.first), "=l"(words.second)
                 : "l"(from)
                 : "memory");
    return words;
}
__device__ __forceinline__ std::uint32_t receive(const std::uint64_t* from, std::uint32_t epoch) {
    std::uint64_t word;
    do word = peek(from);
    while (static_cast<std::uint32_t>(word >> 32) != epoch);
    return static_cast<std::uint32_t>(word);
}
__device__ __forceinline__ uint2 receive_two(const std::uint64_t* from, std::uint32_t epoch) {
    TwoWords words;
    do words = peek_two(from);
    while (!words.of(epoch));
    return words.payload();
}

inline constexpr int kComputing = 32 * kDecodeStepWarps;
__device__ __forceinline__ void computing_sync() { named_barrier_sync(1, kComputing); }

// One lane of a warp asks until there is something, and not all the time: askers delay the words.
__device__ __forceinline__ void wait_for_words(const std::uint64_t* from, int pairs, std::uint32_t epoch) {
    if (thread_index() % 32 == 0 && thread_index() < pairs) {
        while (!peek_two(from + 2 * thread_index()).of(epoch)) __nanosleep(64);
    }
    __syncwarp();
}

// put(i, payloads of words 2 i and 2 i + 1) for all i below `pairs`, and of zeros up to `padded` - 1; each
// thread has the places thread, thread + kComputing, ... `padded`: pairs, or where put is for whole warps
// pairs rounded up to these.
template <class Put>
__device__ __forceinline__ void receive_each(const std::uint64_t* from, int pairs, int padded,
                                             std::uint32_t epoch, Put put) {
    constexpr int kMost = 4;
    wait_for_words(from, pairs, epoch);
#pragma unroll 1
    for (int base = thread_index(); base < padded; base += kMost * kComputing) {
        TwoWords words[kMost];
#pragma unroll
        for (int i = 0; i < kMost; ++i) {
            if (base + i * kComputing < pairs) words[i] = peek_two(from + 2 * (base + i * kComputing));
        }
#pragma unroll
        for (int i = 0; i < kMost; ++i) {
            const int index = base + i * kComputing;
            if (index >= padded) break;
            uint2 payload{};
            if (index < pairs) {
                while (!words[i].of(epoch)) words[i] = peek_two(from + 2 * index);
                payload = words[i].payload();
            }
            put(index, payload);
        }
    }
}
// To shared memory, and shown.
template <class Show>
__device__ __forceinline__ void receive_vector(uint2* to, const std::uint64_t* from, int pairs,
                                               std::uint32_t epoch, Show show) {
    receive_each(from, pairs, pairs, epoch, [&](int i, uint2 payload) {
        to[i] = payload;
        show(payload);
    });
}

}  // namespace gpk::kernels
