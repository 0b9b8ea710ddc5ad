#include "ops/embedding.hpp"

#include "base/error.hpp"
#include "kernels/embedding/embedding.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"

namespace gpk::ops {

Array embedding(const Array& table, const Array& ids, const Array* out) {
    constexpr const char* kCall = "embedding";
    if (table.rank() != 2) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "table",
                                       .expected = "two dimensions, (rows, n)",
                                       .got = to_string(table.shape())});
    }
    if (itemsize(table.dtype()) % 2 != 0) {
        throw error(ErrorKind::type, {.call = kCall,
                                      .argument = "table",
                                      .expected = "elements of at least 16 bits",
                                      .got = std::string(name(table.dtype()))});
    }
    if (ids.dtype() != DType::int32 && ids.dtype() != DType::int64) {
        throw error(ErrorKind::type, {.call = kCall,
                                      .argument = "ids",
                                      .expected = "int32 or int64",
                                      .got = std::string(name(ids.dtype()))});
    }
    Device& device = common_device(kCall, {&table, &ids});
    const Array rows = contiguous(table), tokens = contiguous(ids);
    Dims shape = ids.shape();
    shape.push_back(table.shape()[1]);
    Array y = prepare_output(kCall, device, shape, table.dtype(), out);
    require_contiguous(kCall, "out", y);
    require_no_overlap(kCall, y, {&rows});
    if (y.size() == 0) return y;

    const std::int64_t row_bytes = table.shape()[1] * static_cast<std::int64_t>(itemsize(table.dtype()));
    const bool wide = row_bytes % 16 == 0 && aligned16(rows) && aligned16(y);
    const kernels::EmbeddingParams params{
        .table = rows.as<>(),
        .ids = tokens.as<>(),
        .out = y.as<>(),
        .rows = table.shape()[0],
        .count = tokens.size(),
        .row_bytes = row_bytes,
        .ids_are_int64 = ids.dtype() == DType::int64,
        .unit = wide ? 16 : 2,
    };
    launch(kernels::embedding(), grid_for(static_cast<std::int64_t>(y.nbytes()) / params.unit, 128), params,
           {.bytes = 2 * static_cast<double>(y.nbytes())}, {&rows, &tokens}, {&y});
    return y;
}

}  // namespace gpk::ops
