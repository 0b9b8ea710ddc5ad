// How a consumer's sums become c.
#pragma once

#include "kernels/elementwise/unary_fast.cuh"
#include "kernels/gemm/activate.hpp"
#include "kernels/gemm/gemm_wgmma_tile.cuh"

namespace gpk::kernels {

template <class T>
__device__ __forceinline__ std::uint32_t pack(float first, float second) {
    const Vector<T, 2> both = {convert<T>(first), convert<T>(second)};
    return *reinterpret_cast<const std::uint32_t*>(&both);
}

__device__ __forceinline__ void store_matrices(std::uint32_t to, std::uint32_t a, std::uint32_t b,
                                               std::uint32_t c, std::uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

// Two of them: the last eight columns.
__device__ __forceinline__ void store_matrices(std::uint32_t to, std::uint32_t a, std::uint32_t b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(a), "r"(b)
                 : "memory");
}

// Each matrix with its columns as rows.
__device__ __forceinline__ void store_turned_matrices(std::uint32_t to, std::uint32_t a, std::uint32_t b,
                                                      std::uint32_t c, std::uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a),
                 "r"(b), "r"(c), "r"(d)
                 : "memory");
}

__device__ __forceinline__ void store_turned_matrices(std::uint32_t to, std::uint32_t a, std::uint32_t b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(a), "r"(b)
                 : "memory");
}

// One consumer's part of c, from (row, column) on.
struct Part {
    int consumer, row, column;
    unsigned char* staging;  // of this warp
};

// What follows the sums but activations, in the places that wgmma leaves them; the order of the steps is
// that of finish_row(). Made before the sums are: what it reads is there in time.
template <class W>
struct Finish {
    const GemmProblem& g;
    const GemmEpilogue& e;
    int row, last;  // of a thread; column of c
    bool needed;
    float rows[W::kParts][2];  // of a thread in each 64
    float columns = 1;         // the scale of all, or the first

    __device__ __forceinline__ Finish(const GemmProblem& p, int row_)
        : g(p), e(p.epilogue), row(row_), last(static_cast<int>(p.n) - 1), needed(changes(p.epilogue)) {
#pragma unroll
        for (int i = 0; i < W::kParts; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                rows[i][half] = 1;
                if (!needed || e.row_scale == nullptr) continue;
                const int line = min(row + i * 64 + half * 8, static_cast<int>(p.m) - 1);
                rows[i][half] = e.row_scale[line * e.row_scale_step];
            }
        }
        if (needed && e.column_scale != nullptr) columns = *e.column_scale;
    }
    // Of part i, from the thread's column x on. All that is read is on its way before the first is used.
    template <int kColumns>
    __device__ __forceinline__ void apply(float (&d)[kColumns / 2], int i, int x) const {
        float scales[kColumns / 4], biases[kColumns / 4] = {};
#pragma unroll
        for (int j = 0; j < kColumns / 4; ++j) scales[j] = columns;
        if (e.column_scale != nullptr && e.column_scale_step != 0) {
#pragma unroll
            for (int j = 0; j < kColumns / 4; ++j)
                scales[j] = e.column_scale[min(x + j / 2 * 8 + j % 2, last) * e.column_scale_step];
        }
        if (e.bias != nullptr) {
            const auto* bias = static_cast<const typename W::Out*>(e.bias);
#pragma unroll
            for (int j = 0; j < kColumns / 4; ++j)
                biases[j] = convert<float>(bias[min(x + j / 2 * 8 + j % 2, last)]);
        }
#pragma unroll
        for (int j = 0; j < kColumns / 2; ++j) {
            const int column = j / 4 * 2 + j % 2;
            d[j] = d[j] * e.scale * rows[i][j / 2 % 2] * scales[column] + biases[column];
        }
        if (e.residual == nullptr) return;
        using Two = Vector<typename W::Out, 2>;
        Two add[kColumns / 4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const std::int64_t line = min(row + i * 64 + half * 8, static_cast<int>(g.m) - 1);
            const auto* from = static_cast<const typename W::Out*>(e.residual) + line * e.residual_row;
#pragma unroll
            for (int j = half; j < kColumns / 4; j += 2)
                add[j] = *reinterpret_cast<const Two*>(from + min(x + j / 2 * 8, last - 1));
        }
#pragma unroll
        for (int j = 0; j < kColumns / 2; ++j) d[j] += convert<float>(add[j / 2].values[j % 2]);
    }
};

// Asks the L2 cache for what a residual will add to a consumer's part, long before it is needed.
template <class W>
__device__ __forceinline__ void ask_for_residual(const GemmProblem& p, int row, int column) {
    if (p.epilogue.residual == nullptr || p.epilogue.residual_col != 1) return;
    constexpr int kSize = sizeof(typename W::Out), kLines = (W::kPartColumns * kSize + 127) / 128;
    for (int id = threadIdx.x % kWarpgroup; id < W::kPartRows * kLines; id += kWarpgroup) {
        const std::int64_t y = row + id / kLines, x = column + id % kLines * (128 / kSize);
        if (y >= p.m || x >= p.n) continue;
        const auto* at =
            static_cast<const typename W::Out*>(p.epilogue.residual) + y * p.epilogue.residual_row + x;
        asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
    }
}

// Those of a box that no other tile makes, from registers: this thread's, from (row, column) on.
template <class W, int kColumns>
__device__ __forceinline__ void store_own(const GemmWgmmaParams& p, const float (&d)[kColumns / 2], int row,
                                          int column, const Place& at) {
    using Out = typename W::Out;
    const GemmProblem& g = p.problem;
    Out* c = static_cast<Out*>(g.c) + at.batch[0] * batch_stride(g.c_batch, g.batch_rank, 0) +
             at.batch[1] * batch_stride(g.c_batch, g.batch_rank, 1);
#pragma unroll
    for (int j = 0; j < kColumns / 2; j += 2) {
        const int y = row + j / 2 % 2 * 8, x = column + j / 4 * 8;
        if (y < at.own_row || y >= g.m || x < at.own_column || x >= g.n) continue;
        *reinterpret_cast<Vector<Out, 2>*>(c + y * g.c_row + x) = {convert<Out>(d[j]),
                                                                   convert<Out>(d[j + 1])};
    }
}

// A warp's 16 rows of up to 128 bytes of columns: through shared memory to the copy engine.
template <class W, bool kFinish, int kColumns>
__device__ __forceinline__ void store_box(const GemmWgmmaParams& p, unsigned char* box,
                                          const typename W::Sum* sums, const Finish<W>& finish, int part,
                                          int row, int column, const Place& at) {
    using Out = typename W::Out;
    constexpr int kSize = sizeof(Out), kRowBytes = kColumns * kSize;
    constexpr bool kSwizzled = kRowBytes == 128;
    const int lane = threadIdx.x % 32;
    typename W::Sum d[kColumns / 2];
#pragma unroll
    for (int j = 0; j < kColumns / 2; ++j) d[j] = sums[j];
    if constexpr (kFinish) {
        finish.template apply<kColumns>(d, part, column + lane % 4 * 2);
        // What another tile makes too must not be added to twice, where a residual is the result itself.
        if (finish.e.residual != nullptr && (row < at.own_row || column < at.own_column)) {
            return store_own<W, kColumns>(p, d, row + lane / 4, column + lane % 4 * 2, at);
        }
    }
    if (lane == 0) tma_store_wait<W::kBoxes - 1>();  // what was in the box has been read
    __syncwarp();
    const auto piece = [&](int line, int index) {  // of 16 bytes
        return box + line * kRowBytes + (kSwizzled ? index ^ line % 8 : index) * 16;
    };
    if constexpr (kSize == 2) {
#pragma unroll
        for (int j = 0; j + 8 <= kColumns / 2; j += 8) {
            store_matrices(shared_address(piece(lane % 16, j / 4 + lane / 16)), pack<Out>(d[j], d[j + 1]),
                           pack<Out>(d[j + 2], d[j + 3]), pack<Out>(d[j + 4], d[j + 5]),
                           pack<Out>(d[j + 6], d[j + 7]));
        }
        if constexpr (kColumns % 16 == 8) {
            constexpr int kLast = kColumns / 2 - 4;
            store_matrices(shared_address(piece(lane % 16, kLast / 4)), pack<Out>(d[kLast], d[kLast + 1]),
                           pack<Out>(d[kLast + 2], d[kLast + 3]));
        }
    } else {
#pragma unroll
        for (int j = 0; j < kColumns / 2; j += 2) {
            unsigned char* to = piece(j % 4 * 4 + lane / 4, j / 4 * 2 + lane % 4 / 2) + lane % 2 * 8;
            *reinterpret_cast<Vector<Out, 2>*>(to) = {d[j], d[j + 1]};
        }
    }
    fence_async_shared();
    __syncwarp();
    if (lane == 0) {
        tma_store(kSwizzled ? p.c : p.c_rest, box, column, row, at.batch[0], at.batch[1]);
        tma_store_commit();
    }
}

// Each warp by itself, so that none waits for another. Without an epilogue by code of its own: to jump over
// what finishes each box took longer, as instructions came late.
template <class W, bool kFinish>
__device__ __forceinline__ void store_by_map(const GemmWgmmaParams& p, const Part& part, const Place& at,
                                             const Finish<W>& finish,
                                             const typename W::Sum (&sums)[W::kParts][W::kOwnSums]) {
    constexpr int kWhole = 128 / static_cast<int>(sizeof(typename W::Out)), kRest = W::kOwnColumns % kWhole;
    const int warp = threadIdx.x % kWarpgroup / 32, row = part.row + warp * kWgmmaStoreRows;
    int turn = 0;
#pragma unroll
    for (int i = 0; i < W::kParts; ++i) {
#pragma unroll
        for (int first = 0; first + kWhole <= W::kOwnColumns; first += kWhole, ++turn) {
            store_box<W, kFinish, kWhole>(p, part.staging + turn % W::kBoxes * kWgmmaStoreBytes,
                                          sums[i] + first / 2, finish, i, row + i * 64, part.column + first,
                                          at);
        }
        if constexpr (kRest > 0) {
            constexpr int kFirst = W::kOwnColumns - kRest;
            store_box<W, kFinish, kRest>(p, part.staging + turn++ % W::kBoxes * kWgmmaStoreBytes,
                                         sums[i] + kFirst / 2, finish, i, row + i * 64, part.column + kFirst,
                                         at);
        }
    }
}

// A warp's 16 rows as lines of 32 bytes, one a column: for c that is contiguous along m.
template <class W, int kColumns>
__device__ __forceinline__ void store_turned_box(const TensorMap& map, unsigned char* box, const float* d,
                                                 int row, int column, const Place& at) {
    using Out = typename W::Out;
    const int lane = threadIdx.x % 32;
    if (lane == 0) tma_store_wait<W::kBoxes - 1>();  // what was in the box has been read
    __syncwarp();
    unsigned char* line = box + (lane / 16 * 8 + lane % 8) * 32 + lane / 8 % 2 * 16;
#pragma unroll
    for (int j = 0; j + 8 <= kColumns / 2; j += 8) {
        store_turned_matrices(shared_address(line + j * 2 * 32), pack<Out>(d[j], d[j + 1]),
                              pack<Out>(d[j + 2], d[j + 3]), pack<Out>(d[j + 4], d[j + 5]),
                              pack<Out>(d[j + 6], d[j + 7]));
    }
    if constexpr (kColumns % 16 == 8) {
        constexpr int kLast = kColumns / 2 - 4;
        store_turned_matrices(shared_address(box + (kLast * 2 + lane % 8) * 32 + lane / 8 % 2 * 16),
                              pack<Out>(d[kLast], d[kLast + 1]), pack<Out>(d[kLast + 2], d[kLast + 3]));
    }
    fence_async_shared();
    __syncwarp();
    if (lane == 0) {
        tma_store(map, box, row, column, at.batch[0], at.batch[1]);
        tma_store_commit();
    }
}
template <class W>
__device__ __forceinline__ void store_turned(const GemmWgmmaParams& p, const Part& part, const Place& at,
                                             const float (&sums)[W::kParts][W::kOwnSums]) {
    constexpr int kWhole = 64, kRest = W::kOwnColumns % kWhole;
    const int warp = threadIdx.x % kWarpgroup / 32, row = part.row + warp * kWgmmaStoreRows;
    int turn = 0;
#pragma unroll
    for (int i = 0; i < W::kParts; ++i) {
#pragma unroll
        for (int first = 0; first + kWhole <= W::kOwnColumns; first += kWhole, ++turn) {
            store_turned_box<W, kWhole>(p.c, part.staging + turn % W::kBoxes * kWgmmaStoreBytes,
                                        sums[i] + first / 2, row + i * 64, part.column + first, at);
        }
        if constexpr (kRest > 0) {
            constexpr int kFirst = W::kOwnColumns - kRest;
            store_turned_box<W, kRest>(p.c_rest, part.staging + turn++ % W::kBoxes * kWgmmaStoreBytes,
                                       sums[i] + kFirst / 2, row + i * 64, part.column + kFirst, at);
        }
    }
}

// Up to 8 elements of a row, in one access where they are in a row and aligned.
template <class T>
__device__ __forceinline__ void load_row(float (&to)[8], const T* from, std::int64_t step, int count) {
    if (count == 8 && step == 1 && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
        constexpr int kWide = 16 / sizeof(T);
#pragma unroll
        for (int i = 0; i < 8; i += kWide) {
            const auto wide = *reinterpret_cast<const Vector<T, kWide>*>(from + i);
#pragma unroll
            for (int j = 0; j < kWide; ++j) to[i + j] = convert<float>(wide.values[j]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) to[i] = i < count ? convert<float>(from[i * step]) : 0;
    }
}
template <class T, class Sum>
__device__ __forceinline__ void store_row(T* to, std::int64_t step, const Sum (&from)[8], int first,
                                          int count) {
    if (first <= 0 && count == 8 && step == 1 && reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
        constexpr int kWide = 16 / sizeof(T);
#pragma unroll
        for (int i = 0; i < 8; i += kWide) {
            Vector<T, kWide> wide;
#pragma unroll
            for (int j = 0; j < kWide; ++j) wide.values[j] = convert<T>(from[i + j]);
            *reinterpret_cast<Vector<T, kWide>*>(to + i) = wide;
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (i >= first && i < count) to[i * step] = convert<T>(from[i]);
        }
    }
}

// As activate(), of values that will be rounded to T.
template <class T>
__device__ __forceinline__ void activate_row(GemmActivation activation, float (&v)[8]) {
    const auto apply = [&](auto function) {
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = function(v[j]);
    };
    if constexpr (sizeof(T) == 2) {
        switch (activation) {
            case GemmActivation::none: break;
            case GemmActivation::relu: apply(unary_functors::relu::apply<float>); break;
            case GemmActivation::gelu: apply(fast::gelu); break;
            case GemmActivation::gelu_tanh: apply(fast::gelu_tanh); break;
            case GemmActivation::silu: apply(fast::silu); break;
        }
    } else {
        apply([&](float x) { return activate(activation, x); });
    }
}

// 8 elements of a row of a residual, on their way.
template <class T>
struct Eight {
    static constexpr int kWide = 16 / sizeof(T);
    Vector<T, kWide> parts[8 / kWide];
    __device__ __forceinline__ void load(const T* from) {
#pragma unroll
        for (int i = 0; i < 8 / kWide; ++i) parts[i] = reinterpret_cast<const Vector<T, kWide>*>(from)[i];
    }
    __device__ __forceinline__ void add_to(float (&v)[8]) const {
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] += convert<float>(parts[j / kWide].values[j % kWide]);
    }
};

// 8 sums of row y, from column x on, of which `count` exist; without the residual.
template <class T>
__device__ __forceinline__ void finish_row(const GemmEpilogue& e, float (&v)[8], std::int64_t y,
                                           std::int64_t x, int count) {
    float add[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] *= e.scale;
    if (e.row_scale != nullptr) {
        const float scale = e.row_scale[y * e.row_scale_step];
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] *= scale;
    }
    if (e.column_scale != nullptr) {
        load_row(add, e.column_scale + x * e.column_scale_step, e.column_scale_step, count);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] *= add[j];
    }
    if (e.bias != nullptr) {
        load_row(add, static_cast<const T*>(e.bias) + x, 1, count);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] += add[j];
    }
    if (e.activation != GemmActivation::none) activate_row<T>(e.activation, v);
}

// Any c, and any epilogue: each warp by itself, through shared memory as float32, up to 32 columns at a time,
// so that a thread has pieces of 8 elements of a row. What a residual adds to them is asked for one chunk
// ahead. `own`: the sums of kOwnColumns columns.
template <class W>
__device__ __forceinline__ void store_rows(const GemmWgmmaParams& p, const Part& part, const Place& at,
                                           const typename W::Sum (&own)[W::kParts][W::kOwnSums]) {
    using Out = typename W::Out;
    using Sum = typename W::Sum;
    constexpr int kChunk = W::kOwnColumns % 32 == 0 ? 32 : W::kOwnColumns % 16 == 0 ? 16 : 8;
    constexpr int kInPart = W::kOwnColumns / kChunk, kChunks = W::kParts * kInPart;
    constexpr int kPieces = kChunk / 8, kTurns = (16 * kPieces + 31) / 32;  // of a thread, in a chunk
    const GemmProblem& g = p.problem;
    const GemmEpilogue& e = g.epilogue;
    const int warp = threadIdx.x % kWarpgroup / 32, lane = threadIdx.x % 32;
    Out* c = static_cast<Out*>(g.c) + at.batch[0] * batch_stride(g.c_batch, g.batch_rank, 0) +
             at.batch[1] * batch_stride(g.c_batch, g.batch_rank, 1);
    // 16-byte pieces of a row of 128 bytes, permuted as the copy engine's widest swizzle does.
    unsigned char* box = part.staging;
    const auto piece = [&](int row, int index) { return box + row * 128 + (index ^ row % 8) * 16; };
    struct Line {
        int y, x;
        int first, count;  // of 8: those that exist, and that no other tile makes: a residual may be c itself
        bool any;
    };
    const auto line = [&](int chunk, int turn) {
        const int id = turn * 32 + lane;
        Line l;
        l.y = part.row + chunk / kInPart * 64 + warp * 16 + id / kPieces;
        l.x = part.column + chunk % kInPart * kChunk + id % kPieces * 8;
        l.first = max(at.own_column - l.x, 0);
        l.count = min(static_cast<int>(g.n) - l.x, 8);
        l.any = l.y >= at.own_row && l.y < g.m && l.first < l.count && id < 16 * kPieces;
        return l;
    };
    const auto* residual = static_cast<const Out*>(e.residual);
    const bool wide = residual != nullptr && e.residual_col == 1 &&
                      reinterpret_cast<std::uintptr_t>(residual + part.column) % 16 == 0 &&
                      e.residual_row * sizeof(Out) % 16 == 0;
    Eight<Out> ahead[kTurns];
    const auto ask = [&](int chunk, int turn) {
        const Line l = line(chunk, turn);
        if (l.any && l.count == 8) ahead[turn].load(residual + l.y * e.residual_row + l.x);
    };
    if (W::kFinishes && wide) {
#pragma unroll
        for (int turn = 0; turn < kTurns; ++turn) ask(0, turn);
    }
#pragma unroll 1
    for (int chunk = 0; chunk < kChunks; ++chunk) {
        __syncwarp();  // what was there has been read
#pragma unroll
        for (int each = 0; each < kChunks; ++each) {  // registers have constant numbers
            if (each != chunk) continue;
#pragma unroll
            for (int j = 0; j < kPieces; ++j) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const Sum* d = own[each / kInPart] + each % kInPart * (kChunk / 2) + j * 4 + half * 2;
                    *reinterpret_cast<Vector<Sum, 2>*>(piece(half * 8 + lane / 4, j * 2 + lane % 4 / 2) +
                                                       lane % 2 * 8) = {d[0], d[1]};
                }
            }
        }
        __syncwarp();
#pragma unroll
        for (int turn = 0; turn < kTurns; ++turn) {
            const Line l = line(chunk, turn);
            const int id = turn * 32 + lane;
            if (!l.any) continue;
            Sum v[8];
#pragma unroll
            for (int j = 0; j < 8; j += 4) {
                const auto four =
                    *reinterpret_cast<const Vector<Sum, 4>*>(piece(id / kPieces, id % kPieces * 2 + j / 4));
#pragma unroll
                for (int i = 0; i < 4; ++i) v[j + i] = four.values[i];
            }
            if constexpr (W::kFinishes) {
                if (changes(e)) finish_row<Out>(e, v, l.y, l.x, l.count);
                if (wide && l.count == 8) {
                    ahead[turn].add_to(v);
                } else if (residual != nullptr) {
                    float add[8];
                    load_row(add, residual + l.y * e.residual_row + l.x * e.residual_col, e.residual_col,
                             l.count);
#pragma unroll
                    for (int j = 0; j < 8; ++j) v[j] += add[j];
                }
                if (wide && chunk + 1 < kChunks) ask(chunk + 1, turn);
            }
            store_row(c + l.y * g.c_row + l.x * g.c_col, g.c_col, v, l.first, l.count);
        }
    }
}

}  // namespace gpk::kernels
