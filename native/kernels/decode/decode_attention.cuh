// decode_step's attention: blocks take a key/value head each, up to eight of its query heads, and one of so
// many parts of its keys. The keys are rows of products on the tensor cores, as in attention_decode_mma.cuh;
// a lane's pieces of 16 bytes go from memory to registers, the first of them before the queries are there.
#pragma once

#include "kernels/decode/decode_products.cuh"

namespace gpk::kernels {

// Keys that one block alone should read before they are spread over two.
template <int D>
inline constexpr int kKeysOfSplit = 16384 / D;

template <int D>
__device__ __forceinline__ DecodeUnit decode_unit(const DecodeStepParams& p, int position, std::int64_t left,
                                                  int unit) {
    const int group = p.heads / p.kv_heads, tiles = (group + kDecodeStepQueries - 1) / kDecodeStepQueries;
    DecodeUnit u;
    u.last = min(position, p.capacity - 1);
    const int low = static_cast<int>(max(std::int64_t{u.last} - left, std::int64_t{0}));
    const int keys = u.last + 1 - low;
    u.splits = min(max((keys + kKeysOfSplit<D> - 1) / kKeysOfSplit<D>, 1), p.max_splits);
    const int length = ((keys + u.splits - 1) / u.splits + 15) / 16 * 16;
    const int of_heads = unit / u.splits, tile = of_heads % tiles;
    u.split = unit - of_heads * u.splits;
    u.kv_head = of_heads / tiles;
    u.first_head = u.kv_head * group + tile * kDecodeStepQueries;
    u.heads = u.kv_head < p.kv_heads ? min(kDecodeStepQueries, group - tile * kDecodeStepQueries) : 0;
    u.begin = low + u.split * length;
    u.end = min(u.begin + length, u.last + 1);
    u.appends = tile == 0;
    u.count = p.kv_heads * tiles * u.splits;
    return u;
}

// The scratch in shared memory, in the place of x.
template <class T, int D>
struct DecodeScratch {
    float acc[kDecodeStepWarps][kDecodeStepQueries][D];
    float highest[kDecodeStepWarps][kDecodeStepQueries], sum[kDecodeStepWarps][kDecodeStepQueries];

    alignas(16) T query[kDecodeStepQueries][D];
    alignas(16) T key[D], value[D];
};

// A head's D elements in a warp: word w of a lane has elements 2 (lane + 32 w) and the one after it.
template <class T, int D>
struct DecodeHead {
    static constexpr int kWords = D / 64;
    float e[kWords][2];
    __device__ __forceinline__ void take(const std::uint64_t* words, std::uint32_t epoch) {
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
            const std::uint32_t two = receive(words + thread_index() % 32 + 32 * w, epoch);
            const float2 both = unpack_pair<T>(two);
            e[w][0] = both.x, e[w][1] = both.y;
        }
    }
    __device__ __forceinline__ void normalize(const DecodeStepParams& p, const T* weights) {
        if (weights == nullptr) return;
        float squares = 0;
#pragma unroll
        for (int w = 0; w < kWords; ++w) squares += e[w][0] * e[w][0] + e[w][1] * e[w][1];
        squares = warp_reduce(squares, [](float a, float b) { return a + b; });
        const float scale = 1.0f / sqrtf(squares / D + p.norm_eps);
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
#pragma unroll
            for (int j = 0; j < 2; ++j)
                e[w][j] *= scale * float(weights[2 * (thread_index() % 32 + 32 * w) + j]);
        }
    }
    // Element i turns with i + D / 2. angles: cosine and sine of i < D / 2.
    __device__ __forceinline__ void rotate(const float2* angles) {
        const int lane = thread_index() % 32;
        if constexpr (D == 128) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const float2 angle = angles[2 * lane + j];
                const float a = e[0][j], b = e[kWords - 1][j];
                e[0][j] = a * angle.x - b * angle.y;
                e[kWords - 1][j] = b * angle.x + a * angle.y;
            }
        } else {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const float2 angle = angles[2 * (lane % 16) + j];
                const float other = __shfl_xor_sync(0xffffffffu, e[0][j], 16);
                e[0][j] = e[0][j] * angle.x + (lane < 16 ? -other : other) * angle.y;
            }
        }
    }
    template <class Put>
    __device__ __forceinline__ void put(Put to) const {
#pragma unroll
        for (int w = 0; w < kWords; ++w) to(thread_index() % 32 + 32 * w, pack_pair<T>(e[w][0], e[w][1]));
    }
};

template <class T, int D>
struct DecodeAttention {
    static constexpr int kSteps = 128 / D;  // times 16 keys that a warp has in registers
    static constexpr int kKeyPieces = D / 32, kValuePieces = D / 64, kAccTiles = D / 16;
    const int lane = thread_index() % 32, warp = thread_index() / 32;
    const int g = lane / 4, t = lane % 4;
    const T *keys, *values;  // of the head
    int last;                // of the block's keys
    uint4 key[kSteps][kKeyPieces][2], value[kSteps][kValuePieces][4];
    float acc[kAccTiles][4] = {}, highest[2] = {-INFINITY, -INFINITY}, sum[2] = {};

    __device__ __forceinline__ static uint4 read(const T* from) {
        uint4 words;
        asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                     : "l"(from));
        return words;
    }
    // Past the end the last key is read again and its score discarded.
    __device__ __forceinline__ void load(int first) {
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const T* row = keys + std::int64_t{min(first + 16 * s + 8 * i + g, last)} * D + 8 * t;
#pragma unroll
                for (int c = 0; c < kKeyPieces; ++c) key[s][c][i] = read(row + 32 * c);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = min(first + 16 * s + 2 * t + i % 2 + i / 2 * 8, last);
                const T* row = values + std::int64_t{at} * D + 8 * g;
#pragma unroll
                for (int c = 0; c < kValuePieces; ++c) value[s][c][i] = read(row + 64 * c);
            }
        }
    }
    // Registers that only some paths write are taken all through the layer: multiplying would spill.
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
#pragma unroll
            for (auto& piece : key[s]) piece[0] = piece[1] = uint4{};
#pragma unroll
            for (auto& piece : value[s]) piece[0] = piece[1] = piece[2] = piece[3] = uint4{};
        }
    }
    // The newest key and value are not in the cache yet, or only just; nor must what lies in their place be
    // read for those past the end: a weight of zero makes no zero of a NaN.
    __device__ __forceinline__ void take_newest(int first, int newest, const DecodeScratch<T, D>& scratch) {
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                if (first + 16 * s + 8 * i + g < newest) continue;
#pragma unroll
                for (int c = 0; c < kKeyPieces; ++c)
                    key[s][c][i] = load_shared(shared_address(scratch.key + 32 * c + 8 * t));
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (first + 16 * s + 2 * t + i % 2 + i / 2 * 8 < newest) continue;
#pragma unroll
                for (int c = 0; c < kValuePieces; ++c)
                    value[s][c][i] = load_shared(shared_address(scratch.value + 64 * c + 8 * g));
            }
        }
    }
    __device__ __forceinline__ static std::uint32_t word(const uint4& v, int i) {
        return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
    }
    // scale: of the scores, for exp2.
    __device__ __forceinline__ void attend(int first, int begin, int end, float scale,
                                           std::uint32_t queries) {
        float scores[kSteps][4] = {};
        float common[2] = {highest[0], highest[1]};
#pragma unroll
        for (int c = 0; c < kKeyPieces; ++c) {
            const uint4 query = load_shared(queries + 64 * c);
#pragma unroll
            for (int s = 0; s < kSteps; ++s) {
                const uint4 &low = key[s][c][0], &high = key[s][c][1];
                multiply<T>(scores[s], low.x, high.x, low.y, high.y, query.x, query.y);
                multiply<T>(scores[s], low.z, high.z, low.w, high.w, query.z, query.w);
            }
        }
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {  // key g + 8 (i / 2), query 2 t + i % 2
                const int at = first + 16 * s + g + i / 2 * 8;
                scores[s][i] = at >= begin && at < end ? scores[s][i] * scale : -INFINITY;
                common[i % 2] = fmaxf(common[i % 2], scores[s][i]);
            }
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
            for (int step = 4; step < 32; step *= 2)
                common[j] = fmaxf(common[j], __shfl_xor_sync(0xffffffffu, common[j], step));
            const float keep = highest[j] == -INFINITY ? 0.0f : exp2f(highest[j] - common[j]);
            highest[j] = common[j];
            sum[j] *= keep;
#pragma unroll
            for (int tile = 0; tile < kAccTiles; ++tile) acc[tile][j] *= keep, acc[tile][j + 2] *= keep;
        }
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float weight = scores[s][i] == -INFINITY ? 0.0f : exp2f(scores[s][i] - common[i % 2]);
                sum[i % 2] += weight;
                scores[s][i] = weight;
            }
            const std::uint32_t b0 = transpose(pack_pair<T>(scores[s][0], scores[s][1]));
            const std::uint32_t b1 = transpose(pack_pair<T>(scores[s][2], scores[s][3]));
#pragma unroll
            for (int tile = 0; tile < kAccTiles; ++tile) {  // elements d and d + 1, d = 64 c + 8 g + 2 i
                const int c = tile / 4, i = tile % 4;
                std::uint32_t v[4];
#pragma unroll
                for (int k = 0; k < 4; ++k) v[k] = word(value[s][c][k], i);
                multiply<T>(acc[tile], __byte_perm(v[0], v[1], 0x5410), __byte_perm(v[0], v[1], 0x7632),
                            __byte_perm(v[2], v[3], 0x5410), __byte_perm(v[2], v[3], 0x7632), b0, b1);
            }
        }
    }
    __device__ __forceinline__ void put(DecodeScratch<T, D>& scratch) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
            for (int step = 4; step < 32; step *= 2) sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], step);
            if (g == 0) scratch.highest[warp][2 * t + j] = highest[j], scratch.sum[warp][2 * t + j] = sum[j];
#pragma unroll
            for (int tile = 0; tile < kAccTiles; ++tile) {
                const int d = tile / 4 * 64 + 8 * g + tile % 4 * 2;
                *reinterpret_cast<float2*>(&scratch.acc[warp][2 * t + j][d]) = {acc[tile][j],
                                                                                acc[tile][j + 2]};
            }
        }
    }
};

// Keys and values come to the L2 cache before they are asked for. `text`: elements before the text's cache.
template <class T, int D>
__device__ __forceinline__ void prefetch_cache(const DecodeStepParams& p, const DecodeStepLayer& l,
                                               const DecodeUnit& unit, std::int64_t text = 0) {
    if (unit.heads == 0 || unit.begin >= unit.end || thread_index() % 32 != 0) return;
    const std::int64_t begin = text + (std::int64_t{unit.kv_head} * p.capacity + unit.begin) * D;
    const auto bytes = static_cast<std::uint32_t>((unit.end - unit.begin) * D * 2);
    bulk_prefetch(static_cast<const T*>(l.keys) + begin, bytes);
    bulk_prefetch(static_cast<const T*>(l.values) + begin, bytes);
}

// Cosine and sine of the position's angle of pair i, times the table's factor.
__device__ __forceinline__ float2 angle_of(const DecodeStepParams& p, int position, int i) {
    float sine, cosine;
    sincosf(static_cast<float>(position) * p.rope.inv_freq[i], &sine, &cosine);
    return {cosine * p.rope.factor, sine * p.rope.factor};
}

// Where attention finds and puts what is of a unit's text: here, of the only one. Elements and words are
// counted from the layer's cache and from the exchange on.
template <class T, int D>
struct DecodeOneText {
    using Unit = DecodeUnit;
    const DecodeStepParams& p;
    const float2* of_angles;
    int at;
    __device__ __forceinline__ Unit unit(std::int64_t left, int number) const {
        return decode_unit<D>(p, at, left, number);
    }
    __device__ __forceinline__ int position(const Unit&) const { return at; }
    __device__ __forceinline__ const float2* angles(const Unit&) const { return of_angles; }
    __device__ __forceinline__ std::int64_t cache(const Unit&) const { return 0; }
    __device__ __forceinline__ std::int64_t qkv(const Unit&) const { return p.at.qkv; }
    // What the splits of a head found, each D + 2 words.
    __device__ __forceinline__ std::int64_t partial(const Unit& unit, int head) const {
        return p.at.partial + std::int64_t{head} * unit.splits * (D + 2);
    }
    // Elements d and d + 1 of a head.
    __device__ __forceinline__ void publish_attended(const Unit&, int head, int d, std::uint32_t two,
                                                     std::uint32_t epoch) const {
        publish(opaque_pointer(p.exchange) + p.at.attended + (std::int64_t{head} * D + d) / 2, two, epoch);
    }
};

// The blocks that share a unit's keys have each published of each head D sums, their highest score and the
// sum of their weights. Each joins them for its part of the elements.
template <class T, int D, class Text>
__device__ __forceinline__ void join_splits(const DecodeStepParams& p, const Text& text,
                                            const typename Text::Unit& unit, std::uint32_t epoch) {
    const int pairs = unit.heads * D / 2;
    for (int i = unit.split + thread_index() * unit.splits; i < pairs; i += kComputing * unit.splits) {
        const int head = unit.first_head + i / (D / 2), d = i % (D / 2) * 2;
        const std::uint64_t* from = opaque_pointer(p.exchange) + text.partial(unit, head);
        float common = -INFINITY, sum = 0, low = 0, high = 0;
#pragma unroll 1
        for (int first = 0; first < unit.splits; first += 4) {
            TwoWords words[4], scores[4];
#pragma unroll
            for (int s = 0; s < 4; ++s) {
                if (first + s >= unit.splits) break;
                scores[s] = peek_two(from + (first + s) * (D + 2) + D);
                words[s] = peek_two(from + (first + s) * (D + 2) + d);
            }
#pragma unroll
            for (int s = 0; s < 4; ++s) {
                if (first + s >= unit.splits) break;
                while (!scores[s].of(epoch)) scores[s] = peek_two(from + (first + s) * (D + 2) + D);
                while (!words[s].of(epoch)) words[s] = peek_two(from + (first + s) * (D + 2) + d);
                const float highest = __uint_as_float(scores[s].payload().x);
                const float weights = __uint_as_float(scores[s].payload().y);
                if (highest == -INFINITY) continue;
                const float next = fmaxf(common, highest);
                const float keep = exp2f(common - next), take = exp2f(highest - next);
                common = next;
                sum = sum * keep + weights * take;
                low = low * keep + __uint_as_float(words[s].payload().x) * take;
                high = high * keep + __uint_as_float(words[s].payload().y) * take;
            }
        }
        text.publish_attended(unit, head, d, pack_pair<T>(low / sum, high / sum), epoch);
    }
}

// From the words of qkv to those of `attended`.
template <class T, int D, class Text>
__device__ __forceinline__ void decode_attend(const DecodeStepParams& p, const DecodeStepLayer& layer,
                                              const typename Text::Unit& first_unit,
                                              DecodeScratch<T, D>& scratch, const Text& text,
                                              std::uint32_t epoch) {
    const int thread = thread_index(), warp = thread / 32;
    typename Text::Unit unit = first_unit;
    if (unit.heads == 0) return;
#pragma unroll 1
    for (int number = static_cast<int>(blockIdx.x);;) {
        const int kv_head = unit.kv_head, first_head = unit.first_head, heads = unit.heads;
        const int begin = unit.begin, end = unit.end, position = text.position(unit);
        const float2* angles = text.angles(unit);
        const std::uint64_t* qkv = opaque_pointer(p.exchange) + text.qkv(unit);
        DecodeAttention<T, D> attention;
        const std::int64_t cache = text.cache(unit) + std::int64_t{kv_head} * p.capacity * D;
        attention.keys = static_cast<const T*>(layer.keys) + cache;
        attention.values = static_cast<const T*>(layer.values) + cache;
        attention.last = end - 1;
        constexpr int kStep = 16 * DecodeAttention<T, D>::kSteps;
        int first = begin + warp * kStep;
        if (first < end) {
            attention.load(first);
        } else {
            attention.clear();
        }

        DecodeHead<T, D> head;
        if (warp < heads) {
            head.take(qkv + std::int64_t{first_head + warp} * D / 2, epoch);
            head.normalize(p, static_cast<const T*>(layer.q_norm));
            head.rotate(angles);
        } else {
            for (auto& e : head.e) e[0] = 0, e[1] = 0;
        }
        head.put([&](int i, std::uint32_t two) {
            reinterpret_cast<std::uint32_t*>(scratch.query[warp])[i] = two;
        });
        const bool newest = position < p.capacity && end == unit.last + 1 && begin < end;
        if (newest && warp >= kDecodeStepWarps - 2) {
            const bool is_key = warp == kDecodeStepWarps - 1;
            const int row = p.heads + (is_key ? 0 : p.kv_heads) + kv_head;
            head.take(qkv + std::int64_t{row} * D / 2, epoch);
            if (is_key) {
                head.normalize(p, static_cast<const T*>(layer.k_norm));
                head.rotate(angles);
            }
            T* to = static_cast<T*>(is_key ? layer.keys : layer.values) + cache + std::int64_t{position} * D;
            head.put([&](int i, std::uint32_t two) {
                reinterpret_cast<std::uint32_t*>(is_key ? scratch.key : scratch.value)[i] = two;
                if (unit.appends) reinterpret_cast<std::uint32_t*>(to)[i] = two;
            });
        }
        computing_sync();
        const std::uint32_t queries = shared_address(scratch.query[attention.g] + 8 * attention.t);
        const float scale = p.scale * 1.4426950408889634f;
#pragma unroll 1
        while (first < end) {
            if (newest && first + kStep > position) attention.take_newest(first, position, scratch);
            attention.attend(first, begin, end, scale, queries);
            first += kStep * kDecodeStepWarps;
            if (first < end) attention.load(first);
        }
        attention.put(scratch);
        computing_sync();
        for (int i = thread; i < heads * D / 2; i += kComputing) {
            const int h = i / (D / 2), d = i % (D / 2) * 2;
            float common = -INFINITY, sum = 0, low = 0, high = 0;
#pragma unroll
            for (int w = 0; w < kDecodeStepWarps; ++w) common = fmaxf(common, scratch.highest[w][h]);
#pragma unroll
            for (int w = 0; w < kDecodeStepWarps; ++w) {
                const float of_warp = scratch.highest[w][h];
                const float weight = of_warp == -INFINITY ? 0.0f : exp2f(of_warp - common);
                sum += weight * scratch.sum[w][h];
                low += weight * scratch.acc[w][h][d];
                high += weight * scratch.acc[w][h][d + 1];
            }
            const int of = first_head + h;
            if (unit.splits == 1) {
                text.publish_attended(unit, of, d, pack_pair<T>(low / sum, high / sum), epoch);
                continue;
            }
            std::uint64_t* to =
                opaque_pointer(p.exchange) + text.partial(unit, of) + std::int64_t{unit.split} * (D + 2);
            publish(to + d, __float_as_uint(low), epoch);
            publish(to + d + 1, __float_as_uint(high), epoch);
            if (d == 0) {
                publish(to + D, __float_as_uint(common), epoch);
                publish(to + D + 1, __float_as_uint(sum), epoch);
            }
        }
        if (unit.splits > 1) join_splits<T, D>(p, text, unit, epoch);
        computing_sync();  // the scratch becomes x, or the next unit's
        number += static_cast<int>(gridDim.x);
        if (number >= unit.count) return;
        unit = text.unit(layer.left, number);
    }
}
template <class T, int D>
__device__ __forceinline__ void decode_attend(const DecodeStepParams& p, const DecodeStepLayer& layer,
                                              const DecodeUnit& first_unit, DecodeScratch<T, D>& scratch,
                                              const float2* angles, int position, std::uint32_t epoch) {
    decode_attend<T, D>(p, layer, first_unit, scratch, DecodeOneText<T, D>{p, angles, position}, epoch);
}

}  // namespace gpk::kernels
