#include "kernels/reduce/reduce.hpp"

#include <array>

#include "base/error.hpp"
#include "kernels/reduce/reduce_host.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_reduce_sum;
extern const Image image_reduce_order;

namespace {

template <class C>
constexpr DType dtype_of() {
    if (std::is_same_v<C, double>) return DType::float64;
    if (std::is_same_v<C, float>) return DType::float32;
    constexpr bool is_signed = std::is_signed_v<C>;
    switch (sizeof(C)) {
        case 1: return is_signed ? DType::int8 : DType::uint8;
        case 2: return is_signed ? DType::int16 : DType::uint16;
        case 4: return is_signed ? DType::int32 : DType::uint32;
        default: return is_signed ? DType::int64 : DType::uint64;
    }
}

struct Entry {
    ReduceOp op;
    DType dtype, accumulator;
    Kernel kernels[kReduceWalkCount];  // by ReduceWalk
};

#define GPK_WALK(walk, symbol, ...)                                                 \
    Kernel({.name = #symbol "_" #walk,                                              \
            .image = &GPK_IMAGE,                                                    \
            .twin = kernels::twin<ReduceParams, kernels::reduce_host<__VA_ARGS__>>, \
            .waits_for_predecessor = true})
#define GPK_X(symbol, op_, dtype_, ...)                                            \
    {ReduceOp::op_,                                                                \
     DType::dtype_,                                                                \
     dtype_of<typename __VA_ARGS__::type>(),                                       \
     {GPK_WALK(rows, symbol, __VA_ARGS__), GPK_WALK(columns, symbol, __VA_ARGS__), \
      GPK_WALK(elements, symbol, __VA_ARGS__)}},
#define GPK_IMAGE image_reduce_sum
const Entry kSums[] = {GPK_REDUCE_SUM_KERNELS(GPK_X)};
#undef GPK_IMAGE
#define GPK_IMAGE image_reduce_order
const Entry kOrders[] = {GPK_REDUCE_ORDER_KERNELS(GPK_X)};
#undef GPK_IMAGE
#undef GPK_X
#undef GPK_WALK

using Table = std::array<std::array<const Entry*, kDTypeCount>, kReduceOpCount>;

Table make_table() {
    Table table = {};
    const auto at = [&](ReduceOp op, DType dtype) -> const Entry*& {
        return table[static_cast<std::size_t>(op)][static_cast<std::size_t>(dtype)];
    };
    for (const Entry& entry : kSums) at(entry.op, entry.dtype) = &entry;
    for (const Entry& entry : kOrders) at(entry.op, entry.dtype) = &entry;
    // Where the bits agree, another type's kernel.
    for (ReduceOp op : {ReduceOp::sum, ReduceOp::prod}) at(op, DType::int64) = at(op, DType::uint64);
    for (ReduceOp op : {ReduceOp::any, ReduceOp::all}) {
        at(op, DType::int8) = at(op, DType::uint8);
        at(op, DType::int16) = at(op, DType::uint16);
        at(op, DType::int32) = at(op, DType::uint32);
        at(op, DType::int64) = at(op, DType::uint64);
    }
    for (DType dtype : {DType::float16, DType::bfloat16, DType::float32, DType::float64}) {
        at(ReduceOp::mean, dtype) = at(ReduceOp::sum, dtype);
    }
    for (auto& row : table)
        row[static_cast<std::size_t>(DType::bool_)] = row[static_cast<std::size_t>(DType::uint8)];
    return table;
}

const Entry& entry(ReduceOp op, DType dtype) {
    static const Table table = make_table();
    const Entry* found = table[static_cast<std::size_t>(op)][static_cast<std::size_t>(dtype)];
    if (found == nullptr) {
        throw error(ErrorKind::type, {.call = "reduce",
                                      .argument = "x",
                                      .expected = "a dtype with arithmetic",
                                      .got = std::string(name(dtype)),
                                      .fix = "convert with astype first"});
    }
    return *found;
}

}  // namespace

const Kernel& reduce_kernel(ReduceOp op, DType dtype, ReduceWalk walk) {
    return entry(op, dtype).kernels[static_cast<int>(walk)];
}

DType reduce_accumulator(ReduceOp op, DType dtype) { return entry(op, dtype).accumulator; }

}  // namespace gpk
