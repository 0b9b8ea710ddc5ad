// The order of things where weights are codes: that of decode_step.cuh, in one loop over a layer's four
// products, since there are more instructions for each.
#pragma once

#include "kernels/decode/decode_attention.cuh"
#include "kernels/decode/decode_choice.cuh"

namespace gpk::kernels {

__device__ __forceinline__ unsigned char* dynamic_shared() {
    extern __shared__ __align__(128) unsigned char dynamic[];
    return dynamic;
}

// What the same part of each layer has in common.
struct DecodeProduct {
    std::int32_t n, k;     // of a gated matrix n is the number of gates
    std::int32_t ups;      // where the rows of up begin, or 0
    std::int32_t bias;     // the byte of DecodeStepLayer that has its address
    std::int64_t words;    // of `exchange`
    const void* added_to;  // or null
};

// What the computing warps share beside the dynamic memory.
struct DecodeCodesStatic {
    Barrier barriers[2 * kDecodeStepMostSlots];
    DecodeSums sums;
    float squares[kDecodeStepWarps];
    int waiting;  // for other blocks
    Candidate best[kDecodeStepWarps];
    DecodeProduct products[kDecodeParts];
    DecodeShare shares[kDecodeParts], head;  // what the block has of each layer's matrices
    __device__ __forceinline__ const DecodeShare& share(DecodePart part) const {
        return shares[static_cast<int>(part)];
    }
    __device__ __forceinline__ const DecodeProduct& product(DecodePart part) const {
        return products[static_cast<int>(part)];
    }
};
static_assert(sizeof(DecodeCodesStatic) <= kDecodeStepStaticBytes);

// put(i, eight elements of rms_norm(hidden) * weight), the weight being the ring's slot `number`; zeros up to
// i = padded - 1. squares: the sum of those of the thread's part of `hidden`.
template <class T, class Put, class Finish>
__device__ __forceinline__ void normalize_each(const DecodeRing ring, std::uint32_t number,
                                               DecodeCodesStatic& shared, const uint4* hidden, float squares,
                                               int count, int padded, float eps, Put put, Finish finish) {
    const int thread = thread_index(), eights = count / 8;
    squares = warp_reduce(squares, [](float a, float b) { return a + b; });
    if (thread % 32 == 0) shared.squares[thread / 32] = squares;
    const DecodeRing::Place place = ring.at(number);
    bulk_wait(place.barrier, place.parity);
    computing_sync();
    squares = 0;
#pragma unroll
    for (int w = 0; w < kDecodeStepWarps; ++w) squares += shared.squares[w];
    const float scale = rsqrtf(squares * (1.0f / static_cast<float>(count)) + eps);
    const auto normed = [&](int i) {
        if (i >= eights) return uint4{};
        const uint4 eight = hidden[i], w = load_shared(place.slot + 16 * i);
        const uint2 low = scaled_four<T>({eight.x, eight.y}, {w.x, w.y}, scale),
                    high = scaled_four<T>({eight.z, eight.w}, {w.z, w.w}, scale);
        return uint4{low.x, low.y, high.x, high.y};
    };
#pragma unroll 1
    for (int i = thread; i < padded; i += 2 * kComputing) {
        if (i + kComputing < padded) {  // two at a time
            const uint4 first = normed(i), second = normed(i + kComputing);
            put(i, first);
            put(i + kComputing, second);
        } else {
            put(i, normed(i));
        }
    }
    finish();  // all threads have passed
    if (thread / 32 < kDecodeTeam) free_slot(ring, place);
}

// put(eight elements, chunk) of the words of a vector of `quads` pairs of words, and of zeros up to whole
// chunks of 256 elements. A lane's elements are those that it and its neighbour asked for: of the chunk's
// first 128 on even lanes, of the others on odd ones.
template <class Put>
__device__ __forceinline__ void receive_eights(const std::uint64_t* from, int quads, int chunks,
                                               std::uint32_t epoch, Put put) {
    constexpr int kChunks = 2;  // at a time
    const int thread = thread_index(), lane = thread % 32;
    wait_for_words(from, quads, epoch);
    // Those past the end ask for the last: registers that only some paths write are taken all through the
    // layer.
    const auto quad = [&](int chunk, int j) { return 64 * chunk + 32 * j + lane; };
    const auto peek = [&](int chunk, int j) { return peek_two(from + 2 * min(quad(chunk, j), quads - 1)); };
    TwoWords words[kChunks][2];
    int chunk = thread / 32;
    const auto ask = [&] {
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
#pragma unroll
            for (int j = 0; j < 2; ++j) words[i][j] = peek(chunk + i * kDecodeStepWarps, j);
        }
    };
    if (chunk >= chunks) return;
    ask();
#pragma unroll 1
    for (;;) {
        uint4 eights[kChunks];
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
            uint2 of[2];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int at = chunk + i * kDecodeStepWarps;
                while (!words[i][j].of(epoch)) words[i][j] = peek(at, j);
                of[j] = quad(at, j) < quads ? words[i][j].payload() : uint2{};
            }
            __syncwarp();
            const bool odd = lane % 2 != 0;
            const uint2 own = odd ? of[1] : of[0], given = odd ? of[0] : of[1];
            const uint2 taken{__shfl_xor_sync(0xffffffffu, given.x, 1),
                              __shfl_xor_sync(0xffffffffu, given.y, 1)};
            eights[i] = odd ? uint4{taken.x, taken.y, own.x, own.y} : uint4{own.x, own.y, taken.x, taken.y};
        }
        // The next ones are asked for while these become digits.
        const int now = chunk;
        chunk += kChunks * kDecodeStepWarps;
        if (chunk < chunks) ask();
        if (now + kDecodeStepWarps < chunks) {
            put(eights[0], now);
            put(eights[1], now + kDecodeStepWarps);
        } else {
            put(eights[0], now);
        }
        if (chunk >= chunks) return;
    }
}

// What sums of rows become: words of pairs, with a bias and added to `to` where there are these; or gates
// times ups, whose rows begin at `ups`.
template <class T>
struct DecodeSink {
    const T *bias, *to;
    std::uint64_t* words;
    std::uint32_t now;
    int ups;
    GluOp glu;
    __device__ __forceinline__ void publish_two(int row, float first, float second) const {
        publish(words + row / 2, pack_pair<T>(first, second), now);
    }
};

// The order of things, for a kind of weights that `Kernel` knows (it is derived from this): how the copying
// warp streams them, how x is made for them, and how they are multiplied.
template <class T, int D, class Kernel>
struct DecodeStepOrder {
    const DecodeStepParams& p;
    DecodeCodesStatic& shared;
    int position;
    std::uint32_t token, epoch;   // before this launch
    const std::uint32_t inverse;  // of DecodeRing
    std::uint32_t next = 0;       // of the ring's slots

    __device__ __forceinline__ Kernel& self() { return static_cast<Kernel&>(*this); }
    __device__ __forceinline__ DecodeRing ring() const {
        return {shared_address(dynamic_shared()),
                shared_address(shared.barriers),
                static_cast<std::uint32_t>(p.slots),
                Kernel::kSlotBytes,
                Kernel::kArrivals,
                inverse};
    }
    template <class Value>
    __device__ __forceinline__ Value* known(std::int64_t part, int offset = 0) const {
        return reinterpret_cast<Value*>(dynamic_shared() + offset + p.slots * Kernel::kSlotBytes +
                                        static_cast<int>(part));
    }
    // The same made anew at each use, as thread_index(). The copying warp wants what the compiler knows to be
    // the same for all lanes.
    template <class Value>
    __device__ __forceinline__ Value* at(std::int64_t part) const {
        return known<Value>(part, static_cast<int>(opaque(0)));
    }
    __device__ __forceinline__ const DecodeStepLayer& layer(int i) const {
        return at<DecodeStepLayer>(p.parts.layers)[i];
    }
    __device__ __forceinline__ const DecodeUnit& unit(int i) const {
        return at<DecodeUnit>(p.parts.units)[i];
    }
    __device__ __forceinline__ T* hidden() const { return at<T>(p.parts.hidden); }
    __device__ __forceinline__ T* middle() const { return hidden() + p.hidden; }
    __device__ __forceinline__ T* x() const { return at<T>(p.parts.x); }

    __device__ __forceinline__ void stream() {
        DecodeStream stream{ring(), shared.waiting, static_cast<std::uint32_t>(p.in_flight),
                            static_cast<std::uint32_t>(p.in_flight_waiting)};
#pragma unroll 1
        for (int i = 0; i < p.layer_count; ++i) {
            const DecodeStepLayer& l = known<const DecodeStepLayer>(p.parts.layers)[i];
            prefetch_cache<T, D>(p, l, known<const DecodeUnit>(p.parts.units)[i]);
            // One copy of the code for all matrices: instructions have a cache, too.
#pragma unroll 1
            for (int each = 0; each < kDecodeParts; ++each) {
                const auto part = static_cast<DecodePart>(each);
                const void* weights = part == DecodePart::qkv       ? l.qkv
                                      : part == DecodePart::out     ? l.out
                                      : part == DecodePart::gate_up ? l.gate_up
                                                                    : l.down;
                if (part == DecodePart::qkv || part == DecodePart::gate_up)
                    stream.vector(part == DecodePart::qkv ? l.attention_norm : l.mlp_norm, p.hidden);
                self().stream_rows(stream, weights, i, part, k_of(part));
            }
        }
        stream.vector(p.final_norm, p.hidden);
        self().stream_head(stream);
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
    // Elements 4 j to 4 j + 3 of the token's row.
    __device__ __forceinline__ uint2 embedded(int j) const {
        if (p.embedding_codes.bits == 16) {
            return reinterpret_cast<const uint2*>(static_cast<const T*>(p.embedding) +
                                                  std::int64_t{token} * p.hidden)[j];
        }
        const QuantLayout table = p.embedding_codes.layout(p.embedding, p.vocab, p.hidden);
        float four[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) four[e] = dequantized(table, token, 4 * j + e);
        return {pack_pair<T>(four[0], four[1]), pack_pair<T>(four[2], four[3])};
    }
    // The layer's vector, which `part` normalises: the residual sums that its product is added to.
    __device__ __forceinline__ float take_hidden(int i, DecodePart part, T* to, std::uint32_t now) {
        const bool first = part == DecodePart::qkv;
        if (first && i == 0) {
            float squares = 0;
#pragma unroll 1
            for (int j = thread_index(); j < p.hidden / 4; j += kComputing) {
                const uint2 four = token < static_cast<std::uint32_t>(p.vocab) ? embedded(j) : uint2{};
                reinterpret_cast<uint2*>(to)[j] = four;
                squares = add_squares<T>(squares, four);
            }
            return squares;
        }
        const DecodePart next = first ? DecodePart::out : DecodePart::down;
        if (shared.share(part).count == 0 && shared.share(next).count == 0) return 0;
        return receive(to, first ? p.at.hidden : p.at.residual, p.hidden, first ? now - 1 : now);
    }
    // One copy of what the parts have in common: a layer's instructions should stay in the cache.
    __device__ __forceinline__ void compute_layer(int i) {
        const std::uint32_t now = epoch + 1 + static_cast<std::uint32_t>(i);
#pragma unroll 1
        for (int each = 0; each < kDecodeParts; ++each) {
            const auto part = static_cast<DecodePart>(each);
            if (part == DecodePart::qkv || part == DecodePart::gate_up) {
                T* to = part == DecodePart::qkv ? hidden() : middle();
                const float squares = take_hidden(i, part, to, now);
                self().norm(i, part, to, squares);
            } else {
                if (part == DecodePart::out) {
                    decode_attend<T, D>(p, layer(i), unit(i), *reinterpret_cast<DecodeScratch<T, D>*>(x()),
                                        at<float2>(p.parts.angles), position, now);
                }
                if (shared.share(part).count > 0)
                    self().take_x(i, part, part == DecodePart::out ? p.at.attended : p.at.activated, now);
                self().finish(i, part);
            }
            self().multiply(i, part, now);
        }
    }

    __device__ __forceinline__ int k_of(DecodePart part) const {
        return part == DecodePart::out ? p.heads * D : part == DecodePart::down ? p.intermediate : p.hidden;
    }
    __device__ __forceinline__ DecodeProduct product(DecodePart part) const {
        const int of_heads = p.heads * D, qkv = of_heads + 2 * p.kv_heads * D;
        using Layer = DecodeStepLayer;
        switch (part) {
            case DecodePart::qkv: return {qkv, p.hidden, 0, offsetof(Layer, qkv_bias), p.at.qkv, nullptr};
            case DecodePart::out:
                return {p.hidden, of_heads, 0, offsetof(Layer, out_bias), p.at.residual, hidden()};
            case DecodePart::gate_up:
                return {p.intermediate, p.hidden, p.intermediate, offsetof(Layer, gate_up_bias),
                        p.at.activated, nullptr};
            case DecodePart::down: break;
        }
        return {p.hidden, p.intermediate, 0, offsetof(Layer, down_bias), p.at.hidden, middle()};
    }
    __device__ __forceinline__ DecodeSink<T> sink(int i, DecodePart part, std::uint32_t now) const {
        const DecodeProduct& product = shared.product(part);
        const auto* bias = reinterpret_cast<const unsigned char*>(&layer(i)) + product.bias;
        return {*reinterpret_cast<const T* const*>(bias),
                static_cast<const T*>(product.added_to),
                opaque_pointer(p.exchange) + product.words,
                now,
                product.ups,
                p.glu};
    }
    __device__ __forceinline__ void choose() {
        const std::uint32_t now = epoch + 1 + static_cast<std::uint32_t>(p.layer_count);
        const float squares = receive(hidden(), p.at.hidden, p.hidden, now - 1);
        Candidate best{-INFINITY, INT32_MAX};
        self().head(squares, [&](int row, float logit) {
            p.logits[row] = logit;
            if (row < p.num_tokens) best = better(best, {logit, row});
        });
        choose_token(p, shared.best, best, position, now);
    }
};

// A head of T, for a kernel whose layers have codes.
template <class T, class Any, class Store>
__device__ __forceinline__ void multiply_plain_head(Any& any, float squares, Store store) {
    auto* x = reinterpret_cast<uint4*>(any.x());
    const int hidden = any.p.hidden;
    normalize_each<T>(
        any.ring(), any.next, any.shared, reinterpret_cast<const uint4*>(any.hidden()), squares, hidden,
        hidden / 8, any.p.norm_eps, [&](int i, const uint4& eight) { x[i] = eight; },
        [&] { finish_x(reinterpret_cast<uint2*>(any.x()), hidden); });
    ++any.next;
    multiply_weights<StepRows::single, T>(
        any.ring(), any.next, any.shared.sums, shared_address(any.x()), any.shared.head, hidden,
        [](int, int) { return 0; },
        [&](int row, int count, int, float2 sum) {
            const int lane = thread_index() % 32;
            if (lane < count) store(row + lane, lane == 0 ? sum.x : sum.y);
        });
}

template <class T, int D, class Kernel>
__device__ __forceinline__ void decode_codes_step(const DecodeStepParams& p) {
    __shared__ DecodeCodesStatic shared;
    wait_for_predecessor();
    const int thread = thread_index();
    const int position = *p.position;
    const std::uint32_t token = static_cast<std::uint32_t>(*p.token), epoch = p.epochs[blockIdx.x];
    if (position < 0) return;
    if (thread < p.slots) {
        barrier_init(shared.barriers[thread], 1);
        barrier_init(shared.barriers[kDecodeStepMostSlots + thread], Kernel::kArrivals);
        barrier_init_fence();
    }
    if (thread == 0) shared.waiting = 0;
    Kernel kernel{
        {p, shared, position, token, epoch, DecodeRing::inverse_of(static_cast<std::uint32_t>(p.slots))}};
    const auto copy = [&](const void* from, std::int64_t to, std::size_t bytes) {
        auto* words = kernel.template at<std::uint64_t>(to);
        for (int i = thread; i < p.layer_count * static_cast<int>(bytes / 8); i += kDecodeStepThreads)
            words[i] = static_cast<const std::uint64_t*>(from)[i];
    };
    copy(p.layers, p.parts.layers, sizeof(DecodeStepLayer));
    if (p.codes != nullptr) copy(p.codes, p.parts.codes, sizeof(DecodeLayerCodes));
    auto* units = kernel.template at<DecodeUnit>(p.parts.units);
    for (int i = thread; i < p.layer_count; i += kDecodeStepThreads)
        units[i] = decode_unit<D>(p, position, p.layers[i].left, static_cast<int>(blockIdx.x));
    if (thread < D / 2) kernel.template at<float2>(p.parts.angles)[thread] = angle_of(p, position, thread);
    if (kDecodeStepThreads - 1 - thread < kDecodeParts)
        shared.products[kDecodeStepThreads - 1 - thread] =
            kernel.product(static_cast<DecodePart>(kDecodeStepThreads - 1 - thread));
    kernel.share();  // on the last threads: the first ones have the angles to compute
    __syncthreads();
    // Known to be the same for a warp, so that its loops have uniform registers, which copies want.
    if (__shfl_sync(0xffffffffu, thread / 32, 0) == kDecodeStepWarps) return kernel.stream();
#pragma unroll 1
    for (int i = 0; i < p.layer_count; ++i) kernel.compute_layer(i);
    kernel.choose();
}

}  // namespace gpk::kernels
