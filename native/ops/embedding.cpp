#include "ops/embedding.hpp"

#include "base/error.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"
#include "ops/take_rows.hpp"

namespace gpk::ops {

Array embedding(const Array& table, const Array& ids, const Array* out) {
    constexpr const char* kCall = "embedding";
    if (table.rank() != 2) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "table",
                                       .expected = "two dimensions, (rows, n)",
                                       .got = to_string(table.shape())});
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
    take_rows(y, rows, tokens, 1, table.shape()[0],
              table.shape()[1] * static_cast<std::int64_t>(itemsize(table.dtype())), false);
    return y;
}

}  // namespace gpk::ops
