// The kernels that can make a matrix product, what each asks for, and the choice between them.
#pragma once

#include <initializer_list>
#include <optional>
#include <span>

#include "driver/driver.hpp"
#include "kernels/gemm/gemm_wgmma.hpp"
#include "kernels/gemm/problem.hpp"
#include "ops/matmul.hpp"
#include "runtime/kernel.hpp"
#include "runtime/launcher.hpp"
#include "runtime/stream.hpp"

namespace gpk::ops {

// a, b: batch + matrices; c: batch + (m, n). Batch dimensions that follow one another in memory become
// one, and the last becomes rows of one matrix where b has only one: x (batch, tokens, k) @ w (k, n).
GemmProblem problem_of(const Array& a, const Array& b, const Array& c);

// Which dimension of an operand is contiguous: k, or the other one (m of a, n of b).
enum class GemmLayout : std::uint8_t { any, along_k, across };

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// What a block makes of c.
struct BlockPart {
    std::int64_t rows, columns;
};

// How a product of few rows of 16 bits runs (matmul_gemv.hpp).
enum class GemvForm : std::uint8_t {
    none,
    bulk_rows,      // weights contiguous along k, brought by the copy engine (SM 90)
    bulk_columns,   // weights contiguous along n, so too
    bulk_streamed,  // as bulk_rows, with x beside the weights: 8 rows that are long
    rows,           // weights contiguous along k
    columns_split,  // weights contiguous along n; blocks of a cluster share k (SM 90 and newer)
    columns,
};

constexpr bool is_bulk(GemvForm form) {
    return form == GemvForm::bulk_rows || form == GemvForm::bulk_columns || form == GemvForm::bulk_streamed;
}

// Where a product runs: of a stream, what it may use.
struct GemmTarget {
    int multiprocessors;
    int sm;  // 0: simulated, which runs every kernel's twin
};

// What a tile takes on a GPU of SM 90, measured: see wgmma_us().
struct WgmmaTimes {
    float start_us;       // of the launch
    float tile_us;        // for each tile of a multiprocessor
    float part_us;        // and each 64 of k in it
    float memory_share;   // of the time that operands and result need from memory at its rate
    float traffic_share;  // and of the time that all tiles' parts of them need from the L2 cache at its rate
};

struct GemmVariant {
    const Kernel& (*kernel)();
    DType dtype;  // of a and b; signed integers run as unsigned ones of their size
    GemmLayout a, b;
    LaunchConfig (*config)(const GemmVariant&, const GemmProblem&, int multiprocessors);
    // Of a launch of this configuration; max_m rows where a block makes all of them.
    BlockPart (*part)(const GemmVariant&, const LaunchConfig&);
    int tile = 0;             // of c, in rows and columns; 0 where a block makes whole columns
    int max_m = 0;            // 0: any
    int alignment_bytes = 1;  // of a, b, their batches, and their strides other than 1
    bool tf32 = false;        // only where the caller allows it
    GemvForm gemv = GemvForm::none;
    int held_units = 0;    // of bulk_rows: 512 elements of each row of a, all of which stay in registers
    int least_m = 0;       // fewer rows without a norm are quicker by another, unless b is settled
    float least_fill = 0;  // worth it only with blocks for so much of the multiprocessors
    std::optional<DType> result = std::nullopt;  // of c, where it is not dtype
    const WgmmaTile* wgmma = nullptr;            // of a kernel of gemm_wgmma: SM 90, with epilogue
    const WgmmaTimes* wgmma_times = nullptr;     // and what it takes
    // Beyond these the tiles of gemm_wgmma are preferred, where one can run; 0: never.
    std::int64_t most_n = 0, most_k = 0;
    bool block_scales = false;  // float8 with scales of blocks, and only that
};

// Fastest first (of those of gemm_wgmma the quickest by their times); for every dtype the last one takes any
// problem.
std::span<const GemmVariant> gemm_variants();

// Blocks along y: one a batch, where so many fit.
std::uint32_t batch_blocks(const GemmProblem& p);
// How many parts of c there are in the problem, of all its batches.
std::int64_t parts_of(const GemmProblem& p, const BlockPart& part);
// `whole` with as many blocks as this problem needs.
LaunchConfig grid_of(const GemmVariant& variant, const GemmProblem& p, const BlockPart& part,
                     const LaunchConfig& whole);
// Launches the kernel on the problem.
void launch_variant(Stream& stream, const GemmVariant& variant, const GemmProblem& p,
                    const LaunchConfig& config, const Cost& cost);

struct GemmTypes {
    DType operands, result;
    MatmulPrecision precision;
};

// The same product with the operands' roles swapped: c.T = b.T @ a.T.
GemmProblem transposed(const GemmProblem& p);

// `dtype` as the table has it.
DType gemm_dtype(DType dtype);

// Whether the variant gives the right result. (least_fill is about speed and not asked.)
bool can_run(const GemmVariant& variant, const GemmProblem& p, const GemmTypes& types, int sm);

GemmTarget target_of(Device& device);

struct GemmChoice {
    const GemmVariant* variant;
    GemmProblem problem;  // as it was, or transposed
};
// No variant where none has the types, or the epilogue that the problem asks for. Each thread remembers the
// last ones.
GemmChoice choose_gemm(const GemmProblem& p, const GemmTypes& types, const GemmTarget& target);

// Launches the choice, in slices where the stream's tenant wants that, after ordering what it reads (null
// ones aside) and writes. `beside`: what it reads beside a and b.
void launch_gemm(const GemmChoice& choice, const GemmTypes& types, const Array& a, const Array& b,
                 const Array& c, std::initializer_list<const Array*> beside = {});

// For tests and tuning: matmul on this variant only (or nothing, where it cannot run the problem here);
// `turned`: as c.T = b.T @ a.T.
std::optional<Array> matmul_with(const GemmVariant& variant, const Array& a, const Array& b,
                                 bool turned = false);

}  // namespace gpk::ops
