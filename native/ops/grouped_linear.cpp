#include "ops/grouped_linear.hpp"

#include <algorithm>
#include <limits>

#include "base/error.hpp"
#include "ops/elementwise.hpp"
#include "ops/gated_few_rows.hpp"
#include "ops/glu.hpp"
#include "ops/grouped_variants.hpp"
#include "ops/launch.hpp"
#include "ops/matmul.hpp"
#include "ops/model_checks.hpp"
#include "ops/norm.hpp"

namespace gpk::ops {

namespace {

constexpr std::int64_t kMaxExtent = std::numeric_limits<std::int32_t>::max() - 1024;  // of coordinates

void require_rank(const char* call, const char* argument, const Array& array, int rank, const char* shape) {
    if (array.rank() == rank) return;
    throw error(ErrorKind::value, {.call = call,
                                   .argument = argument,
                                   .expected = str(rank, " dimensions ", shape),
                                   .got = to_string(array.shape())});
}

void require_extents(const char* call, const char* argument, const Array& array) {
    if (std::ranges::all_of(array.shape(), [](std::int64_t extent) { return extent <= kMaxExtent; })) return;
    throw error(ErrorKind::value, {.call = call,
                                   .argument = argument,
                                   .expected = str("at most ", kMaxExtent, " along each dimension"),
                                   .got = to_string(array.shape())});
}

// What both ask of x and the weight; n of the result.
std::int64_t check_operands(const char* call, const Array& x, const Array& weight, bool gated) {
    require_model_float(call, "x", x.dtype());
    if (weight.dtype() != x.dtype()) {
        throw error(ErrorKind::type, {.call = call,
                                      .argument = "weight",
                                      .expected = str("x's dtype, ", name(x.dtype())),
                                      .got = std::string(name(weight.dtype()))});
    }
    const std::int64_t k = x.rank() > 0 ? x.shape().back() : -1, rows = weight.shape()[weight.rank() - 2];
    if (k != weight.shape().back()) {
        throw error(ErrorKind::value,
                    {.call = call,
                     .argument = "weight",
                     .expected = "x's last dimension as its own",
                     .got = str(to_string(weight.shape()), " for x ", to_string(x.shape()))});
    }
    if (gated && rows % 2 != 0) {
        throw error(ErrorKind::value, {.call = call,
                                       .argument = "weight",
                                       .expected = "an even number of rows, gates and ups",
                                       .got = to_string(weight.shape())});
    }
    require_extents(call, "x", x);
    require_extents(call, "weight", weight);
    return gated ? rows / 2 : rows;
}

// A weight is read once, however few rows there are of it.
Cost cost_of(const GroupedProblem& p, DType dtype) {
    const double n = static_cast<double>(p.n), k = static_cast<double>(p.k),
                 rows = static_cast<double>(p.rows);
    const double weight_rows = p.gated != 0 ? 2 * n : n;
    const double experts = static_cast<double>(std::min<std::int64_t>(p.experts, p.rows));
    return {.flops = 2 * rows * weight_rows * k,
            .bytes = static_cast<double>(itemsize(dtype)) * (experts * weight_rows * k + rows * (k + n))};
}

// x as rows whose elements follow one another.
Array dense_rows(const Array& x) { return last_axis_dense(x) && x.strides()[0] >= 0 ? x : contiguous(x); }

GroupedProblem problem_of(const Array& x, const Array& weight, const Array* offsets,
                          std::optional<GluOp> gate, const Array& c) {
    return {.a = x.as<const void>(),
            .weight = weight.as<const void>(),
            .c = c.as<void>(),
            .offsets = offsets != nullptr ? offsets->as<const std::int32_t>() : nullptr,
            .rows = x.shape()[0],
            .n = c.shape()[1],
            .k = x.shape()[1],
            .a_row = x.shape()[0] > 1 ? x.strides()[0] : x.shape()[1],
            .experts = static_cast<std::int32_t>(weight.rank() == 3 ? weight.shape()[0] : 1),
            .gated = gate ? 1 : 0,
            .glu = gate.value_or(GluOp::swiglu)};
}

// c = the product by one kernel; false where none does it at once.
bool launch_whole(Stream& stream, const GroupedProblem& p, DType dtype, const Cost& cost) {
    if (launch_gated_few_rows(stream, p, dtype, cost)) return true;
    if (p.norm.weight != nullptr) return false;
    const GroupedVariant* variant = choose_grouped(p, dtype, stream.device().info().sm);
    if (variant == nullptr) return false;
    launch_grouped(stream, *variant, p, cost);
    return true;
}

}  // namespace

Array gated_linear(const Array& x, const Array& weight, GluOp op, const Array* out,
                   const LinearOptions& options) {
    constexpr const char* kCall = "gated_linear";
    require_rank(kCall, "weight", weight, 2, "(2 n, k)");
    const std::int64_t n = check_operands(kCall, x, weight, true);
    Device& device = common_device(kCall, {&x, &weight, options.norm});
    Dims shape = x.shape();
    shape[x.rank() - 1] = n;
    const Array result = prepare_output(kCall, device, shape, x.dtype(), out);
    if (result.size() == 0) return result;
    const std::int64_t k = x.shape().back(), rows = result.size() / n;
    const bool aside = !result.is_contiguous() || overlaps(result, x) || overlaps(result, weight);
    const Array target = aside ? Array::empty(device, shape, x.dtype()) : result;
    bool whole = false;
    if (k > 0) {
        const auto flat = x.reshape_view({rows, k});
        const Array a = dense_rows(flat ? *flat : *contiguous(x).reshape_view({rows, k})),
                    w = contiguous(weight);
        const Array c = *target.reshape_view({rows, n});
        GroupedProblem p = problem_of(a, w, nullptr, op, c);
        p.weight_settled = options.weight_settled && w.storage() == weight.storage();  // not a copy made here
        if (options.norm != nullptr) p.norm = norm_of(a, *options.norm, options.norm_eps);
        const auto launch = [&](Stream& stream) {
            if (options.norm != nullptr && p.norm.weight == nullptr) return;
            whole = launch_whole(stream, p, x.dtype(), cost_of(p, x.dtype()));
        };
        with_storages({&a, &w}, {options.norm}, {&c}, launch);
    }
    if (!whole && options.norm != nullptr) {
        return gated_linear(rms_norm(x, *options.norm, options.norm_eps), weight, op, out,
                            {.weight_settled = options.weight_settled});
    }
    if (!whole) glu(op, linear(x, weight), &target);
    if (aside) assign(result, target);
    return result;
}

Array grouped_linear(const Array& x, const Array& weight, const Array& offsets, std::optional<GluOp> gate,
                     const Array* out) {
    constexpr const char* kCall = "grouped_linear";
    require_rank(kCall, "x", x, 2, "(rows, k)");
    require_rank(kCall, "weight", weight, 3, gate ? "(experts, 2 n, k)" : "(experts, n, k)");
    const std::int64_t n = check_operands(kCall, x, weight, gate.has_value());
    require_array(kCall, "offsets", offsets, {weight.shape()[0] + 1}, DType::int32);
    Device& device = common_device(kCall, {&x, &weight, &offsets});
    const Dims shape{x.shape()[0], n};
    const Array result = prepare_output(kCall, device, shape, x.dtype(), out);
    if (result.size() == 0 || weight.shape()[0] == 0) return result;
    if (x.shape()[1] == 0) {  // sums of nothing; x and the weight have no memory
        assign(result, Scalar(false));
        return result;
    }
    const bool aside = !result.is_contiguous() || overlaps(result, x) || overlaps(result, weight) ||
                       overlaps(result, offsets);
    const Array a = dense_rows(x), w = contiguous(weight), at = contiguous(offsets);
    const Array target = aside ? Array::empty(device, shape, x.dtype()) : result;
    const GroupedProblem p = problem_of(a, w, &at, gate, target);
    bool whole = false;
    with_storages({&a, &w, &at}, {&target},
                  [&](Stream& stream) { whole = launch_whole(stream, p, x.dtype(), cost_of(p, x.dtype())); });
    if (!whole && gate) {
        glu(*gate, grouped_linear(a, w, at), &target);
    } else if (!whole) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .expected = "fewer than 2^31 tiles of the result",
                                       .got = str(to_string(shape), " of ", weight.shape()[0], " experts")});
    }
    if (aside) assign(result, target);
    return result;
}

}  // namespace gpk::ops
