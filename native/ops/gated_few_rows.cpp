#include "ops/gated_few_rows.hpp"

#include <algorithm>

#include "kernels/gemm/gemv_gated.hpp"
#include "ops/matmul_gemv.hpp"
#include "ops/sm90.hpp"
#include "runtime/device.hpp"

namespace gpk::ops {

namespace {

constexpr std::int64_t kUnit = 32, kChunk = 64, kTurn = 8;        // of k; of k; gates that their ups follow
constexpr std::int64_t kSharedBytes = 227 * 1024;                 // of a block, SM 90
constexpr std::int64_t kMaxStride = (std::int64_t{1} << 40) - 1;  // in bytes, of a TensorMap

constexpr std::uint32_t kPrefetched = 3;  // stages

struct Row {
    const Kernel& (*kernel)();
    DType dtype;
    int most_rows;
    int held_units;  // as in GemmVariant
};
template <auto id>
const Kernel& kernel() {
    return gemm_kernel(id);
}
#define GPK_ROWS(type)                                                                  \
    {kernel<GemvGatedKernel::gemv_gated_##type##_held4_tiles1>, DType::type, 8, 4},     \
        {kernel<GemvGatedKernel::gemv_gated_##type##_held8_tiles1>, DType::type, 8, 8}, \
        {kernel<GemvGatedKernel::gemv_gated_##type##_tiles1>, DType::type, 8, 0},       \
        {kernel<GemvGatedKernel::gemv_gated_##type##_tiles2>, DType::type, 16, 0},
constexpr Row kRows[] = {GPK_ROWS(bfloat16) GPK_ROWS(float16)};
#undef GPK_ROWS

// Stages of the ring that there is room for beside x.
std::int64_t beside(const Row& row, const GroupedProblem& p) {
    return row.held_units > 0 ? 0 : bulk_beside_bytes(p.rows, p.k / kUnit, 1, 0);
}
std::int64_t stages(const Row& row, const GroupedProblem& p) {
    const std::int64_t room = kSharedBytes - kBulkStaticBytes - beside(row, p);
    constexpr std::int64_t kEnough = 5;
    return std::min(room / kBulkPlainStageBytes, kEnough);
}

bool can_run(const Row& row, const GroupedProblem& p, DType dtype, int sm) {
    const auto begins = [](const void* start) { return reinterpret_cast<std::uintptr_t>(start) % 16 == 0; };
    return row.dtype == dtype && p.gated != 0 && p.offsets == nullptr && p.rows <= row.most_rows &&
           runs_sm90(row.kernel(), sm) && p.k % kChunk == 0 && p.n % kTurn == 0 && begins(p.a) &&
           begins(p.weight) && begins(p.norm.weight) && (p.rows == 1 || p.a_row % 8 == 0) &&
           4 * p.k <= kMaxStride / p.n && stages(row, p) >= kLeastBulkStages &&
           (p.norm.weight == nullptr || row.held_units > 0) &&
           (row.held_units == 0 || p.k <= row.held_units * kUnit * kBulkWarps);
}

GemvGatedParams params_of(Stream& stream, const GroupedProblem& p, DType dtype, std::int64_t blocks) {
    const auto k = static_cast<std::uint64_t>(p.k), n = static_cast<std::uint64_t>(p.n), row_bytes = 2 * k;
    const TensorMapDef def{.address = reinterpret_cast<DevicePtr>(p.weight),
                           .dtype = dtype,
                           .rank = 5,
                           .extents = {kChunk, k / kChunk, kTurn, 2, n / kTurn},
                           .strides_bytes = {2 * kChunk, row_bytes, n * row_bytes, kTurn * row_bytes},
                           .box = {kChunk, kBulkSteps * kUnit / kChunk, kTurn, 2, 1}};
    GemvGatedParams params{.weights = stream.device().driver().tensor_map(def),
                           .problem = {},
                           .glu = p.glu,
                           .columns = kBulkColumns,
                           .prefetched = kPrefetched,
                           .turns = p.weight_settled ? bulk_turns(stream, p.n / kTurn, blocks) : nullptr};
    params.problem.norm = p.norm;
    params.problem.b_settled = p.weight_settled;
    params.problem.a = p.a, params.problem.b = p.weight, params.problem.c = p.c;
    params.problem.m = p.rows, params.problem.n = p.n, params.problem.k = p.k;
    params.problem.a_row = p.rows > 1 ? p.a_row : 0, params.problem.a_col = 1;
    params.problem.b_row = 1, params.problem.b_col = p.k;
    params.problem.c_row = p.n, params.problem.c_col = 1;
    params.problem.batches = 1;
    return params;
}

}  // namespace

bool launch_gated_few_rows(Stream& stream, const GroupedProblem& p, DType dtype, const Cost& cost) {
    Device& device = stream.device();
    for (const Row& row : kRows) {
        if (!can_run(row, p, dtype, device.info().sm)) continue;
        const std::int64_t blocks =
            std::min<std::int64_t>(p.n / kTurn, std::max(stream.multiprocessors(), 1));
        const LaunchConfig config{.grid = {static_cast<std::uint32_t>(blocks)},
                                  .block = {kBulkThreads},
                                  .shared_bytes = static_cast<std::uint32_t>(
                                      stages(row, p) * kBulkPlainStageBytes + beside(row, p))};
        device.launcher().launch(stream, row.kernel(), config, params_of(stream, p, dtype, blocks), cost);
        return true;
    }
    return false;
}

}  // namespace gpk::ops
