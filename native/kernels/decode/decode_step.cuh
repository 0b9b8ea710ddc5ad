// decode_step: the order of things. See decode_step.hpp.
#pragma once

#include "kernels/decode/decode_attention.cuh"
#include "kernels/decode/decode_choice.cuh"

namespace gpk::kernels {

// What the computing warps share beside the dynamic memory.
struct DecodeStepStatic {
    Barrier barriers[2 * kDecodeStepMostSlots];
    DecodeSums sums;
    float squares[kDecodeStepWarps];
    int waiting;  // for other blocks
    Candidate best[kDecodeStepWarps];
    DecodeShare qkv, out, gate_up, down, head;  // what the block has of each layer's matrices
};
static_assert(sizeof(DecodeStepStatic) <= kDecodeStepStaticBytes);

// x = rms_norm(hidden) * weight, which is the ring's slot `number`. Each thread has written its own part of
// `hidden`, as receive_vector() does, and has the sum of its squares.
template <class T>
__device__ __forceinline__ void normalize(const DecodeRing ring, std::uint32_t number,
                                          DecodeStepStatic& shared, const uint2* hidden, float squares,
                                          uint2* x, int count, float eps) {
    const int thread = thread_index(), fours = count / 4;
    squares = warp_reduce(squares, [](float a, float b) { return a + b; });
    if (thread % 32 == 0) shared.squares[thread / 32] = squares;
    const DecodeRing::Place place = ring.at(number);
    bulk_wait(place.barrier, place.parity);
    computing_sync();
    squares = 0;
#pragma unroll
    for (int w = 0; w < kDecodeStepWarps; ++w) squares += shared.squares[w];
    const float scale = rsqrtf(squares * (1.0f / static_cast<float>(count)) + eps);
#pragma unroll 2
    for (int i = thread; i < fours; i += kComputing) {
        x[i] = scaled_four<T>(hidden[i], load_shared_eight(place.slot + 8 * i), scale);
    }
    finish_x(x, count);
    if (thread / 32 < kDecodeTeam) free_slot(ring, place);
}

template <class T, int D>
struct DecodeStepKernel {
    const DecodeStepParams& p;
    DecodeStepStatic& shared;
    const DecodeStepLayer* layers;
    const DecodeUnit* units;
    const float2* angles;
    T *hidden, *x;
    const DecodeRing ring;
    int position;
    std::uint32_t token, epoch;  // before this launch
    std::uint32_t next = 0;      // of the ring's slots

    __device__ __forceinline__ void stream() {
        DecodeStream stream{ring, shared.waiting, static_cast<std::uint32_t>(p.in_flight),
                            static_cast<std::uint32_t>(p.in_flight_waiting)};
#pragma unroll 1
        for (int i = 0; i <= p.layer_count; ++i) {
            const bool ends = i == p.layer_count;
            const DecodeStepLayer& l = layers[ends ? 0 : i];
            if (!ends) prefetch_cache<T, D>(p, l, units[i]);
            // One copy of the code for all matrices: instructions have a cache, too.
#pragma unroll 1
            for (int part = 0; part < (ends ? 1 : 4); ++part) {
                const DecodeShare* share = ends        ? &shared.head
                                           : part == 0 ? &shared.qkv
                                           : part == 1 ? &shared.out
                                           : part == 2 ? &shared.gate_up
                                                       : &shared.down;
                const void* weights = ends        ? p.head
                                      : part == 0 ? l.qkv
                                      : part == 1 ? l.out
                                      : part == 2 ? l.gate_up
                                                  : l.down;
                if (part % 2 == 0)
                    stream.vector(ends ? p.final_norm : part == 0 ? l.attention_norm : l.mlp_norm, p.hidden);
                stream.weights(weights, *share, ends ? 1 : 2, part == 2 ? 2 : 1, p.intermediate,
                               part == 1   ? p.heads * D
                               : part == 3 ? p.intermediate
                                           : p.hidden);
            }
        }
    }
    // The sum of the squares of what the thread put there.
    __device__ __forceinline__ float receive(T* to, std::int64_t from, int count, std::uint32_t now) {
        float squares = 0;
        if (thread_index() == 0) shared.waiting = 1;
        receive_vector(reinterpret_cast<uint2*>(to), opaque_pointer(p.exchange) + from, count / 4, now,
                       [&](uint2 four) { squares = add_squares<T>(squares, four); });
        if (thread_index() == 0) shared.waiting = 0;
        return squares;
    }
    __device__ __forceinline__ void norm(const T* from, float squares) {
        normalize<T>(ring, next, shared, reinterpret_cast<const uint2*>(from), squares,
                     reinterpret_cast<uint2*>(x), p.hidden, p.norm_eps);
        ++next;
    }

    // words = what x gives and the bias, added to `to` where there is one
    __device__ __forceinline__ void multiply(const void* bias, const DecodeShare& share, int k, const T* to,
                                             std::int64_t words, std::uint32_t now) {
        multiply_weights<StepRows::pairs, T>(
            ring, next, shared.sums, shared_address(x), share, k,
            [&](int row, int count) { return pair_of(static_cast<const T*>(bias), row, count); },
            [&](int row, int, float2 extra, float2 sum) {
                sum.x += extra.x, sum.y += extra.y;
                if (to != nullptr) {
                    sum.x = float(to[row]) + rounded<T>(sum.x);
                    sum.y = float(to[row + 1]) + rounded<T>(sum.y);
                }
                publish_pair(words, row, sum.x, sum.y, now);
            });
    }
    __device__ __forceinline__ void publish_pair(std::int64_t words, int row, float first, float second,
                                                 std::uint32_t now) const {
        if (thread_index() % 32 == 0)
            publish(opaque_pointer(p.exchange) + words + row / 2, pack_pair<T>(first, second), now);
    }

    __device__ __forceinline__ void compute_layer(int i) {
        const DecodeStepLayer& l = layers[i];
        const std::uint32_t now = epoch + 1 + static_cast<std::uint32_t>(i);
        const int of_heads = p.heads * D;
        float squares = 0;
        if (i == 0) {
            const auto* row = reinterpret_cast<const uint2*>(static_cast<const T*>(p.embedding) +
                                                             std::int64_t{token} * p.hidden);
            for (int j = thread_index(); j < p.hidden / 4; j += kComputing) {
                const uint2 four = token < static_cast<std::uint32_t>(p.vocab) ? row[j] : uint2{};
                reinterpret_cast<uint2*>(hidden)[j] = four;
                squares = add_squares<T>(squares, four);
            }
        } else if (shared.qkv.count > 0 || shared.out.count > 0) {
            squares = receive(hidden, p.at.hidden, p.hidden, now - 1);
        }
        norm(hidden, squares);
        multiply(l.qkv_bias, shared.qkv, p.hidden, nullptr, p.at.qkv, now);

        decode_attend<T, D>(p, l, units[i], *reinterpret_cast<DecodeScratch<T, D>*>(x), angles, position,
                            now);
        if (shared.out.count > 0) receive(x, p.at.attended, of_heads, now);
        finish_x(reinterpret_cast<uint2*>(x), of_heads);
        multiply(l.out_bias, shared.out, of_heads, hidden, p.at.residual, now);

        T* middle = hidden + p.hidden;
        if (shared.gate_up.count > 0 || shared.down.count > 0)
            squares = receive(middle, p.at.residual, p.hidden, now);
        norm(middle, squares);
        const auto* bias = static_cast<const T*>(l.gate_up_bias);
        multiply_weights<StepRows::gated, T>(
            ring, next, shared.sums, shared_address(x), shared.gate_up, p.hidden,
            [&](int row, int count) {
                const float2 gate = pair_of(bias, row, count);
                const float2 up = pair_of(bias, p.intermediate + row, count);
                return float4{gate.x, gate.y, up.x, up.y};
            },
            [&](int row, int, float4 extra, float2 gate, float2 up) {
                publish_pair(p.at.activated, row, gated<T>(p.glu, gate.x + extra.x, up.x + extra.z),
                             gated<T>(p.glu, gate.y + extra.y, up.y + extra.w), now);
            });

        if (shared.down.count > 0) receive(x, p.at.activated, p.intermediate, now);
        finish_x(reinterpret_cast<uint2*>(x), p.intermediate);
        multiply(l.down_bias, shared.down, p.intermediate, middle, p.at.hidden, now);
    }

    __device__ __forceinline__ void choose() {
        const std::uint32_t now = epoch + 1 + static_cast<std::uint32_t>(p.layer_count);
        norm(hidden, receive(hidden, p.at.hidden, p.hidden, now - 1));
        Candidate best{-INFINITY, INT32_MAX};
        multiply_weights<StepRows::single, T>(
            ring, next, shared.sums, shared_address(x), shared.head, p.hidden, [](int, int) { return 0; },
            [&](int row, int count, int, float2 sum) {
                const int lane = thread_index() % 32;
                if (lane >= count) return;
                const float logit = lane == 0 ? sum.x : sum.y;
                p.logits[row + lane] = logit;
                if (row + lane < p.num_tokens) best = better(best, {logit, row + lane});
            });
        choose_token(p, shared.best, best, position, now);
    }
};

template <class T, int D>
__device__ __forceinline__ void decode_step(const DecodeStepParams& p) {
    __shared__ DecodeStepStatic shared;
    extern __shared__ __align__(128) unsigned char dynamic[];
    wait_for_predecessor();
    const int thread = thread_index();
    const int position = *p.position;
    const std::uint32_t token = static_cast<std::uint32_t>(*p.token), epoch = p.epochs[blockIdx.x];
    if (position < 0) return;
    if (thread < p.slots) {
        barrier_init(shared.barriers[thread], 1);
        barrier_init(shared.barriers[kDecodeStepMostSlots + thread], kDecodeTeam);
        barrier_init_fence();
    }
    if (thread == 0) shared.waiting = 0;
    const DecodeStepShared& parts = p.parts;
    unsigned char* beside = dynamic + p.slots * kDecodeStepSlotBytes;
    auto* layers = reinterpret_cast<DecodeStepLayer*>(beside + parts.layers);
    const auto words = p.layer_count * static_cast<int>(sizeof(DecodeStepLayer) / 8);
    for (int i = thread; i < words; i += kDecodeStepThreads)
        reinterpret_cast<std::uint64_t*>(layers)[i] = reinterpret_cast<const std::uint64_t*>(p.layers)[i];
    auto* units = reinterpret_cast<DecodeUnit*>(beside + parts.units);
    for (int i = thread; i < p.layer_count; i += kDecodeStepThreads)
        units[i] = decode_unit<D>(p, position, p.layers[i].left, static_cast<int>(blockIdx.x));
    // From the last threads on, the first ones have the angles to compute.
    switch (kDecodeStepThreads - 1 - thread) {
        case 0: shared.qkv = DecodeShare::of<StepRows::pairs>((p.heads + 2 * p.kv_heads) * D, 0); break;
        case 1: shared.out = DecodeShare::of<StepRows::pairs>(p.hidden, 37); break;
        case 2: shared.gate_up = DecodeShare::of<StepRows::gated>(p.intermediate, 74); break;
        case 3: shared.down = DecodeShare::of<StepRows::pairs>(p.hidden, 111); break;
        case 4: shared.head = DecodeShare::of<StepRows::single>(p.vocab, 0); break;
    }
    auto* angles = reinterpret_cast<float2*>(beside + parts.angles);
    if (thread < D / 2) angles[thread] = angle_of(p, position, thread);
    __syncthreads();
    DecodeStepKernel<T, D> kernel{
        p,
        shared,
        layers,
        units,
        angles,
        reinterpret_cast<T*>(beside + parts.hidden),
        reinterpret_cast<T*>(beside + parts.x),
        DecodeRing{shared_address(dynamic), shared_address(shared.barriers),
                   static_cast<std::uint32_t>(p.slots), kDecodeStepSlotBytes, kDecodeTeam,
                   DecodeRing::inverse_of(static_cast<std::uint32_t>(p.slots))},
        position,
        token,
        epoch};
    // Known to be the same for a warp, so that its loops have uniform registers, which copies want.
    if (__shfl_sync(0xffffffffu, thread / 32, 0) == kDecodeStepWarps) return kernel.stream();
#pragma unroll 1
    for (int i = 0; i < p.layer_count; ++i) kernel.compute_layer(i);
    kernel.choose();
}

#define GPK_DECODE_STEP_SYMBOL(T, type, d)                                      \
    extern "C" __global__ void __launch_bounds__(kDecodeStepThreads, 1)         \
        decode_step_##type##_d##d(const __grid_constant__ DecodeStepParams p) { \
        decode_step<T, d>(p);                                                   \
    }

}  // namespace gpk::kernels
