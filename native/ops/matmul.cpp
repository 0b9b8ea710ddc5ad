#include "ops/matmul.hpp"

#include <algorithm>
#include <atomic>

#include "base/error.hpp"
#include "base/platform.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/matmul_cublaslt.hpp"
#include "ops/matmul_slices.hpp"
#include "ops/matmul_variants.hpp"

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
    if (is_float8(array.dtype())) {
        throw error(ErrorKind::type, {.call = kCall,
                                      .argument = argument,
                                      .expected = "a dtype with arithmetic",
                                      .got = std::string(name(array.dtype())),
                                      .fix = "convert with astype first"});
    }
}

Array with_batch(const Array& array, const Dims& batch) {
    Dims shape = batch;
    shape.push_back(array.shape()[array.rank() - 2]);
    shape.push_back(array.shape().back());
    return array.broadcast_to(shape);
}

Operands prepare(const Array& a, const Array& b) {
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
    const DType dtype = promote(a.dtype(), b.dtype());
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

Cost cost_of(const GemmProblem& p, DType dtype) {
    const double mnk = static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
    const auto once = [&](const std::int64_t* strides, std::int64_t rows, std::int64_t columns) {
        double elements = static_cast<double>(rows) * static_cast<double>(columns);
        for (int i = 0; i < p.batch_rank; ++i) {
            if (strides[i] != 0) elements *= static_cast<double>(p.batch_extents[i]);
        }
        return elements;
    };
    const double elements = once(p.a_batch, p.m, p.k) + once(p.b_batch, p.k, p.n) + once(p.c_batch, p.m, p.n);
    return {.flops = 2 * mnk * static_cast<double>(p.batches),
            .bytes = elements * static_cast<double>(itemsize(dtype))};
}

void launch_gemm(const GemmChoice& choice, const Array& a, const Array& b, const Array& c) {
    if (choice.problem.k == 0) return assign(c, Scalar(false));  // sums of nothing; a and b have no memory
    const GemmVariant& variant = *choice.variant;
    const GemmProblem& problem = choice.problem;
    with_storages({&a, &b}, {&c}, [&](Stream& stream) {
        const Kernel& kernel = variant.kernel();
        const LaunchConfig whole = variant.config(variant, problem, stream.multiprocessors());
        const Cost cost = cost_of(problem, c.dtype());
        // Blocks that stay do the work of one for each part.
        LaunchConfig work = whole;
        if (variant.gemv == GemvForm::bulk) {
            work.grid.x =
                static_cast<std::uint32_t>(ceil_div(problem.n, variant.part(variant, whole).columns));
        }
        const std::int64_t slices = slices_for(stream, kernel, work, cost);
        if (slices == 1) return launch_variant(stream, variant, problem, whole, cost);
        cut_gemm(variant, problem, whole, slices, [&](const GemmProblem& slice, const LaunchConfig& config) {
            launch_variant(stream, variant, slice, config, cost_of(slice, c.dtype()));
        });
    });
}

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

Array matmul(const Array& a, const Array& b, const Array* out, MatmulBackend backend) {
    Device& device = common_device(kCall, {&a, &b});
    const Operands o = prepare(a, b);
    const Array result = prepare_output(kCall, device, o.shape, o.a.dtype(), out);
    if (result.size() == 0) return result;
    const bool aside = out != nullptr && (overlaps(result, o.a) || overlaps(result, o.b));
    const Array target = aside ? Array::empty(device, o.shape, o.a.dtype()) : result;
    const Array c = as_matrices(o, target);
    const GemmProblem problem = problem_of(o.a, o.b, c);
    if (backend == MatmulBackend::cublaslt) {
        matmul_cublaslt(o.a, o.b, c, matmul_precision(), cost_of(problem, c.dtype()));
    } else {
        launch_gemm(choose_gemm(problem, c.dtype(), matmul_precision(),
                                current_stream(device)->multiprocessors(), device.driver().info().sm),
                    o.a, o.b, c);
    }
    if (aside) assign(result, target);
    return result;
}

std::optional<Array> matmul_with(const GemmVariant& variant, const Array& a, const Array& b) {
    Device& device = common_device(kCall, {&a, &b});
    const Operands o = prepare(a, b);
    const Array result = Array::empty(device, o.shape, o.a.dtype());
    const Array c = as_matrices(o, result);
    const GemmProblem p = problem_of(o.a, o.b, c);
    if (!can_run(variant, p, c.dtype(), MatmulPrecision::tf32, device.driver().info().sm))
        return std::nullopt;
    if (result.size() > 0) launch_gemm({&variant, p}, o.a, o.b, c);
    return result;
}

Array linear(const Array& x, const Array& weight, const Array* bias, const Array* out) {
    if (weight.rank() != 2) {
        throw error(ErrorKind::value, {.call = "linear",
                                       .argument = "weight",
                                       .expected = "2 dimensions (n, k)",
                                       .got = to_string(weight.shape())});
    }
    Array product = matmul(x, weight.transpose({1, 0}), out);
    if (bias == nullptr) return product;
    if (bias->shape() != Dims{weight.shape()[0]}) {
        throw error(ErrorKind::value, {.call = "linear",
                                       .argument = "bias",
                                       .expected = str("shape (", weight.shape()[0], ",)"),
                                       .got = to_string(bias->shape())});
    }
    return binary(BinaryOp::add, product, *bias, &product);
}

}  // namespace gpk::ops
