#include "kernels/attention/kv_append.hpp"

#include "kernels/device.cuh"

namespace gpk::kernels {

namespace {

constexpr int kMostPairs = kMaxAppendDim / 2 / 32;  // of a lane

// A lane's part of a head: pairs of elements that turn together, and their angle, which all heads of a token
// share.
struct Lane {
    int count = 0;  // of its pairs
    int first[kMostPairs], second[kMostPairs];
    float sine[kMostPairs], cosine[kMostPairs];

    __device__ Lane(const KvAppendParams& p, float position) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
        for (int j = 0; j < kMostPairs; ++j) {
            const int pair = lane + 32 * j;
            if (pair >= p.d / 2) break;
            count = j + 1;
            const ElementPair at = rope_pair(pair, p.rope.pairs);
            first[j] = static_cast<int>(at.first);
            second[j] = static_cast<int>(at.second);
            sine[j] = 0;
            cosine[j] = 1;
            if (pair < p.rope.pairs) {
                sincosf(position * p.rope.inv_freq[pair], &sine[j], &cosine[j]);
                sine[j] *= p.rope.factor;
                cosine[j] *= p.rope.factor;
            }
        }
    }
};

// What a head is multiplied by before its weights: 1 over its root mean square.
template <class T>
__device__ __forceinline__ float scale_of(const KvAppendParams& p, const Lane& lane, const T* x) {
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kMostPairs; ++j) {
        if (j >= lane.count) break;
        const float a = float(x[lane.first[j]]), b = float(x[lane.second[j]]);
        squares += a * a + b * b;
    }
    squares = warp_reduce(squares, [](float a, float b) { return a + b; });
    return 1.0f / sqrtf(squares / static_cast<float>(p.d) + p.norm_eps);
}

template <class T, class Stored>
__device__ __forceinline__ void turn(const KvAppendParams& p, const Lane& lane, const T* x, Stored* y,
                                     const T* weights) {
    const float scale = weights != nullptr ? scale_of(p, lane, x) : 1.0f;
#pragma unroll
    for (int j = 0; j < kMostPairs; ++j) {
        if (j >= lane.count) break;
        const int first = lane.first[j], second = lane.second[j];
        float a = float(x[first]), b = float(x[second]);
        if (weights != nullptr) {
            a *= scale * float(weights[first]);
            b *= scale * float(weights[second]);
        }
        y[first] = to_cache<Stored>(a * lane.cosine[j] - b * lane.sine[j]);
        y[second] = to_cache<Stored>(b * lane.cosine[j] + a * lane.sine[j]);
    }
}

// A warp's heads are those of one token, blockIdx.x; blocks along y share a token's heads.
template <class T, class Stored>
__device__ __forceinline__ void append_heads(const KvAppendParams& p) {
    wait_for_predecessor();
    const std::int64_t token = blockIdx.x, batch = blockIdx.z;
    const std::int64_t position = std::int64_t{p.positions[batch]} + token;
    const bool kept = position >= 0 && position < p.capacity;
    const Lane lane(p, static_cast<float>(position));
    const int rows = p.heads + 2 * p.kv_heads, step = static_cast<int>(gridDim.y) * kAppendWarps;
    for (int row = static_cast<int>(blockIdx.y) * kAppendWarps + static_cast<int>(threadIdx.x) / 32;
         row < rows; row += step) {
        if (row < p.heads) {
            T* q = static_cast<T*>(p.q) + batch * p.q_batch_stride + token * p.q_token_stride + row * p.d;
            turn(p, lane, q, q, static_cast<const T*>(p.q_norm));
            continue;
        }
        if (!kept) continue;
        const int head = (row - p.heads) % p.kv_heads;
        if (row - p.heads < p.kv_heads) {
            const T* k =
                static_cast<const T*>(p.k) + batch * p.k_batch_stride + token * p.k_token_stride + head * p.d;
            Stored* key = static_cast<Stored*>(p.keys) + batch * p.key_batch_stride +
                          head * p.key_head_stride + position * p.d;
            turn(p, lane, k, key, static_cast<const T*>(p.k_norm));
        } else {
            const T* v =
                static_cast<const T*>(p.v) + batch * p.v_batch_stride + token * p.v_token_stride + head * p.d;
            Stored* value = static_cast<Stored*>(p.values) + batch * p.value_batch_stride +
                            head * p.value_head_stride + position * p.d;
            for (int i = static_cast<int>(threadIdx.x) % 32; i < p.d; i += 32)
                value[i] = to_cache<Stored>(float(v[i]));
        }
    }
}

}  // namespace

#define X(suffix, T, stored, Stored)                                           \
    extern "C" __global__ void __launch_bounds__(kAppendWarps * 32)            \
        kv_append_##suffix##stored(const __grid_constant__ KvAppendParams p) { \
        append_heads<T, Stored>(p);                                            \
    }
GPK_KV_APPEND(X)
#undef X

}  // namespace gpk::kernels
