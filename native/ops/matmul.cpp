#include "ops/matmul.hpp"

#include <algorithm>
#include <atomic>

#include "base/error.hpp"
#include "base/platform.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/matmul_along_k.hpp"
#include "ops/matmul_cublaslt.hpp"
#include "ops/matmul_slices.hpp"
#include "ops/matmul_variants.hpp"
#include "ops/model_checks.hpp"
#include "ops/norm.hpp"

namespace gpk::ops {

namespace {

constexpr const char* kCall = "matmul";

// The operands as stacks of matrices of one dtype, and what the result is.
struct Operands {
    Array a, b;  // batch + (m, k) and batch + (k, n)
    Dims batch;
    Dims shape;  // of the result, without the dimensions that 1-d operands drop
    bool drop_row, drop_column;
};

void require_matrix(const char* argument, const Array& array) {
    if (array.rank() == 0) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = argument,
                                       .expected = "1 dimension or more",
                                       .got = "a 0-d array",
                                       .fix = "multiply by a scalar with '*'"});
    }
}

void require_arithmetic(const char* call, const char* argument, const Array& array) {
    if (!is_float8(array.dtype())) return;
    throw error(ErrorKind::type, {.call = call,
                                  .argument = argument,
                                  .expected = "a dtype with arithmetic",
                                  .got = std::string(name(array.dtype())),
                                  .fix = "convert with astype first"});
}

Array with_batch(const Array& array, const Dims& batch) {
    Dims shape = batch;
    shape.push_back(array.shape()[array.rank() - 2]);
    shape.push_back(array.shape().back());
    return array.broadcast_to(shape);
}

Operands prepare(const Array& a, const Array& b, DType dtype) {
    require_matrix("a", a);
    require_matrix("b", b);
    const std::int64_t inner_a = a.shape().back(), inner_b = b.shape()[std::max(b.rank() - 2, 0)];
    if (inner_a != inner_b) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "b",
                                       .expected = str("a dimension of ", inner_a,
                                                       " where it meets a's last, ", to_string(a.shape())),
                                       .got = to_string(b.shape())});
    }
    Operands o;
    o.a = a.dtype() == dtype ? a : astype(a, dtype);
    o.b = b.dtype() == dtype ? b : astype(b, dtype);
    o.drop_row = a.rank() == 1;
    o.drop_column = b.rank() == 1;
    if (o.drop_row) o.a = o.a.expand_dims(0);
    if (o.drop_column) o.b = o.b.expand_dims(1);
    const auto batch_of = [](const Array& x) {
        return Dims(std::span(x.shape().begin(), static_cast<std::size_t>(x.rank() - 2)));
    };
    o.batch = broadcast_shapes(kCall, batch_of(o.a), batch_of(o.b));
    o.a = with_batch(o.a, o.batch);
    o.b = with_batch(o.b, o.batch);
    o.shape = o.batch;
    if (!o.drop_row) o.shape.push_back(o.a.shape()[o.a.rank() - 2]);
    if (!o.drop_column) o.shape.push_back(o.b.shape().back());
    return o;
}

}  // namespace

GemmProblem problem_of(const Array& a, const Array& b, const Array& c) {
    const int rank = c.rank() - 2;
    GemmProblem p = {};
    p.a = a.as<const void>(), p.b = b.as<const void>(), p.c = c.as<void>();
    p.m = c.shape()[rank], p.n = c.shape()[rank + 1], p.k = a.shape()[rank + 1];
    p.a_row = a.strides()[rank], p.a_col = a.strides()[rank + 1];
    p.b_row = b.strides()[rank], p.b_col = b.strides()[rank + 1];
    p.c_row = c.strides()[rank], p.c_col = c.strides()[rank + 1];
    p.batches = 1;
    // Built from the innermost outwards, then turned round.
    int count = 0;
    for (int i = rank - 1; i >= 0; --i) {
        const std::int64_t extent = c.shape()[i];
        if (extent == 1) continue;
        p.batches *= extent;
        const std::int64_t sa = a.strides()[i], sb = b.strides()[i], sc = c.strides()[i];
        if (count == 0 && p.m == 1 && sb == 0) {  // rows of one element have no stride to agree with
            p.m = extent, p.a_row = sa, p.c_row = sc, p.batches = 1;
            continue;
        }
        if (count == 0 && sb == 0 && sa == p.m * p.a_row && sc == p.m * p.c_row) {
            p.m *= extent, p.batches = 1;
            continue;
        }
        if (count > 0) {
            const int last = count - 1;
            const std::int64_t inner = p.batch_extents[last];
            if (sa == inner * p.a_batch[last] && sb == inner * p.b_batch[last] &&
                sc == inner * p.c_batch[last]) {
                p.batch_extents[last] *= extent;
                continue;
            }
        }
        p.batch_extents[count] = extent;
        p.a_batch[count] = sa, p.b_batch[count] = sb, p.c_batch[count] = sc;
        ++count;
    }
    p.batch_rank = count;
    for (std::int64_t* values : {p.batch_extents, p.a_batch, p.b_batch, p.c_batch})
        std::reverse(values, values + count);
    return p;
}

namespace {

Cost cost_of(const GemmProblem& p, const GemmTypes& types) {
    const double mnk = static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
    const auto once = [&](const std::int64_t* strides, std::int64_t rows, std::int64_t columns) {
        double elements = static_cast<double>(rows) * static_cast<double>(columns);
        for (int i = 0; i < p.batch_rank; ++i) {
            if (strides[i] != 0) elements *= static_cast<double>(p.batch_extents[i]);
        }
        return elements;
    };
    const double read = once(p.a_batch, p.m, p.k) + once(p.b_batch, p.k, p.n);
    const double written = once(p.c_batch, p.m, p.n), added = p.epilogue.residual != nullptr ? written : 0;
    return {.flops = 2 * mnk * static_cast<double>(p.batches),
            .bytes = read * static_cast<double>(itemsize(types.operands)) +
                     (written + added) * static_cast<double>(itemsize(types.result))};
}

}  // namespace

void launch_gemm(const GemmChoice& choice, const GemmTypes& types, const Array& a, const Array& b,
                 const Array& c, std::initializer_list<const Array*> beside) {
    const GemmVariant& variant = *choice.variant;
    const GemmProblem& problem = choice.problem;
    with_storages({&a, &b}, beside, {&c}, [&](Stream& stream) {
        const LaunchConfig whole = variant.config(variant, problem, stream.multiprocessors());
        const Cost cost = cost_of(problem, types);
        // Blocks that stay do the work of one for each part.
        const BlockPart part = variant.part(variant, whole);
        const std::int64_t blocks =
            is_bulk(variant.gemv) || variant.wgmma != nullptr ? parts_of(problem, part) * whole.cluster : 0;
        const std::int64_t slices = slices_for(stream, variant.kernel(), whole, cost, blocks);
        if (slices == 1) return launch_variant(stream, variant, problem, whole, cost);
        cut_gemm(variant, problem, whole, slices, [&](const GemmProblem& slice, const LaunchConfig& config) {
            launch_variant(stream, variant, slice, config, cost_of(slice, types));
        });
    });
}

GemmTarget target_of(Device& device) { return {current_stream(device)->multiprocessors(), device.info().sm}; }

namespace {

// c as batch + (m, n), with the dimensions that the result drops.
Array as_matrices(const Operands& o, const Array& c) {
    Array view = c;
    if (o.drop_row) view = view.expand_dims(o.batch.size());
    if (o.drop_column) view = view.expand_dims(view.rank());
    return view;
}

std::atomic<MatmulPrecision>& precision_setting() {
    static std::atomic<MatmulPrecision> setting = [] {
        const auto wanted = platform::environment("PYGPUKIT_ALLOW_TF32");
        if (wanted && *wanted != "0" && *wanted != "1") {
            throw error(ErrorKind::value,
                        {.call = "PYGPUKIT_ALLOW_TF32", .expected = "0 or 1", .got = str("'", *wanted, "'")});
        }
        return wanted && *wanted == "1" ? MatmulPrecision::tf32 : MatmulPrecision::exact;
    }();
    return setting;
}

}  // namespace

MatmulPrecision matmul_precision() { return precision_setting().load(std::memory_order_relaxed); }

void set_matmul_precision(MatmulPrecision precision) {
    precision_setting().store(precision, std::memory_order_relaxed);
}

namespace {

// The dtype that the product is of; `types.operands` is what a and b are converted to before it.
GemmTypes types_of(const char* call, const Array& a, const Array& b, std::optional<DType> dtype) {
    require_arithmetic(call, "a", a);
    require_arithmetic(call, "b", b);
    const DType common = promote(a.dtype(), b.dtype());
    const DType result = dtype.value_or(common);
    if (promote(common, result) != result) {
        throw error(ErrorKind::type, {.call = call,
                                      .argument = "dtype",
                                      .expected = str("one that ", name(common), " converts to safely"),
                                      .got = std::string(name(result))});
    }
    return {common, result, matmul_precision()};
}

}  // namespace

Array matmul(const Array& a, const Array& b, const Array* out, MatmulBackend backend,
             std::optional<DType> dtype) {
    Device& device = common_device(kCall, {&a, &b});
    GemmTypes types = types_of(kCall, a, b, dtype);
    Operands o = prepare(a, b, types.operands);
    const Array result = prepare_output(kCall, device, o.shape, types.result, out);
    if (result.size() == 0) return result;
    const bool aside = out != nullptr && (overlaps(result, o.a) || overlaps(result, o.b));
    const Array target = aside ? Array::empty(device, o.shape, types.result) : result;
    const Array c = as_matrices(o, target);
    const auto convert = [&] {
        types.operands = types.result;
        o = prepare(a, b, types.operands);
    };
    if (backend == MatmulBackend::cublaslt) {
        if (types.operands != types.result) convert();
        matmul_cublaslt(o.a, o.b, c, types.precision, cost_of(problem_of(o.a, o.b, c), types));
    } else if (o.a.shape().back() == 0) {
        assign(target, Scalar(false));  // sums of nothing; a and b have no memory
    } else {
        lay_along_k(o.a, o.b, types, device.info().sm);
        GemmChoice choice = choose_gemm(problem_of(o.a, o.b, c), types, target_of(device));
        if (choice.variant == nullptr) {  // no kernel has both dtypes
            convert();
            choice = choose_gemm(problem_of(o.a, o.b, c), types, target_of(device));
        }
        launch_gemm(choice, types, o.a, o.b, c);
    }
    if (aside) assign(result, target);
    return result;
}

std::optional<Array> matmul_with(const GemmVariant& variant, const Array& a, const Array& b, bool turned) {
    Device& device = common_device(kCall, {&a, &b});
    const GemmTypes types = {variant.dtype, variant.result.value_or(variant.dtype), MatmulPrecision::tf32};
    const Operands o = prepare(a, b, types.operands);
    const Array result = Array::empty(device, o.shape, types.result);
    const Array c = as_matrices(o, result);
    const GemmProblem straight = problem_of(o.a, o.b, c), p = turned ? transposed(straight) : straight;
    if (!can_run(variant, p, types, device.info().sm)) return std::nullopt;
    if (result.size() > 0) launch_gemm({&variant, p}, types, o.a, o.b, c);
    return result;
}

namespace {

constexpr const char* kLinear = "linear";

void require_shape(const char* argument, const Array& array, const Dims& shape) {
    if (array.shape() == shape) return;
    throw error(ErrorKind::value, {.call = kLinear,
                                   .argument = argument,
                                   .expected = str("shape ", to_string(shape)),
                                   .got = to_string(array.shape())});
}

std::optional<UnaryOp> unary_of(GemmActivation activation) {
    switch (activation) {
        case GemmActivation::none: return std::nullopt;
        case GemmActivation::relu: return UnaryOp::relu;
        case GemmActivation::gelu: return UnaryOp::gelu;
        case GemmActivation::gelu_tanh: return UnaryOp::gelu_tanh;
        case GemmActivation::silu: return UnaryOp::silu;
    }
    return std::nullopt;
}

// The strides of the rows and columns of batch + (m, n) as one matrix of `rows` rows, where it is one.
std::optional<std::pair<std::int64_t, std::int64_t>> as_rows(const Array& x, std::int64_t rows) {
    const int rank = x.rank();
    std::int64_t extent = x.shape()[rank - 2], stride = x.strides()[rank - 2];
    for (int i = rank - 3; i >= 0; --i) {
        if (x.shape()[i] == 1) continue;
        if (extent > 1 && x.strides()[i] != extent * stride) return std::nullopt;
        if (extent == 1) stride = x.strides()[i];
        extent *= x.shape()[i];
    }
    if (extent != rows) return std::nullopt;
    return std::pair{stride, x.strides()[rank - 1]};
}

// bias and residual as the kernels want them: of the result's dtype, the bias without gaps.
struct Following {
    std::optional<Array> bias, residual;
};

Following following(const LinearEpilogue& epilogue, const Dims& shape, DType dtype) {
    Following f;
    if (epilogue.bias != nullptr) {
        require_shape("bias", *epilogue.bias, {shape.back()});
        f.bias = contiguous(epilogue.bias->dtype() == dtype ? *epilogue.bias : astype(*epilogue.bias, dtype));
    }
    if (epilogue.residual != nullptr) {
        const Array& given = *epilogue.residual;
        f.residual = (given.dtype() == dtype ? given : astype(given, dtype)).broadcast_to(shape);
    }
    return f;
}

// Each step by itself, rounded to the result's dtype.
Array follow(Array y, const LinearEpilogue& epilogue, const Following& f) {
    if (epilogue.scale != 1) y = binary(BinaryOp::multiply, y, Scalar(epilogue.scale), &y);
    if (f.bias) y = binary(BinaryOp::add, y, *f.bias, &y);
    if (const auto op = unary_of(epilogue.activation)) y = unary(*op, y, &y);
    return f.residual ? binary(BinaryOp::add, y, *f.residual, &y) : y;
}

}  // namespace

GemmRowNorm norm_of(const Array& x, const Array& weight, double eps) {
    const bool fits = weight.shape() == Dims{x.shape().back()} && weight.dtype() == x.dtype() &&
                      weight.is_contiguous() && eps >= 0;
    return {fits ? weight.as<const void>() : nullptr, static_cast<float>(eps)};
}

Array linear(const Array& x, const Array& weight, const LinearEpilogue& epilogue, const Array* out,
             std::optional<DType> dtype, const LinearOptions& options) {
    if (weight.rank() != 2) {
        throw error(ErrorKind::value, {.call = kLinear,
                                       .argument = "weight",
                                       .expected = "2 dimensions (n, k)",
                                       .got = to_string(weight.shape())});
    }
    Device& device = common_device(kLinear, {&x, &weight, epilogue.bias, epilogue.residual, options.norm});
    const GemmTypes types = types_of(kLinear, x, weight, dtype);
    const Operands o = prepare(x, weight.transpose({1, 0}), types.operands);
    const Following f = following(epilogue, o.shape, types.result);
    const Array result = prepare_output(kLinear, device, o.shape, types.result, out);
    if (result.size() == 0) return result;
    const auto apart = [&](const Array& array) { return out == nullptr || !overlaps(result, array); };
    if (o.a.shape().back() > 0 && apart(o.a) && apart(o.b) && (!f.bias || apart(*f.bias)) &&
        (!f.residual || !writes_over(result, *f.residual))) {
        const Array c = as_matrices(o, result);
        GemmProblem p = problem_of(o.a, o.b, c);
        p.epilogue = {.activation = epilogue.activation, .scale = epilogue.scale};
        if (f.bias) p.epilogue.bias = f.bias->as<const void>();
        if (f.residual) {
            const auto rows = as_rows(as_matrices(o, *f.residual), p.m);
            if (rows) {
                p.epilogue.residual = f.residual->as<const void>();
                p.epilogue.residual_row = rows->first, p.epilogue.residual_col = rows->second;
            }
        }
        p.b_settled = options.weight_settled && o.b.storage() == weight.storage();  // not a copy made here
        if (options.norm != nullptr) p.norm = norm_of(o.a, *options.norm, options.norm_eps);
        const bool whole =
            p.batches == 1 && (!f.residual || p.epilogue.residual != nullptr) &&
            (options.norm == nullptr || (p.norm.weight != nullptr && x.dtype() == o.a.dtype()));
        const GemmChoice choice = whole ? choose_gemm(p, types, target_of(device)) : GemmChoice{nullptr, p};
        if (choice.variant != nullptr) {
            launch_gemm(choice, types, o.a, o.b, c,
                        {f.bias ? &*f.bias : nullptr, f.residual ? &*f.residual : nullptr, options.norm});
            return result;
        }
    }
    if (options.norm != nullptr) {
        return linear(rms_norm(x, *options.norm, options.norm_eps), weight, epilogue, out, dtype,
                      {.weight_settled = options.weight_settled});
    }
    if ((!f.bias || apart(*f.bias)) && (!f.residual || apart(*f.residual)))
        return follow(matmul(x, weight.transpose({1, 0}), &result, MatmulBackend::own, types.result),
                      epilogue, f);
    assign(result,
           follow(matmul(x, weight.transpose({1, 0}), nullptr, MatmulBackend::own, types.result), epilogue,
                  f));  // they are read after the product
    return result;
}

}  // namespace gpk::ops
