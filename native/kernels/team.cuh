// A team: the blocks of a cluster, or a block alone where the device has no clusters (before SM 90), so that
// one source serves both.
#pragma once

#include <cstdint>

namespace gpk::kernels {

__device__ __forceinline__ std::uint32_t team_blocks() {
    std::uint32_t count = 1;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(count));
#endif
    return count;
}
__device__ __forceinline__ std::uint32_t team_rank() {
    std::uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}
// A barrier of all threads of the team.
__device__ __forceinline__ void team_sync() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
#else
    __syncthreads();
#endif
}
// The same in two steps: what lies between them may go on before all have arrived.
__device__ __forceinline__ void team_arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void team_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}
// The address, in the shared memory of block `rank`, of what is here at `mine`.
template <class T>
__device__ __forceinline__ T* of_team(T* mine, std::uint32_t rank) {
#if __CUDA_ARCH__ >= 900
    std::uint64_t there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(reinterpret_cast<std::uint64_t>(mine)), "r"(rank));
    return reinterpret_cast<T*>(there);
#else
    return mine;
#endif
}

}  // namespace gpk::kernels
