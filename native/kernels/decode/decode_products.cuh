// decode_step's products: the ring of shared memory, who fills it, and who multiplies what is in it.
//
// A block's rows of a matrix go by in tiles of up to 8, each in chunks along k, so that the copy engine gets
// pieces of 2 KB: below that it is the limit. wgmma reads them as they lie. Its A has 64 rows: 128 elements
// of a row of weights are eight of them, with every eighth of the elements each, and B's eight columns are
// the same eighths of x; so that a row of weights has its sum on the diagonal of 8 x 8 of the results, and
// seven eighths of these are not used. Both lie in memory without a gap or a swizzle: the "core matrices"
// of wgmma, eight rows of 16 bytes, are simply 128 bytes along k. Rows of a tile that are not there hold
// whatever was in the slot before; their sums are not used.
#pragma once

#include "kernels/attention/attention_decode_mma.cuh"
#include "kernels/decode/decode_exchange.cuh"
#include "kernels/gemm/gate.cuh"
#include "kernels/gemm/gemv_bulk.cuh"
#include "kernels/pairs.cuh"
#include "kernels/wgmma.cuh"

namespace gpk::kernels {

// Slots are numbered from the launch's first on. Barriers: of slots that are full, then of those that are
// empty.
struct DecodeRing {
    std::uint32_t first_slot, first_barrier, slots, slot_bytes, arrivals, inverse;
    static constexpr std::uint32_t kEmpty = 8 * kDecodeStepMostSlots;
    struct Place {
        std::uint32_t slot, barrier, parity;
    };
    // arrivals: that say that a slot is empty.
    __device__ __forceinline__ static std::uint32_t inverse_of(std::uint32_t slots) {
        return 0xffffffffu / slots + 1;
    }
    __device__ __forceinline__ Place at(std::uint32_t number) const {
        const std::uint32_t round = __umulhi(number, inverse), index = number - round * slots;
        return {first_slot + index * slot_bytes, first_barrier + 8 * index, round & 1};
    }
};

template <class T>
__device__ __forceinline__ float add_squares(float sum, uint2 four) {
    const float2 a = unpack_pair<T>(four.x), b = unpack_pair<T>(four.y);
    return fmaf(b.y, b.y, fmaf(b.x, b.x, fmaf(a.y, a.y, fmaf(a.x, a.x, sum))));
}
// Four elements times `scale`, each times its weight.
template <class T>
__device__ __forceinline__ uint2 scaled_four(uint2 four, uint2 weights, float scale) {
    const auto scaled = [&](std::uint32_t two, std::uint32_t by_two) {
        const float2 v = unpack_pair<T>(two), by = unpack_pair<T>(by_two);
        return pack_pair<T>(v.x * scale * by.x, v.y * scale * by.y);
    };
    return {scaled(four.x, weights.x), scaled(four.y, weights.y)};
}
template <class T>
__device__ __forceinline__ float rounded(float value) {
    return unpack_pair<T>(pack_pair<T>(value, 0.0f)).x;
}

// Two rows, from 2 i on, of a vector, or zeros where there is none.
template <class T>
__device__ __forceinline__ float2 pair_of(const T* from, int row, int count) {
    return from != nullptr && count > 0 ? float2{float(from[row]), float(from[row + 1])} : float2{};
}

// What kind of rows a matrix has. Pairs go into one word of the exchange. Of a gated one a tile has pairs of
// gates, then in slots of their own the ups that belong to them; `n` is the number of either.
enum class StepRows : int { pairs, gated, single };
template <StepRows kRows>
inline constexpr int kUnitRows = kRows == StepRows::single ? 1 : 2;  // that stay together
template <StepRows kRows>
inline constexpr int kParts = kRows == StepRows::gated ? 2 : 1;  // of a tile

// A block's part of a matrix, in units.
struct DecodeShare {
    int first, count, tiles;
    EvenParts parts;  // the tiles
    DecodeShare() = default;
    // Who has a row more than others changes from matrix to matrix, by `turn`.
    template <StepRows kRows>
    __device__ __forceinline__ static DecodeShare of(int n, int turn) {
        constexpr int kTileUnits = kDecodeStepRows / kUnitRows<kRows>;
        const int blocks = static_cast<int>(gridDim.x),
                  block = (static_cast<int>(blockIdx.x) + turn) % blocks;
        const EvenParts all(n / kUnitRows<kRows>, blocks);
        DecodeShare share;
        share.first = all.begin(block);
        share.count = all.begin(block + 1) - share.first;
        share.tiles = (share.count + kTileUnits - 1) / kTileUnits;
        if (share.tiles > 0) share.parts = EvenParts(share.count, share.tiles);
        return share;
    }
    __device__ __forceinline__ int begin(int tile) const { return first + parts.begin(tile); }
};

// The copying warp: slots in the order in which they are needed. All of it is called by the whole warp.
// kPitch: bytes from a row of a slot to the next.
template <int kPitch>
struct DecodeStreamOf {
    const DecodeRing& ring;
    const volatile int& waiting;  // whether the others wait for other blocks
    std::uint32_t in_flight, in_flight_waiting;
    std::uint32_t next = 0;  // slot

    // Of a matrix of rows of k elements of 16 bits, `unit_rows` of which stay together. The second of two
    // parts is n rows after the first.
    __device__ __forceinline__ void weights(const void* weights, const DecodeShare& share, int unit_rows,
                                            int parts, std::int64_t n, int k) {
        columns(weights, share, unit_rows, parts, n, k, std::int64_t{2} * k);
    }
    // The first k elements of rows of so many bytes.
    __device__ __forceinline__ void columns(const void* weights, const DecodeShare& share, int unit_rows,
                                            int parts, std::int64_t n, int k, std::int64_t row_bytes) {
#pragma unroll 1
        for (int tile = 0; tile < share.tiles; ++tile) {
            const int first = share.begin(tile) * unit_rows;
            const int rows = share.begin(tile + 1) * unit_rows - first;
            const char* from = static_cast<const char*>(weights) + first * row_bytes;
#pragma unroll 1
            for (int part = 0; part < parts; ++part, from += n * row_bytes) {
#pragma unroll 1
                for (int at = 0; at < k; at += DecodeChunks::kMost) {
                    load(from + 2 * at, row_bytes, rows,
                         static_cast<std::uint32_t>(2 * min(DecodeChunks::kMost, k - at)));
                }
            }
        }
    }
    // One slot with a whole vector.
    __device__ __forceinline__ void vector(const void* from, int k) {
        load(static_cast<const char*>(from), 0, 1, static_cast<std::uint32_t>(2 * k));
    }
    __device__ __forceinline__ DecodeRing::Place take() {
        const DecodeRing::Place place = ring.at(next);
        bulk_wait(place.barrier + DecodeRing::kEmpty, place.parity ^ 1);
        const std::uint32_t most = waiting != 0 ? in_flight_waiting : in_flight;
        if (next >= most) {
            const DecodeRing::Place before = ring.at(next - most);
            bulk_wait(before.barrier, before.parity);
        }
        ++next;
        __syncwarp();  // all have seen the slot empty before it can be so again
        return place;
    }
    // `rows` pieces of `bytes`, by one lane: the instruction wants registers that are uniform, so that lanes
    // with a piece each would go one after the other, 100 clocks apart.
    __device__ __forceinline__ void load(const char* from, std::int64_t row_bytes, int rows,
                                         std::uint32_t bytes) {
        const DecodeRing::Place place = take();
        if (elect_one()) {
            bulk_expect(place.barrier, static_cast<std::uint32_t>(rows) * bytes);
#pragma unroll
            for (int i = 0; i < kDecodeStepRows; ++i) {
                if (i < rows) bulk_load(place.slot + i * kPitch, from + i * row_bytes, bytes, place.barrier);
            }
        }
        __syncwarp();
    }
};
using DecodeStream = DecodeStreamOf<kDecodeStepPitch>;

// Slots go to the two warpgroups by turns. There is an even number of them, so that a place in the ring has
// one owner: a barrier tells only whether a phase or the one before it is over, and copies do not end in
// order, so that whoever had not seen a place's last slot could take the next for full too early.
inline constexpr int kDecodeTeam = 4, kDecodeTeams = kDecodeStepWarps / kDecodeTeam;
// By each of so many warps.
__device__ __forceinline__ void free_slot(const DecodeRing& ring, const DecodeRing::Place& place,
                                          std::uint32_t warps = kDecodeTeam) {
    if (thread_index() % 32 != 0) return;
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(place.barrier + DecodeRing::kEmpty),
                 "r"(ring.arrivals / warps)
                 : "memory");
}
__device__ __forceinline__ DecodeRing::Place full_slot(const DecodeRing& ring, std::uint32_t number) {
    const DecodeRing::Place place = ring.at(number);
    bulk_wait(place.barrier, place.parity);
    __syncwarp();
    return place;
}

// A step of wgmma, 16 of its k: 128 elements of a row. Matrices that lie as said above: kAhead bytes to the
// next eight elements of each eighth.
inline constexpr int kStepElements = 128;
inline constexpr std::uint32_t kStepBytes = 2 * kStepElements, kAhead = kStepBytes / 2;
__device__ __forceinline__ std::uint32_t step_matrix(std::uint32_t address) {
    return address >> 4 | kAhead >> 4 << 16;  // its lower half
}

// Steps of k of 128 elements each; a and b go on.
template <class T, int kSteps>
__device__ __forceinline__ void multiply_steps(float (&acc)[4], std::uint32_t& a, std::uint32_t& b) {
    constexpr std::uint64_t kRows = std::uint64_t{kDecodeStepPitch >> 4} << 32;
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
        wgmma<T, 8>(acc, kRows | a, b, true);
        a += kStepBytes >> 4, b += kStepBytes >> 4;
    }
    wgmma_commit();
}

// Of the slots from number `next` on, which hold rows of k elements, a team's: to acc the sums of their
// products with x, all k elements and 64 zeros behind them where k is no whole 128.
template <class T>
__device__ __forceinline__ void multiply_slots(float (&acc)[4], const DecodeRing ring, std::uint32_t next,
                                               std::uint32_t x, int k, int team) {
    constexpr int kFull = DecodeChunks::kMost / kStepElements;
    const int first = static_cast<int>(next + static_cast<std::uint32_t>(team)) % kDecodeTeams;
    const int full = k / DecodeChunks::kMost;
#pragma unroll 1
    for (int chunk = first; chunk < full; chunk += kDecodeTeams) {
        const DecodeRing::Place place = full_slot(ring, next + static_cast<std::uint32_t>(chunk));
        std::uint32_t a = step_matrix(place.slot), b = step_matrix(x + 2 * DecodeChunks::kMost * chunk);
        multiply_steps<T, kFull>(acc, a, b);
        wgmma_wait<0>();
        free_slot(ring, place);
    }
    if (k % DecodeChunks::kMost != 0 && full % kDecodeTeams == first) {
        const DecodeRing::Place place = full_slot(ring, next + static_cast<std::uint32_t>(full));
        std::uint32_t a = step_matrix(place.slot), b = step_matrix(x + 2 * DecodeChunks::kMost * full);
        int steps = k % DecodeChunks::kMost / kStepElements;
        if (steps >= kFull / 2) multiply_steps<T, kFull / 2>(acc, a, b), steps -= kFull / 2;
#pragma unroll 1
        for (; steps > 0; --steps) multiply_steps<T, 1>(acc, a, b);
        // The last 64 twice, the second time by zeros.
        if (k % kStepElements != 0) {
            a -= kAhead >> 4 << 16;
            multiply_steps<T, 1>(acc, a, b);
        }
        wgmma_wait<0>();
        free_slot(ring, place);
    }
}
// A warp w has the rows 2 w and 2 w + 1 of the tile; row i of eight of A has its part of their sums in column
// i. Lanes from 8 j on get those of row 2 w + j (of the second part's accumulators, j - 2).
__device__ __forceinline__ float add_up(const float (&acc)[4], const float (&second)[4]) {
    const int lane = thread_index() % 32, g = lane % 8;
    const auto part = [&](float even, float odd) {  // of row g: its lane has it in the one or the other
        const float mine = lane / 4 % 2 == 0 ? even : odd;
        return __shfl_sync(0xffffffffu, mine, 4 * g + g / 2);
    };
    const float parts[4] = {part(acc[0], acc[1]), part(acc[2], acc[3]), part(second[0], second[1]),
                            part(second[2], second[3])};
    float sum = lane < 8 ? parts[0] : lane < 16 ? parts[1] : lane < 24 ? parts[2] : parts[3];
#pragma unroll
    for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

// Sums of the team that does not store a tile's, for the one that does.
struct DecodeSums {
    float of[kDecodeTeams][kDecodeTeam][4];
};
inline constexpr int kSumsBarrier = 2;

// Calls store(row, count, extra, sums) (of a gated matrix store(row, count, extra, gates, ups)) for each two
// rows of the block, the second of which need not be there (count), by a whole warp. extra = early(row,
// count) is asked for before the sums are known. x may be written when all threads have passed.
template <StepRows kRows, class T, class Early, class Store>
__device__ __forceinline__ void multiply_weights(const DecodeRing& ring, std::uint32_t& next,
                                                 DecodeSums& sums_of, std::uint32_t x,
                                                 const DecodeShare& in_shared, int k, Early early,
                                                 Store store) {
    const DecodeShare share = in_shared;
    // The same for a warp, and known to be: wgmma wants it.
    const int warp = __shfl_sync(0xffffffffu, thread_index() / 32, 0);
    const int team = warp / kDecodeTeam, of_team = warp % kDecodeTeam, lane = thread_index() % 32;
    const auto chunks = static_cast<std::uint32_t>(DecodeChunks::count(k));
    const bool alone = chunks * kParts<kRows> == 1;  // a tile's slot
#pragma unroll 1
    for (int tile = 0; tile < share.tiles; ++tile) {
        const int row = share.begin(tile) * kUnitRows<kRows> + 2 * of_team;
        const int count = min(share.begin(tile + 1) * kUnitRows<kRows> - row, 2);
        // Teams store by turns; the sums of one slot alone are its owner's.
        const int stores = alone ? static_cast<int>(next) % kDecodeTeams : tile % kDecodeTeams;
        if (alone && stores != team) {
            next += chunks;
            continue;
        }
        const auto extra = early(row, stores == team ? count : 0);
        float acc[4] = {}, second[4] = {};
        wgmma_hold(acc);
        wgmma_hold(second);
        multiply_slots<T>(acc, ring, next, x, k, team);
        next += chunks;
        if constexpr (kParts<kRows> == 2) {
            multiply_slots<T>(second, ring, next, x, k, team);
            next += chunks;
        }
        wgmma_hold(acc);
        wgmma_hold(second);
        float sum = add_up(acc, kParts<kRows> == 2 ? second : acc);
        float* others = sums_of.of[stores][of_team];
        if (stores != team) {
            if (lane % 8 == 0) others[lane / 8] = sum;
            named_barrier_arrive(kSumsBarrier + stores, kComputing);
            continue;
        }
        if (!alone) {
            named_barrier_sync(kSumsBarrier + stores, kComputing);
            sum += others[lane / 8];
        }
        const auto of = [&](int j) { return __shfl_sync(0xffffffffu, sum, 8 * j); };
        const float2 sums{of(0), of(1)};
        if constexpr (kParts<kRows> == 2) {
            const float2 ups{of(2), of(3)};
            if (count > 0) store(row, count, extra, sums, ups);
        } else {
            if (count > 0) store(row, count, extra, sums);
        }
    }
    computing_sync();
}

// After x of k elements was written: zeros behind it, and wgmma sees it.
__device__ __forceinline__ void finish_x(uint2* x, int k) {
    if (k % kStepElements != 0 && thread_index() < DecodeChunks::kUnit / 4) x[k / 4 + thread_index()] = {};
    fence_async_shared();
    computing_sync();
}

__device__ __forceinline__ uint2 load_shared_eight(std::uint32_t address) {
    uint2 words;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(words.x), "=r"(words.y) : "r"(address));
    return words;
}

}  // namespace gpk::kernels
