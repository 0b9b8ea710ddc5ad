// A row of elements in the registers of the threads that share it; see rows.hpp.
#pragma once

#include "kernels/device.cuh"
#include "kernels/hopper.cuh"
#include "kernels/norm/rows.hpp"

namespace gpk::kernels {

// The larger; NaN where one is NaN.
__device__ __forceinline__ float max_or_nan(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}

// Whether the variant may be launched in clusters: those that hold most of a row.
template <int N, int kAccesses>
inline constexpr bool has_clusters = N > 1 && kAccesses >= kClusterAccesses;

// The threads of a row. blockDim is (threads of a row, rows): a power of two up to 32, or a multiple of 32
// and one row.
class RowThreads {
   public:
    // kClusters: the launch may have clusters, a row each.
    template <bool kClusters>
    __device__ __forceinline__ static RowThreads make() {
        RowThreads t;
        t.threads_ = blockDim.x;
        t.thread_ = threadIdx.x;
        t.row_ = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
        t.blocks_ = 1;
#if __CUDA_ARCH__ >= 900
        if constexpr (kClusters) {
            const std::uint32_t blocks = cluster_blocks(), block = cluster_rank();
            t.blocks_ = static_cast<int>(blocks);
            t.threads_ *= t.blocks_;
            t.thread_ += static_cast<int>(block * blockDim.x);
            if (blocks > 1) t.row_ = blockIdx.x / blocks;
        }
#endif
        return t;
    }

    __device__ __forceinline__ int thread() const { return thread_; }
    __device__ __forceinline__ int threads() const { return threads_; }
    __device__ __forceinline__ std::int64_t row() const { return row_; }

    // What the threads of a row share. A row's two reductions take a half each, so one barrier each is
    // enough.
    struct Shared {
        float warps[2][32];
        float block[2];
    };

    static constexpr int kFewWarps = 8;

    // All threads of the row get the result, joined in the same order each time.
    template <class Op>
    __device__ __forceinline__ float reduce(float value, Op op, float identity, Shared& shared,
                                            int half) const {
        if (blockDim.x < 32) {
            for (int step = blockDim.x / 2; step > 0; step /= 2) {
                value = op(value, __shfl_xor_sync(0xffffffffu, value, step));
            }
            return value;
        }
        value = warp_reduce(value, op);
        if (blockDim.x == 32 && blocks_ == 1) return value;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        if (lane == 0) shared.warps[half][warp] = value;
        __syncthreads();
        const int warps = static_cast<int>(blockDim.x / 32);
        if (warps <= kFewWarps) {  // each warp for itself: shuffles take longer
            value = shared.warps[half][0];
#pragma unroll
            for (int other = 1; other < kFewWarps; ++other) {
                if (other < warps) value = op(value, shared.warps[half][other]);
            }
        } else {
            value = warp_reduce(lane < warps ? shared.warps[half][lane] : identity, op);
        }
#if __CUDA_ARCH__ >= 900
        if (blocks_ > 1) value = reduce_blocks(value, op, shared.block[half]);
#endif
        return value;
    }

    // The last statement for a row: the blocks of a cluster read from one another until here.
    __device__ __forceinline__ void finish() const {
#if __CUDA_ARCH__ >= 900
        if (blocks_ > 1) cluster_sync_threads();
#endif
    }

   private:
#if __CUDA_ARCH__ >= 900
    template <class Op>
    __device__ __forceinline__ float reduce_blocks(float value, Op op, float& slot) const {
        if (threadIdx.x == 0) slot = value;
        cluster_sync_threads();
        for (int block = 0; block < blocks_; ++block) {
            const float other = cluster_load(slot, static_cast<std::uint32_t>(block));
            value = block == 0 ? other : op(value, other);
        }
        return value;
    }
#endif

    int thread_, threads_, blocks_;
    std::int64_t row_;
};

struct Add {
    __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};
struct Larger {
    __device__ __forceinline__ float operator()(float a, float b) const { return max_or_nan(a, b); }
};

// Calls body(access, index) for each of the row's `count` accesses that this thread has.
template <int kAccesses, class Body>
__device__ __forceinline__ void for_own(const RowThreads& threads, int count, Body body) {
#pragma unroll
    for (int k = 0; k < kAccesses; ++k) {
        const int i = threads.thread() + k * threads.threads();
        if (i < count) body(k, i);
    }
}

// Hides from the compiler that the elements are those that it has converted to float32 already: to convert
// them again costs less than the registers to keep both.
template <class T, int N, int kAccesses>
__device__ __forceinline__ void forget_conversions(Vector<T, N> (&own)[kAccesses]) {
    if constexpr (sizeof(T) == 2 && N > 1) {
#pragma unroll
        for (int k = 0; k < kAccesses; ++k) {
            unsigned words[N / 2];
            memcpy(words, &own[k], sizeof(words));
#pragma unroll
            for (int j = 0; j < N / 2; ++j) asm volatile("" : "+r"(words[j]));
            memcpy(&own[k], words, sizeof(words));
        }
    }
}

// Vectors of 16-bit numbers are moved as words: as elements, each may take a register (seen with nvcc 13.0).
template <class T, int N>
__device__ __forceinline__ Vector<T, N> get(const Vector<T, N>* from) {
    if constexpr (sizeof(T) != 2 || N != 8) {
        return *from;
    } else {
        const uint4 words = *reinterpret_cast<const uint4*>(from);
        Vector<T, N> v;
        memcpy(&v, &words, sizeof(words));
        return v;
    }
}
template <class T, int N>
__device__ __forceinline__ void put(Vector<T, N>* to, const Vector<T, N>& v) {
    if constexpr (sizeof(T) != 2 || N != 8) {
        *to = v;
    } else {
        uint4 words;
        memcpy(&words, &v, sizeof(words));
        *reinterpret_cast<uint4*>(to) = words;
    }
}

// What a normalisation is of: x, or x + residual, which goes to `sum`.
template <class Vec, bool kResidual>
struct RowSource {
    const Vec* x;
    const Vec* residual;
    Vec* sum;

    __device__ __forceinline__ RowSource(const NormParams& p, std::int64_t first)
        : x(static_cast<const Vec*>(p.x) + first),
          residual(kResidual ? static_cast<const Vec*>(p.residual) + first : nullptr),
          sum(kResidual ? static_cast<Vec*>(p.sum) + first : nullptr) {}

    template <class T, int N>
    __device__ __forceinline__ static Vector<T, N> joined(Vector<T, N> v, const Vector<T, N>& r) {
#pragma unroll
        for (int j = 0; j < N; ++j) v.values[j] = T(float(v.values[j]) + float(r.values[j]));
        return v;
    }
    // A thread's part in registers. All loads go before the first use.
    template <int kAccesses>
    __device__ __forceinline__ void take_own(const RowThreads& threads, int count,
                                             Vec (&own)[kAccesses]) const {
        for_own<kAccesses>(threads, count, [&](int k, int i) { own[k] = get(x + i); });
        if constexpr (kResidual) {
            Vec other[kAccesses];
            for_own<kAccesses>(threads, count, [&](int k, int i) { other[k] = get(residual + i); });
            for_own<kAccesses>(threads, count, [&](int k, int i) {
                own[k] = joined(own[k], other[k]);
                put(sum + i, own[k]);
            });
        }
    }
    // The first reading in a loop; later ones take again().
    __device__ __forceinline__ Vec take(std::int64_t i) const {
        if constexpr (!kResidual) return x[i];
        const Vec v = joined(x[i], residual[i]);
        sum[i] = v;
        return v;
    }
    __device__ __forceinline__ Vec again(std::int64_t i) const { return kResidual ? sum[i] : x[i]; }
};

}  // namespace gpk::kernels
