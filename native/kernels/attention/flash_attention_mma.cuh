// flash_attention by mma.sync, for SM 80 and what newer GPUs cannot copy by a tensor map. Queries, keys and
// values go to shared memory by cp.async; keys come while the weights of those before them meet their values,
// values while the scores are made. A warp has 16 or 32 queries, so that what it reads from shared memory
// serves as many products.
//
// Fragments: PTX ISA 8.0, "Matrix fragments for mma.m16n8k16" and "ldmatrix".
#pragma once

#include "kernels/attention/flash_rows.cuh"
#include "kernels/mma.cuh"

namespace gpk::kernels {

// 16 bytes, or zeros.
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from, bool is_there) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(is_there ? 16 : 0)
                 : "memory");
}

template <class T>
__device__ __forceinline__ void multiply(float* c, const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
#define GPK_MULTIPLY(type)                                                              \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                 \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if constexpr (std::is_same_v<T, bfloat16>) {
        GPK_MULTIPLY("bf16");
    } else {
        GPK_MULTIPLY("f16");
    }
#undef GPK_MULTIPLY
}

// Rows of kHeadDim elements in shared memory, at addresses that 128 divides. Their pieces of 16 bytes are in
// an order that lets eight rows' same piece meet every bank once.
template <int kHeadDim>
struct FlashRowsShared {
    static constexpr int kPieces = kHeadDim / 8, kRowBytes = kHeadDim * 2;
    static constexpr int kTurned = kPieces % 8 == 0 ? 8 : 4;  // pieces that change places
    static __device__ __forceinline__ std::uint32_t place(int row, int piece) {
        return static_cast<std::uint32_t>(row * kRowBytes + (piece ^ row * kTurned / 8 % kTurned) * 16);
    }
    // place(row + more_rows, piece + 2 * pairs) from place(row, piece); more_rows in eights, piece 0 or 1.
    static __device__ __forceinline__ std::uint32_t further(std::uint32_t place, int more_rows, int pairs) {
        constexpr int kPairs = kTurned / 2;
        return (place ^ static_cast<std::uint32_t>(pairs % kPairs * 32)) +
               static_cast<std::uint32_t>(pairs / kPairs * kPairs * 32 + more_rows * kRowBytes);
    }
    // `at(row)`: where a row is. Rows from `rows` on, and columns from d on, are zeros.
    template <int kRows, class T, class At>
    static __device__ __forceinline__ void copy(std::uint32_t to, const T* from, int rows, int d, At&& at) {
        constexpr int kThreads = FlashMma::kThreads, kCopies = kRows * kPieces / kThreads;
        static_assert(kRows * kPieces % kThreads == 0);
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
            const int id = static_cast<int>(threadIdx.x) + i * kThreads;
            const int row = id / kPieces, piece = id % kPieces;
            const bool is_there = row < rows && piece * 8 < d;
            copy_async(to + place(row, piece), is_there ? from + at(row) + piece * 8 : from, is_there);
        }
    }
};

template <class T, int kHeadDim, bool kGeneral>
struct FlashMmaBlock {
    static constexpr FlashMma kShape = flash_mma(kHeadDim);
    static constexpr int kKeys = kShape.keys, kGroups = kShape.groups, kSteps = kHeadDim / 16;
    // Where registers allow it.
    static constexpr bool kKeepQueries = kHeadDim == 64 || kHeadDim == 256;
    static constexpr int kRows = kShape.tile_rows();
    using Shared = FlashRowsShared<kHeadDim>;

    const FlashAttentionParams& p;
    const FlashTile& tile;
    const T *keys, *values;                // of the head
    const std::uint32_t q_at, k_at, v_at;  // in shared memory
    std::uint32_t q_lane, k_lane, v_lane;  // what this lane names of a first fragment
    FlashRows<T, kKeys, kGeneral> rows[kGroups];
    std::uint32_t query[kKeepQueries ? kSteps : 1][kGroups][4];
    float score[kGroups][kKeys / 2], acc[kGroups][kHeadDim / 2];

    __device__ __forceinline__ FlashMmaBlock(const FlashAttentionParams& p, const FlashTile& tile,
                                             std::uint32_t shared)
        : p(p),
          tile(tile),
          q_at(shared),
          k_at(q_at + kRows * kHeadDim * 2),
          v_at(k_at + kKeys * kHeadDim * 2) {
        const int kv_head = tile.head / (p.heads / p.kv_heads);
        keys = static_cast<const T*>(p.k) + kv_head * p.k_at.head;
        values = static_cast<const T*>(p.v) + kv_head * p.v_at.head;
        const int lane = threadIdx.x % 32;
        q_lane =
            q_at + Shared::place(static_cast<int>(threadIdx.x) / 32 * kGroups * 16 + lane % 16, lane / 16);
        k_lane = k_at + Shared::place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
        v_lane = v_at + Shared::place(lane % 16, lane / 16);
#pragma unroll
        for (int m = 0; m < kGroups; ++m) {
            rows[m].row = (static_cast<int>(threadIdx.x) / 32 * kGroups + m) * 16 + lane / 4;
            rows[m].column = lane % 4 * 2;
            rows[m].begin(p, tile);
#pragma unroll
            for (int i = 0; i < kHeadDim / 2; ++i) acc[m][i] = 0;
        }
    }

    __device__ __forceinline__ void copy_queries() {
        const T* q = static_cast<const T*>(p.q) + tile.batch * p.q_at.batch + tile.head * p.q_at.head +
                     (tile.q_start + tile.first_row) * p.q_at.token;
        Shared::template copy<kRows>(q_at, q, tile.rows, p.d, [&](int row) { return row * p.q_at.token; });
    }
    __device__ __forceinline__ void copy_block(std::uint32_t to, const T* from, const AttentionStrides& at,
                                               int block) {
        const int first = block * kKeys;
        if (p.pages == nullptr || p.page_tokens % kKeys == 0) {  // one after another
            from += key_offset(p, at, tile, first);
            Shared::template copy<kKeys>(to, from, tile.length - first, p.d,
                                         [&](int row) { return row * at.token; });
        } else {
            Shared::template copy<kKeys>(to, from, tile.length - first, p.d,
                                         [&](int row) { return key_offset(p, at, tile, first + row); });
        }
        commit_copies();
    }

    __device__ __forceinline__ void load_query(std::uint32_t (&to)[kGroups][4], int step) {
#pragma unroll
        for (int m = 0; m < kGroups; ++m) load_matrices<false>(to[m], Shared::further(q_lane, 16 * m, step));
    }
    // score = q k^T
    __device__ __forceinline__ void make_scores() {
#pragma unroll
        for (int m = 0; m < kGroups; ++m) {
#pragma unroll
            for (int i = 0; i < kKeys / 2; ++i) score[m][i] = 0;
        }
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            auto& q = query[kKeepQueries ? step : 0];
            if (!kKeepQueries) load_query(q, step);
#pragma unroll
            for (int j = 0; j < kKeys / 16; ++j) {
                std::uint32_t k[4];
                load_matrices<false>(k, Shared::further(k_lane, 16 * j, step));
#pragma unroll
                for (int m = 0; m < kGroups; ++m) {
                    multiply<T>(&score[m][8 * j], q[m], k[0], k[1]);
                    multiply<T>(&score[m][8 * j + 4], q[m], k[2], k[3]);
                }
            }
        }
    }
    // acc += weights v
    __device__ __forceinline__ void add_values() {
#pragma unroll
        for (int step = 0; step < kKeys / 16; ++step) {
            std::uint32_t weight[kGroups][4];
#pragma unroll
            for (int m = 0; m < kGroups; ++m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    weight[m][i] = pack_pair<T>(score[m][8 * step + 2 * i], score[m][8 * step + 2 * i + 1]);
                }
            }
#pragma unroll
            for (int j = 0; j < kHeadDim / 16; ++j) {
                std::uint32_t v[4];
                load_matrices<true>(v, Shared::further(v_lane, 16 * step, j));
#pragma unroll
                for (int m = 0; m < kGroups; ++m) {
                    multiply<T>(&acc[m][8 * j], weight[m], v[0], v[1]);
                    multiply<T>(&acc[m][8 * j + 4], weight[m], v[2], v[3]);
                }
            }
        }
    }

    __device__ __forceinline__ void run() {
        const int first = tile.begin / kKeys, end = (tile.end + kKeys - 1) / kKeys;
        if (end > first) {
            copy_queries();
            copy_block(k_at, keys, p.k_at, end - 1);
        }
#pragma unroll 1
        for (int block = end - 1; block >= first; --block) {
            wait_copies();
            __syncthreads();  // the keys are there, the values before these are read
            copy_block(v_at, values, p.v_at, block);
            if (kKeepQueries && block == end - 1) {
#pragma unroll
                for (int step = 0; step < kSteps; ++step) load_query(query[step], step);
            }
            make_scores();
#pragma unroll
            for (int m = 0; m < kGroups; ++m) {
                rows[m].template mask<16>(p, tile, score[m], block * kKeys, rows[m].row / 16 * 16);
            }
            wait_copies();
            __syncthreads();  // the values are there, the keys are read
            if (block > first) copy_block(k_at, keys, p.k_at, block - 1);
#pragma unroll
            for (int m = 0; m < kGroups; ++m) {
                rows[m].softmax(score[m]);
                rows[m].rescale(acc[m]);
            }
            add_values();
        }
#pragma unroll
        for (int m = 0; m < kGroups; ++m) rows[m].template store<T>(p, tile, acc[m]);
    }
};

template <class T, int kHeadDim, bool kGeneral>
__device__ __forceinline__ void flash_attention_mma(const FlashAttentionParams& p) {
    extern __shared__ __align__(128) unsigned char shared[];
    wait_for_predecessor();
    const FlashTile tile = flash_tile(p, p.first_tile + static_cast<int>(blockIdx.x));
    if (tile.rows <= 0) return;
    FlashMmaBlock<T, kHeadDim, kGeneral>(p, tile,
                                         static_cast<std::uint32_t>(__cvta_generic_to_shared(shared)))
        .run();
}

}  // namespace gpk::kernels

// A file for each head size: they compile side by side.
#define GPK_FLASH_MMA_KERNEL(D, suffix, T, options, kGeneral)                         \
    extern "C" __global__ void __launch_bounds__(::gpk::kernels::FlashMma::kThreads,  \
                                                 ::gpk::kernels::flash_mma(D).blocks) \
        flash_attention_##suffix##_d##D##options##_mma(                               \
            const __grid_constant__ ::gpk::kernels::FlashAttentionParams p) {         \
        ::gpk::kernels::flash_attention_mma<T, D, kGeneral>(p);                       \
    }
#define GPK_FLASH_MMA_KERNELS(D)                                 \
    GPK_FLASH_MMA_KERNEL(D, f16, ::gpk::float16, , false)        \
    GPK_FLASH_MMA_KERNEL(D, f16, ::gpk::float16, _options, true) \
    GPK_FLASH_MMA_KERNEL(D, bf16, ::gpk::bfloat16, , false)      \
    GPK_FLASH_MMA_KERNEL(D, bf16, ::gpk::bfloat16, _options, true)
