#include "kernels/attention/kv_append.hpp"

#include <type_traits>

#include "kernels/attention/turn_head.cuh"
#include "kernels/device.cuh"
#include "kernels/overlap.cuh"

namespace gpk::kernels {

namespace {

// A warp's heads are those of one token, blockIdx.x; blocks along y share a token's heads.
template <class T, class Stored>
__device__ __forceinline__ void append_heads(const KvAppendParams& p) {
    wait_for_predecessor();
    launch_dependents();
    const std::int64_t token = blockIdx.x, batch = blockIdx.z;
    const std::int64_t position = std::int64_t{p.positions[batch]} + token;
    const bool kept = position >= 0 && position < p.capacity;
    TurnLane<kMaxAppendDim / 64> lane(p.rope, p.d);
    lane.set_position(p.rope, static_cast<float>(position));
    const auto turn = [&](const T* x, auto* y, const void* norm) {
        using To = std::remove_reference_t<decltype(*y)>;
        lane.turn(lane.load(x), static_cast<const T*>(norm), p.norm_eps,
                  [&](int i, float number) { y[i] = to_cache<To>(number); });
    };
    const int rows = p.heads + 2 * p.kv_heads, step = static_cast<int>(gridDim.y) * kAppendWarps;
    for (int row = static_cast<int>(blockIdx.y) * kAppendWarps + static_cast<int>(threadIdx.x) / 32;
         row < rows; row += step) {
        if (row < p.heads) {
            T* q = static_cast<T*>(p.q) + batch * p.q_batch_stride + token * p.q_token_stride + row * p.d;
            turn(q, q, p.q_norm);
            continue;
        }
        if (!kept) continue;
        const int head = (row - p.heads) % p.kv_heads;
        if (row - p.heads < p.kv_heads) {
            const T* k =
                static_cast<const T*>(p.k) + batch * p.k_batch_stride + token * p.k_token_stride + head * p.d;
            Stored* key = static_cast<Stored*>(p.keys) + batch * p.key_batch_stride +
                          head * p.key_head_stride + position * p.d;
            turn(k, key, p.k_norm);
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
