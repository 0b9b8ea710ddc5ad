// Finding the smallest key that is still taken when the largest keys of a row are taken until their amounts
// reach a goal, with the row spread over the blocks of a cluster. Amounts are integers, so the order in which
// atomics add them does not matter.
//
// One histogram of evenly spaced bins finds the bin of the boundary; what is in it is gathered and sorted.
// Where that is more than fits, or the spread of values says nothing, three histograms of the keys' digits
// decide.
#pragma once

#include "kernels/device.cuh"
#include "kernels/sampling/sample.hpp"
#include "kernels/sampling/weights.hpp"
#include "kernels/team.cuh"

namespace gpk::kernels {

namespace {

inline constexpr int kSelectWarps = kSelectThreads / 32;
inline constexpr int kDigitBits = 11;
inline constexpr int kSelectBins = 1 << kDigitBits;

__device__ __forceinline__ std::uint64_t warp_sum(std::uint64_t value) {
    return warp_reduce(value, [](std::uint64_t a, std::uint64_t b) { return a + b; });
}
// The sum of the lanes before this one.
__device__ __forceinline__ std::uint64_t warp_before(std::uint64_t value) {
    std::uint64_t sum = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const std::uint64_t other = __shfl_up_sync(0xffffffffu, sum, step);
        if (threadIdx.x % 32 >= static_cast<unsigned>(step)) sum += other;
    }
    return sum - value;
}

// A barrier of the first `threads` of the block, in whole warps.
__device__ __forceinline__ void sync_first(int threads) {
    if (threads <= 32) {
        __syncwarp();
    } else {
        asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
    }
}

struct SelectShared {
    std::uint32_t low[kSelectBins], high[kSelectBins];  // a bin's amount, in two words
    std::uint64_t of_block[2];                          // of one exchange and of the next
    std::uint64_t of_warp[kSelectWarps];
    std::uint64_t found[2];
    std::uint32_t gathered;
};
inline constexpr int kSelectItems = kSelectBins;  // that fit where the histogram is
inline constexpr int kFewLargest = 128;

// What is below or above the boundary of a selection.
struct Boundary {
    std::uint32_t key = 0;    // the smallest that is taken; all above are
    std::uint64_t above = 0;  // the amount of those above
    std::uint64_t goal = 0;
};

// Values spread evenly over the bins.
struct Spread {
    float highest, scale = 0;  // bins from the highest value down to where nothing counts; 0: no use

    __device__ __forceinline__ Spread(float high, float range) : highest(high) {
        const float bins = (kSelectBins - 1) / range;
        if (range > 0 && bins > 0 && bins < 1e30f) scale = bins;
    }
    __device__ __forceinline__ int bin(float value) const {  // the higher, the larger; NaN the highest
        const float bins = (highest - value) * scale;
        if (!(bins > 0)) return kSelectBins - 1;
        return bins < kSelectBins - 1 ? kSelectBins - 1 - static_cast<int>(bins) : 0;
    }
};

// A row as a cluster sees it: a block has a part of it, and each of its warps a part of that, in order. Where
// the block has room for its part (dynamic shared memory), it is kept there.
template <class T>
struct Row {
    const T* values;
    std::int32_t begin, end;  // of this warp

    __device__ __forceinline__ Row(const T* row, std::int32_t n) : values(row) {
        const std::int32_t each =
            static_cast<std::int32_t>(select_part(n, static_cast<std::int32_t>(team_blocks()))) /
            kSelectWarps;
        const std::int32_t warp = static_cast<std::int32_t>(team_rank()) * kSelectWarps +
                                  static_cast<std::int32_t>(threadIdx.x / 32);
        const std::int64_t first = static_cast<std::int64_t>(warp) * each;
        begin = first < n ? static_cast<std::int32_t>(first) : n;
        end = n - begin < each ? n : begin + each;
    }

    // Reads the row from now on from this block's memory, where that has room.
    __device__ __forceinline__ void keep(std::int32_t n) {
        extern __shared__ __align__(16) unsigned char dynamic[];
        std::uint32_t room;
        asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(room));
        const std::int64_t part = select_part(n, team_blocks());
        if (room < part * sizeof(T)) return;
        T* kept = reinterpret_cast<T*>(dynamic) - part * team_rank();
        constexpr int kChunk = 16 / sizeof(T);
        const int lane = threadIdx.x % 32;
        __syncwarp();  // the row before is read
        if (in_chunks()) {
            const std::int32_t whole = (end - begin) / kChunk * kChunk;
#pragma unroll 8
            for (std::int32_t i = begin + lane * kChunk; i < begin + whole; i += 32 * kChunk) {
                *reinterpret_cast<uint4*>(kept + i) = *reinterpret_cast<const uint4*>(values + i);
            }
            if (begin + whole + lane < end) kept[begin + whole + lane] = values[begin + whole + lane];
        } else {
#pragma unroll 8
            for (std::int32_t i = begin + lane; i < end; i += 32) kept[i] = values[i];
        }
        __syncwarp();
        values = kept;
    }
    __device__ __forceinline__ bool in_chunks() const {
        return reinterpret_cast<std::uintptr_t>(values + begin) % 16 == 0;
    }
    // Calls take(value) for all of this warp's, in any order. One chunk a round, the next under way: `take`
    // may be long code, and each copy of it is paid for in the image and in fetching.
    template <class Take>
    __device__ __forceinline__ void each_once(Take take) const {
        constexpr int kChunk = 16 / sizeof(T);
        const int lane = threadIdx.x % 32;
        const auto past = static_cast<std::int32_t>(reinterpret_cast<std::uintptr_t>(values + begin) % 16 /
                                                    sizeof(T));  // a 16-byte boundary
        const std::int32_t head = min((kChunk - past) % kChunk, end - begin);
        const std::int32_t chunks = (end - begin - head) / kChunk;
        const auto* whole = reinterpret_cast<const uint4*>(values + begin + head);
        uint4 next = lane < chunks ? whole[lane] : uint4{};
#pragma unroll 1
        for (std::int32_t c = lane; c < chunks; c += 32) {
            const auto chunk = detail::bit_cast<Vector<T, kChunk>>(next);
            next = c + 32 < chunks ? whole[c + 32] : uint4{};
#pragma unroll
            for (int e = 0; e < kChunk; ++e) take(convert<float>(chunk.values[e]));
        }
        // Before the chunks and behind them, fewer than the lanes.
        const std::int32_t i = begin + lane + (lane < head ? 0 : chunks * kChunk);
        if (i < end) take(convert<float>(values[i]));
    }
    // Calls take(value, index, inside) for all of this warp's, 32 neighbours at a time: of a lane without
    // one, `inside` is false.
    template <class Take>
    __device__ __forceinline__ void each(Take take) const {
        constexpr int kAhead = 8;
        const int lane = threadIdx.x % 32;
        for (std::int32_t left = end - begin; left > 0; left -= 32 * kAhead) {
            const std::int32_t first = end - left + lane;
            float ahead[kAhead];
#pragma unroll
            for (int u = 0; u < kAhead; ++u) {
                ahead[u] = lane + 32 * u < left ? convert<float>(values[first + 32 * u]) : 0.0f;
            }
#pragma unroll
            for (int u = 0; u < kAhead; ++u) {
                if (32 * u < left) take(ahead[u], first + 32 * u, lane + 32 * u < left);
            }
        }
    }
};

class Cluster {
   public:
    __device__ __forceinline__ explicit Cluster(SelectShared& shared)
        : blocks(team_blocks()), rank(team_rank()), shared_(shared) {}

    const std::uint32_t blocks, rank;

    // `of_warp` of each warp: the sum over the cluster in `total`, that over the warps before this one
    // returned.
    __device__ __forceinline__ std::uint64_t sum(std::uint64_t of_warp, std::uint64_t& total) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (lane == 0) shared_.of_warp[warp] = of_warp;
        __syncthreads();
        const std::uint64_t mine = shared_.of_warp[lane];
        std::uint64_t before = __shfl_sync(0xffffffffu, warp_before(mine), warp);
        const std::uint64_t of_block = warp_sum(mine);
        if (threadIdx.x == 0) shared_.of_block[parity_] = of_block;
        team_sync();
        const std::uint64_t value = of_blocks();
        total = warp_sum(value);
        return before + warp_sum(lane < static_cast<int>(rank) ? value : 0);
    }
    // The largest value of any thread.
    __device__ __forceinline__ std::uint64_t largest(std::uint64_t value) {
        const auto larger = [](std::uint64_t a, std::uint64_t b) { return a > b ? a : b; };
        const std::uint64_t of_warp = warp_reduce(value, larger);
        if (threadIdx.x % 32 == 0) shared_.of_warp[threadIdx.x / 32] = of_warp;
        __syncthreads();
        const std::uint64_t of_block = warp_reduce(shared_.of_warp[threadIdx.x % 32], larger);
        if (threadIdx.x == 0) shared_.of_block[parity_] = of_block;
        team_sync();
        return warp_reduce(of_blocks(), larger);
    }

    // The boundary where the amounts of the largest keys reach a goal. amount(value, key) is what an element
    // counts; goal(total) what is to be reached, 1 to total. `extra` counts beside the elements, once, as if
    // of a key of which no element counts.
    template <class T, class Amount, class Goal>
    __device__ __forceinline__ Boundary select(const Row<T>& row, const Spread& spread, Amount amount,
                                               Goal goal, std::uint32_t extra_key = 0,
                                               std::uint64_t extra = 0) {
        Boundary boundary;
        if (spread.scale > 0) {
            find_bin(
                [&](auto add) {
                    row.each_once(
                        [&](float value) { add(spread.bin(value), amount(value, order_key(value))); });
                    if (rank == 0 && threadIdx.x == 0 && extra != 0)
                        add(spread.bin(key_value(extra_key)), extra);
                },
                goal, true, boundary);
            if (among(row, spread, static_cast<int>(shared_.found[0]), amount, extra_key, extra, boundary)) {
                return boundary;
            }
            boundary = Boundary();
        }
        // Three digits, of which the last has a bit of the one before.
        std::uint32_t known = 0;  // the bits of the key that are
#pragma unroll 1
        for (int shift = 32 - kDigitBits; known != ~0u; shift = max(shift - kDigitBits, 0)) {
            const auto relevant = [&](std::uint32_t key) { return ((key ^ boundary.key) & known) == 0; };
            const auto digit = [&](std::uint32_t key) {
                return static_cast<int>(key >> shift & (kSelectBins - 1));
            };
            find_bin(
                [&](auto add) {
                    row.each_once([&](float value) {
                        const std::uint32_t key = order_key(value);
                        if (relevant(key)) add(digit(key), amount(value, key));
                    });
                    if (rank == 0 && threadIdx.x == 0 && extra != 0 && relevant(extra_key)) {
                        add(digit(extra_key), extra);
                    }
                },
                goal, known == 0, boundary);
            boundary.key |= static_cast<std::uint32_t>(shared_.found[0]) << shift;
            known = ~0u << shift;
        }
        return boundary;
    }

    // Up to kSelectItems of them lie in the first block's memory, where the histogram was. Every block calls
    // clear_items(), then gather() from any thread; the first block then has them, sorted from the largest
    // down, after sort_items().
    __device__ __forceinline__ void clear_items() {
        if (threadIdx.x == 0) shared_.gathered = 0;
        team_sync();
    }
    __device__ __forceinline__ std::uint64_t* items() {
        static_assert(sizeof(shared_.low) + sizeof(shared_.high) == kSelectItems * sizeof(std::uint64_t));
        return reinterpret_cast<std::uint64_t*>(shared_.low);
    }
    __device__ __forceinline__ void gather(std::uint64_t item) {
        const std::uint32_t place = atomicAdd(of_team(&shared_.gathered, 0), 1u);
        if (place < kSelectItems) of_team(items(), 0)[place] = item;
    }
    // Bitonic, by the first block. `count`: at most kSelectItems.
    __device__ __forceinline__ void sort_items(int count) { sort(items(), count); }
    __device__ __forceinline__ static void sort(std::uint64_t* list, int count) {
        int padded = 2;
        while (padded < count) padded *= 2;
        for (int i = count + threadIdx.x; i < padded; i += kSelectThreads) list[i] = 0;
        __syncthreads();
        const int active = padded / 2 < 32 ? 32 : padded / 2, thread = static_cast<int>(threadIdx.x);
        if (thread < active) {
            for (int run = 2; run <= padded; run *= 2) {
                for (int step = run / 2; step > 0; step /= 2) {
                    const int low = thread / step * step * 2 + thread % step;
                    if (low + step < padded) {
                        const std::uint64_t a = list[low], b = list[low + step];
                        if (((low & run) == 0) == (a < b)) {
                            list[low] = b;
                            list[low + step] = a;
                        }
                    }
                    sync_first(active);
                }
            }
        }
        __syncthreads();
    }

    // The k (at most kFewLargest) largest of the n elements at `values`: sorted, they are at items() in the
    // first block, as keys and complements of indices. False, for every block, where the row is such that it
    // takes select() to find them.
    //
    // Neighbouring threads form kGroups groups. The k-th largest of the groups' own largest elements is not
    // above the k-th largest of all, so what is not below it has all that is wanted, and hardly more.
    template <class T>
    __device__ __forceinline__ bool few_largest(const T* values, std::int32_t n, int k) {
        static_assert(2 * kFewLargest <= kGroups && kGroups * 4 == kSelectThreads);
        const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
        const auto higher = [](std::uint32_t a, std::uint32_t b) { return a > b ? a : b; };
        if (thread == 0) shared_.gathered = 0;
        team_arrive();  // a block may write to others once they run
        float largest = -INFINITY;
        bool any = false;
        each_dealt(values, n, [&](const auto& piece, std::int32_t) {
            asm("max.NaN.f32 %0, %0, %1;" : "+f"(largest) : "f"(largest_of(piece)));
            any = true;
        });
        std::uint32_t key = any ? order_key(largest) : 0u;
        const int lanes = 4 * static_cast<int>(blocks);  // of a group
        for (int step = lanes / 2; step > 0; step /= 2) {
            key = higher(key, __shfl_xor_sync(0xffffffffu, key, step));
        }
        team_wait();
        const int group = (static_cast<int>(rank) * kSelectThreads + thread) / lanes, to = lane % lanes;
        if (to < static_cast<int>(blocks)) of_team(shared_.low, static_cast<std::uint32_t>(to))[group] = key;
        team_sync();

        // Four threads a group count how many are larger, and how many are not smaller.
        const int part = thread % 4;
        const std::uint32_t own = shared_.low[thread / 4];
        std::uint32_t larger = 0, not_smaller = 0;
#pragma unroll 4
        for (int i = 0; i < kGroups / 16; ++i) {
            const int at =
                part * (kGroups / 16) + (i + 2 * part) % (kGroups / 16);  // in four other banks each
            const auto four = reinterpret_cast<const Vector<std::uint32_t, 4>*>(shared_.low)[at];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                larger += four.values[e] > own ? 1 : 0;
                not_smaller += four.values[e] >= own ? 1 : 0;
            }
        }
        std::uint32_t both = larger << 16 | not_smaller;
#pragma unroll
        for (int step = 1; step < 4; step *= 2) both += __shfl_xor_sync(0xffffffffu, both, step);
        const auto wanted = static_cast<std::uint32_t>(k);
        if (both >> 16 < wanted && wanted <= (both & 0xffff))
            shared_.found[0] = own;  // equals write the same
        __syncthreads();
        const auto limit = static_cast<std::uint32_t>(shared_.found[0]);

        std::uint64_t* list = of_team(items() + kRoom, 0);
        std::uint32_t* gathered = of_team(&shared_.gathered, 0);
        each_dealt(values, n, [&](const auto& piece, std::int32_t first) {
            if (order_key(largest_of(piece)) < limit) return;  // most
#pragma unroll
            for (int e = 0; e < static_cast<int>(sizeof(piece) / sizeof(T)); ++e) {
                const std::uint32_t of_value = order_key(convert<float>(piece.values[e]));
                if (of_value < limit) continue;
                const std::uint32_t place = atomicAdd(gathered, 1u);
                if (place < kRoom)
                    list[place] = std::uint64_t{of_value} << 32 | ~static_cast<std::uint32_t>(first + e);
            }
        });
        team_sync();
        const std::uint32_t count = *gathered;
        if (count > kRoom) {
            team_sync();  // others may still read
            return false;
        }
        if (rank == 0) rank_items(list, static_cast<int>(count), k);
        return true;
    }

   private:
    static constexpr int kGroups = 256;
    static constexpr int kRoom = kSelectItems / 2;  // of few_largest's items, behind what it finds

    template <class T, int N>
    __device__ __forceinline__ static float largest_of(const Vector<T, N>& piece) {
        float most = convert<float>(piece.values[0]);
#pragma unroll
        for (int e = 1; e < N; ++e) {
            asm("max.NaN.f32 %0, %0, %1;" : "+f"(most) : "f"(convert<float>(piece.values[e])));
        }
        return most;
    }

    // Calls take(piece, first) for the pieces that this thread gets of a row that is dealt out to all of the
    // cluster: neighbours from `first` on, 16 bytes where these are aligned.
    template <class T, class Take>
    __device__ __forceinline__ void each_dealt(const T* values, std::int32_t n, Take take) const {
        constexpr int kChunk = 16 / sizeof(T), kAhead = sizeof(T) == 4 ? 5 : 3;
        const std::int32_t first = static_cast<std::int32_t>(rank) * kSelectThreads +
                                   static_cast<std::int32_t>(threadIdx.x),
                           threads = static_cast<std::int32_t>(blocks) * kSelectThreads;
        const bool aligned = reinterpret_cast<std::uintptr_t>(values) % 16 == 0;
        const std::int32_t chunks = aligned ? n / kChunk : 0;
        for (std::int32_t c0 = first; c0 < chunks; c0 += threads * kAhead) {
            // As words, and 0 where there is none: else what was read the round before lives on, and 16-bit
            // elements take a register each.
            uint4 ahead[kAhead];
#pragma unroll
            for (int u = 0; u < kAhead; ++u) {
                const std::int32_t c = c0 + threads * u;
                ahead[u] = c < chunks ? reinterpret_cast<const uint4*>(values)[c] : uint4{};
            }
#pragma unroll
            for (int u = 0; u < kAhead; ++u) {
                const std::int32_t c = c0 + threads * u;
                if (c >= chunks) break;
                take(detail::bit_cast<Vector<T, kChunk>>(ahead[u]), c * kChunk);
            }
        }
#pragma unroll 4
        for (std::int32_t i = chunks * kChunk + first; i < n; i += threads) take(Vector<T, 1>{values[i]}, i);
    }

    // Puts those of `count` different items that are among the k largest to items(), in order: four threads
    // an item count how many are larger.
    __device__ __forceinline__ void rank_items(const std::uint64_t* list, int count, int k) {
        const int part = static_cast<int>(threadIdx.x) % 4;
        for (int base = 0; base < count; base += kSelectThreads / 4) {
            const int at = base + static_cast<int>(threadIdx.x) / 4;
            const std::uint64_t own = at < count ? list[at] : 0;
            int larger = 0;
#pragma unroll 8
            for (int other = part; other < count; other += 4) larger += list[other] > own ? 1 : 0;
#pragma unroll
            for (int step = 1; step < 4; step *= 2) larger += __shfl_xor_sync(0xffffffffu, larger, step);
            if (part == 0 && at < count && larger < k) items()[larger] = own;
        }
        __syncthreads();
    }

    __device__ __forceinline__ void add(std::uint32_t bin, std::uint64_t amount) {
        const auto low = static_cast<std::uint32_t>(amount);
        std::uint32_t high = static_cast<std::uint32_t>(amount >> 32);
        if (amount == 0) return;
        const std::uint32_t before = atomicAdd(&shared_.low[bin], low);
        high += before + low < before ? 1 : 0;
        if (high != 0) atomicAdd(&shared_.high[bin], high);
    }

    // The bin where the boundary lies, to shared_.found[0]. fill(add) counts; `all`: what it counts is the
    // total.
    template <class Fill, class Goal>
    __device__ __forceinline__ void find_bin(Fill fill, Goal goal, bool all, Boundary& boundary) {
        for (int bin = threadIdx.x; bin < kSelectBins; bin += kSelectThreads)
            shared_.low[bin] = shared_.high[bin] = 0;
        __syncthreads();
        fill([&](int bin, std::uint64_t amount) { add(bin, amount); });
        team_sync();

        // This block adds up its share of the bins, the highest of all in the highest rank.
        const int share = kSelectBins / static_cast<int>(blocks), first = share * static_cast<int>(rank);
        std::uint64_t mine = 0;
        for (int bin = threadIdx.x; bin < share; bin += kSelectThreads) {
            std::uint64_t sum = 0;
            for (std::uint32_t other = 0; other < blocks; ++other) {
                sum += static_cast<std::uint64_t>(*of_team(&shared_.high[first + bin], other)) << 32;
                sum += *of_team(&shared_.low[first + bin], other);
            }
            set_amount(first + bin, sum);  // which no other block reads
            mine += sum;
        }
        std::uint64_t total;
        const std::uint64_t lower = sum_of_blocks_before(warp_sum(mine), total);
        if (all) boundary.goal = goal(total);
        // Two bins a thread, the highest first.
        const int top = first + share - 1 - 2 * static_cast<int>(threadIdx.x);
        const std::uint64_t amounts[2] = {top >= first ? amount_of(top) : 0,
                                          top - 1 >= first ? amount_of(top - 1) : 0};
        const std::uint64_t both = amounts[0] + amounts[1], of_warp = warp_sum(both);
        __syncthreads();  // what sum() left is read
        if (threadIdx.x % 32 == 0) shared_.of_warp[threadIdx.x / 32] = of_warp;
        __syncthreads();
        const std::uint64_t of_warps = shared_.of_warp[threadIdx.x % 32];
        const std::uint64_t of_share = warp_sum(of_warps);
        std::uint64_t above = boundary.above + (total - lower - of_share) + warp_before(both) +
                              __shfl_sync(0xffffffffu, warp_before(of_warps), threadIdx.x / 32);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (above < boundary.goal && boundary.goal <= above + amounts[i]) {
                tell(static_cast<std::uint64_t>(top - i), above);
            }
            above += amounts[i];
        }
        team_sync();
        boundary.above = shared_.found[1];
    }

    // The boundary among the elements of a bin, of which those above amount to boundary.above. False where
    // they are too many.
    template <class T, class Amount>
    __device__ __forceinline__ bool among(const Row<T>& row, const Spread& spread, int bin, Amount amount,
                                          std::uint32_t extra_key, std::uint64_t extra, Boundary& boundary) {
        clear_items();
        row.each_once([&](float value) {
            if (spread.bin(value) != bin) return;
            const std::uint32_t key = order_key(value);
            if (amount(value, key) != 0) gather(std::uint64_t{key} << 32);
        });
        if (rank == 0 && threadIdx.x == 0 && extra != 0 && spread.bin(key_value(extra_key)) == bin) {
            gather(std::uint64_t{extra_key} << 32 | 1);
        }
        team_sync();
        const std::uint32_t count = *of_team(&shared_.gathered, 0);
        if (count > kSelectItems) {
            team_sync();  // before anyone writes what others still read
            return false;
        }
        if (rank == 0) {
            sort_items(static_cast<int>(count));
            const auto amount_at = [&](std::uint32_t i) -> std::uint64_t {
                if (i >= count) return 0;
                const auto key = static_cast<std::uint32_t>(items()[i] >> 32);
                return (items()[i] & 1) != 0 ? extra : amount(key_value(key), key);
            };
            const std::uint32_t first = 2 * threadIdx.x;
            const std::uint64_t amounts[2] = {amount_at(first), amount_at(first + 1)};
            const std::uint64_t both = amounts[0] + amounts[1];
            const std::uint64_t of_warp = warp_sum(both);
            if (threadIdx.x % 32 == 0) shared_.of_warp[threadIdx.x / 32] = of_warp;
            __syncthreads();
            std::uint64_t before =
                boundary.above + warp_before(both) +
                __shfl_sync(0xffffffffu, warp_before(shared_.of_warp[threadIdx.x % 32]), threadIdx.x / 32);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                if (before < boundary.goal && boundary.goal <= before + amounts[i]) {
                    const auto key = static_cast<std::uint32_t>(items()[first + i] >> 32);
                    // Of equal keys, the amounts before the first of them.
                    std::uint32_t at = first + i;
                    std::uint64_t above = before;
                    while (at > 0 && static_cast<std::uint32_t>(items()[at - 1] >> 32) == key) {
                        above -= amount_at(--at);
                    }
                    tell(key, above);
                }
                before += amounts[i];
            }
        }
        team_sync();
        boundary.key = static_cast<std::uint32_t>(shared_.found[0]);
        boundary.above = shared_.found[1];
        return true;
    }

    __device__ __forceinline__ std::uint64_t amount_of(int bin) const {
        return std::uint64_t{shared_.high[bin]} << 32 | shared_.low[bin];
    }
    __device__ __forceinline__ void set_amount(int bin, std::uint64_t amount) {
        shared_.low[bin] = static_cast<std::uint32_t>(amount);
        shared_.high[bin] = static_cast<std::uint32_t>(amount >> 32);
    }
    __device__ __forceinline__ std::uint64_t sum_of_blocks_before(std::uint64_t of_warp,
                                                                  std::uint64_t& total) {
        const std::uint64_t before = sum(of_warp, total);
        return before -
               __shfl_sync(0xffffffffu, warp_before(shared_.of_warp[threadIdx.x % 32]), threadIdx.x / 32);
    }

    // What the blocks exchanged, each in the lane of its rank; 0 in the others. The next exchange is
    // elsewhere.
    __device__ __forceinline__ std::uint64_t of_blocks() {
        const std::uint32_t lane = threadIdx.x % 32;
        const std::uint64_t value = lane < blocks ? *of_team(&shared_.of_block[parity_], lane) : 0;
        parity_ ^= 1;
        return value;
    }
    // For every block, from one thread.
    __device__ __forceinline__ void tell(std::uint64_t found, std::uint64_t above) {
#pragma unroll 1
        for (std::uint32_t other = 0; other < blocks; ++other) {
            of_team(shared_.found, other)[0] = found;
            of_team(shared_.found, other)[1] = above;
        }
    }

    SelectShared& shared_;
    int parity_ = 0;
};

}  // namespace

}  // namespace gpk::kernels
