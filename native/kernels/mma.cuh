// What the kernels on the tensor cores of SM 80 share (cp.async and ldmatrix; their copies differ by hints).
#pragma once

#include <cstdint>

namespace gpk::kernels {

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending = 0>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

template <bool kTransposed>
__device__ __forceinline__ void load_matrices(std::uint32_t (&to)[4], std::uint32_t address) {
    if constexpr (kTransposed) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(address)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(address)
                     : "memory");
    }
}

}  // namespace gpk::kernels
