// decode_step's products: the ring of shared memory, who fills it, and who multiplies what is in it.
//
// A block's rows of a matrix go by in tiles of up to 8, each in chunks along k, so that the copy engine gets
// pieces of 2 KB: below that it is the limit. The first half of a tile's chunk and the second are the 16 rows
// of mma.sync's first operand; of the 8 columns of the second, x, the even ones are of the first half and the
// odd ones of the second. So a row's sum is in column 0 of row g and column 1 of row g + 8, which the same
// lane has. Rows of a tile that are not there hold whatever was in the slot before; their sums are not used.
#pragma once

#include "kernels/attention/attention_decode_mma.cuh"
#include "kernels/decode/decode_exchange.cuh"
#include "kernels/gemm/gate.cuh"
#include "kernels/gemm/gemv_bulk.cuh"

namespace gpk::kernels {

// Slots are numbered from the launch's first on. Barriers: of slots that are full, then of those that are
// empty.
struct DecodeRing {
    std::uint32_t first_slot, first_barrier, slots, inverse;
    static constexpr std::uint32_t kEmpty = 8 * kDecodeStepMostSlots;
    struct Place {
        std::uint32_t slot, barrier, parity;
    };
    __device__ __forceinline__ DecodeRing(std::uint32_t slots_at, std::uint32_t barriers, std::uint32_t slots)
        : first_slot(slots_at), first_barrier(barriers), slots(slots), inverse(0xffffffffu / slots + 1) {}
    __device__ __forceinline__ Place at(std::uint32_t number) const {
        const std::uint32_t round = __umulhi(number, inverse), index = number - round * slots;
        return {first_slot + index * kDecodeStepSlotBytes, first_barrier + 8 * index, round & 1};
    }
};

template <class T>
__device__ __forceinline__ std::uint32_t pack_two(float low, float high) {
    std::uint32_t two;
    if constexpr (std::is_same_v<T, bfloat16>) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    }
    return two;
}
template <class T>
__device__ __forceinline__ float2 unpack_two(std::uint32_t two) {
    if constexpr (std::is_same_v<T, bfloat16>) {
        return {__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u)};
    } else {
        float2 both;
        asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}\n"
            : "=f"(both.x), "=f"(both.y)
            : "r"(two));
        return both;
    }
}
template <class T>
__device__ __forceinline__ float rounded(float value) {
    return unpack_two<T>(pack_two<T>(value, 0.0f)).x;
}

// What kind of rows a matrix has. Pairs go into one word of the exchange. Of a gated one a tile has 4 gates
// and the 4 ups that belong to them; `n` is the number of either.
enum class StepRows : int { pairs, gated, single };
template <StepRows kRows>
inline constexpr int kUnitRows = kRows == StepRows::single ? 1 : 2;  // that stay together

// A block's part of a matrix, in units.
struct DecodeShare {
    int first, count, tiles;
    EvenParts parts;  // the tiles
    DecodeShare() = default;
    // Who has a row more than others changes from matrix to matrix, by `turn`.
    template <StepRows kRows>
    __device__ __forceinline__ static DecodeShare of(int n, int turn) {
        constexpr int kTileUnits = kDecodeStepRows / (kRows == StepRows::gated ? 2 : 1) / kUnitRows<kRows>;
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

// What the copying warp knows. All of it is called by the whole warp.
struct DecodeStream {
    const DecodeRing& ring;
    const volatile int& waiting;  // whether the others wait for other blocks
    std::uint32_t in_flight, in_flight_waiting;
    std::uint32_t next = 0;  // slot

    __device__ __forceinline__ DecodeRing::Place take() {
        const DecodeRing::Place place = ring.at(next);
        bulk_wait(place.barrier + DecodeRing::kEmpty, place.parity ^ 1);
        const std::uint32_t most = waiting != 0 ? in_flight_waiting : in_flight;
        if (next >= most) {
            const DecodeRing::Place before = ring.at(next - most);
            bulk_wait(before.barrier, before.parity);
        }
        ++next;
        return place;
    }
    template <StepRows kRows, class T>
    __device__ __forceinline__ void weights(const void* weights, const DecodeShare& share, int n, int k,
                                            const DecodeChunks& chunks) {
        const int lane = thread_index() % 32;
#pragma unroll 1
        for (int tile = 0; tile < share.tiles; ++tile) {
            const int first = share.begin(tile) * kUnitRows<kRows>;
            const int rows = share.begin(tile + 1) * kUnitRows<kRows> - first;
            const bool gated = kRows == StepRows::gated;
            const bool mine = gated ? lane < 8 && lane % 4 < rows : lane < rows;
            const std::int64_t row =
                gated ? first + lane % 4 + (lane >= 4 ? std::int64_t{n} : 0) : first + lane;
            const T* from = static_cast<const T*>(weights) + row * k;
            const std::uint32_t all = static_cast<std::uint32_t>(gated ? 2 * rows : rows);
#pragma unroll 1
            for (int at = 0; at < k; at += chunks.length) {
                const auto bytes = static_cast<std::uint32_t>(2 * min(chunks.length, k - at));
                const DecodeRing::Place place = take();
                if (lane == 0) bulk_expect(place.barrier, all * bytes);
                __syncwarp();
                if (mine) bulk_load(place.slot + lane * kDecodeStepPitch, from + at, bytes, place.barrier);
            }
        }
    }
    // One slot with a whole vector.
    __device__ __forceinline__ void vector(const void* from, std::uint32_t bytes) {
        const DecodeRing::Place place = take();
        const bool first = thread_index() % 32 == 0;
        if (first) bulk_expect(place.barrier, bytes);
        __syncwarp();  // all lanes are past take(): parities do not tell a phase from the next but one
        if (first) bulk_load(place.slot, from, bytes, place.barrier);
    }
};

struct DecodeSums {
    float parts[2][DecodeChunks::kMostOfGroup][kDecodeTeam][kDecodeStepRows];
};

// Of `slots` slots from number `next` on, which hold whole tiles. All sums are there when it returns.
template <class T>
__device__ __forceinline__ void multiply_slots(const DecodeRing ring,
                                               float (*parts)[kDecodeTeam][kDecodeStepRows], std::uint32_t x,
                                               std::uint32_t next, int slots, int k, int count, int length) {
    const int thread = thread_index(), warp = thread / 32, lane = thread % 32;
    const int g = lane / 4, t = lane % 4, member = warp % kDecodeTeam;
    const std::uint32_t from = g * kDecodeStepPitch + member * 64 + t * 16, x_from = x + member * 64 + t * 16;
    constexpr std::uint32_t kStep = kDecodeTeam * 64;
    int chunk = warp / kDecodeTeam;
#pragma unroll 1
    for (int i = warp / kDecodeTeam; i < slots; i += kDecodeTeams, chunk += kDecodeTeams) {
        while (chunk >= count) chunk -= count;
        const int here = min(length, k - chunk * length);  // bytes of half a row
        const DecodeRing::Place place = ring.at(next + i);
        std::uint32_t low_at = place.slot + from, x_at = x_from + 2 * chunk * length + (g % 2) * here;
        float acc[2][4] = {};
        bulk_wait(place.barrier, place.parity);
#pragma unroll 1
        for (int at = member * 64; at < here; at += 4 * kStep, low_at += 4 * kStep, x_at += 4 * kStep) {
            uint4 low[4], high[4], v[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const bool inside = at + j * static_cast<int>(kStep) < here;
                const std::uint32_t step = inside ? j * kStep : 0;
                low[j] = load_shared(low_at + step);
                high[j] = load_shared(low_at + step + here);
                v[j] = load_shared(x_at + step);
                if (!inside) v[j] = uint4{};
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (at + j * static_cast<int>(kStep) >= here) break;
                multiply_add<T>(acc[j % 2], low[j].x, high[j].x, low[j].y, high[j].y, v[j].x, v[j].y);
                multiply_add<T>(acc[j % 2], low[j].z, high[j].z, low[j].w, high[j].w, v[j].z, v[j].w);
            }
        }
        __syncwarp();
        if (lane == 0) bulk_arrive(place.barrier + DecodeRing::kEmpty);
        if (t == 0) parts[i][member][g] = (acc[0][0] + acc[1][0]) + (acc[0][3] + acc[1][3]);
    }
    computing_sync();
}

// Calls store(row, there, extra, sum) once for each row of the block (of a gated matrix store(row, there,
// extra, gate, up)), on the first four warps and, where rows are pairs, so that a lane has a pair's first row
// and the next lane its second; also for rows that are not there. extra = early(row) is asked for before the
// sums are known.
template <StepRows kRows, class T, class Early, class Store>
__device__ __forceinline__ void multiply_weights(const DecodeRing& ring, std::uint32_t& next,
                                                 DecodeSums& sums, std::uint32_t x,
                                                 const DecodeShare& in_shared, int k,
                                                 const DecodeChunks& chunks, Early early, Store store) {
    const DecodeShare share = in_shared;
    const int thread = thread_index();
    const int own_tile = thread / kDecodeStepRows, own_row = thread % kDecodeStepRows;
    int buffer = 0;
#pragma unroll 1
    for (int group = 0; group < share.tiles; group += chunks.group, buffer ^= 1) {
        const int tiles = min(chunks.group, share.tiles - group), slots = tiles * chunks.count;
        const int first = share.begin(group + own_tile) * kUnitRows<kRows>, row = first + own_row;
        const int rows = share.begin(group + own_tile + 1) * kUnitRows<kRows> - first;
        const bool there = own_tile < tiles && own_row < rows && (kRows != StepRows::gated || own_row < 4);
        const auto extra = early(row, there);
        multiply_slots<T>(ring, sums.parts[buffer], x, next, slots, k, chunks.count, chunks.length);
        next += slots;
        if (thread < kDecodeStepRows * DecodeChunks::kMostTiles) {
            float sum = 0;
#pragma unroll 1
            for (int i = own_tile * chunks.count; i < min((own_tile + 1) * chunks.count, slots); ++i) {
#pragma unroll
                for (int w = 0; w < kDecodeTeam; ++w) sum += sums.parts[buffer][i][w][own_row];
            }
            __syncwarp();
            if constexpr (kRows == StepRows::gated) {
                const float up = __shfl_down_sync(0xffffffffu, sum, 4);
                store(row, there, extra, sum, up);
            } else {
                store(row, there, extra, sum);
            }
        }
    }
}

__device__ __forceinline__ uint2 load_shared_eight(std::uint32_t address) {
    uint2 words;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(words.x), "=r"(words.y) : "r"(address));
    return words;
}

// Publishes rows of pairs: `words` is where row 0's word is.
template <class T>
__device__ __forceinline__ void publish_pair(std::uint64_t* words, int row, bool there, float value,
                                             std::uint32_t epoch) {
    const float next = __shfl_down_sync(0xffffffffu, value, 1);
    if (there && row % 2 == 0) publish(words + row / 2, pack_two<T>(value, next), epoch);
}

}  // namespace gpk::kernels
