#include "kernels/elementwise/unary.hpp"

#include "kernels/elementwise/rows.hpp"
#include "kernels/elementwise/unary_functors.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_unary_strided;
extern const Image image_unary_contiguous;

namespace kernels {
namespace {

// An op on contiguous values of its compute type; `out` holds the same, or bytes for truth values.
template <class C>
using Loop = void (*)(const C* x, void* out, std::int64_t count);

#define GPK_LOOP(name, rule, C, suffix)                                                         \
    GPK_SIMD void name##_##suffix(const C* x, void* out, std::int64_t count) {                  \
        if constexpr (unary_computes<UnaryRule::rule, C>) {                                     \
            using R = decltype(unary_functors::name::apply(C{}));                               \
            auto* to = static_cast<stored_t<R>*>(out);                                          \
            for (std::int64_t i = 0; i < count; ++i) to[i] = unary_functors::name::apply(x[i]); \
        }                                                                                       \
    }
#define GPK_LOOPS(name, rule)                 \
    GPK_LOOP(name, rule, float, float32)      \
    GPK_LOOP(name, rule, double, float64)     \
    GPK_LOOP(name, rule, std::int64_t, int64) \
    GPK_LOOP(name, rule, std::uint64_t, uint64)
GPK_UNARY_OPS(GPK_LOOPS)
#undef GPK_LOOPS
#undef GPK_LOOP

template <class C>
struct Loops;
#define GPK_LOOP_TABLE(suffix, C)                                                            \
    template <>                                                                              \
    struct Loops<C> {                                                                        \
        static constexpr Loop<C> table[kUnaryOpCount] = {GPK_UNARY_OPS(GPK_ENTRY_##suffix)}; \
    };
#define GPK_ENTRY_float32(name, rule) name##_float32,
#define GPK_ENTRY_float64(name, rule) name##_float64,
#define GPK_ENTRY_int64(name, rule) name##_int64,
#define GPK_ENTRY_uint64(name, rule) name##_uint64,
GPK_COMPUTE_TYPES(GPK_LOOP_TABLE)
#undef GPK_LOOP_TABLE

// One body for all: a contiguous launch is a layout of one axis.
template <class C>
void unary_rows(UnaryOp op, const Layout<2>& layout, const void* x, DType x_dtype, void* out,
                DType out_dtype) {
    const Loop<C> loop = Loops<C>::table[static_cast<int>(op)];
    const bool truth = gives_bool(info(op).rule);
    const auto& stride = layout.axis[0].stride;
    // The widest dtype of a class is the compute type itself, and needs no buffer.
    const bool direct_in = stride[1] == 1 && itemsize(x_dtype) == sizeof(C);
    const bool direct_out = stride[0] == 1 && (truth || itemsize(out_dtype) == sizeof(C));
    for_rows(layout, kBufferElements, [&](std::int64_t count, const std::int64_t (&at)[2]) {
        C values[kBufferElements], result[kBufferElements];
        const C* from = direct_in ? static_cast<const C*>(x) + at[1] : values;
        void* target = static_cast<std::byte*>(out) + at[0] * static_cast<std::int64_t>(itemsize(out_dtype));
        if (!direct_in) load_row<C>(x_dtype, x, at[1], stride[1], count, values);
        loop(from, direct_out ? target : result, count);
        if (direct_out) return;
        if (truth) {
            store_bytes(out, at[0], stride[0], count, result);
        } else {
            store_row<C>(out_dtype, out, at[0], stride[0], count, result);
        }
    });
}

template <class C>
void unary_strided_host(const UnaryStridedParams& p) {
    unary_rows<C>(p.op, p.layout, p.x, p.x_dtype, p.out, p.out_dtype);
}

template <UnaryOp op, DType dtype>
void unary_contiguous_host(const UnaryContiguousParams& p) {
    unary_rows<float>(op, one_axis<2>(p.count), p.x, dtype, p.out, dtype);
}

const Kernel strided[kComputeTypeCount] = {
#define GPK_ROW(name, C)                                                   \
    Kernel(elementwise_kernel("unary_strided_" #name, image_unary_strided, \
                              twin<UnaryStridedParams, unary_strided_host<C>>)),
    GPK_COMPUTE_TYPES(GPK_ROW)
#undef GPK_ROW
};

const KernelEntry<UnaryOp> entries[] = {
#define GPK_ENTRY(op, dtype)                              \
    {UnaryOp::op, DType::dtype,                           \
     Kernel(elementwise_kernel(                           \
         "unary_" #op "_" #dtype, image_unary_contiguous, \
         twin<UnaryContiguousParams, unary_contiguous_host<UnaryOp::op, DType::dtype>>))},
#define GPK_ENTRIES(op) GPK_ENTRY(op, float16) GPK_ENTRY(op, bfloat16) GPK_ENTRY(op, float32)
    GPK_CONTIGUOUS_UNARY_OPS(GPK_ENTRIES)};

}  // namespace

const Kernel& unary_strided(ComputeType type) { return strided[static_cast<int>(type)]; }

const Kernel* unary_contiguous(UnaryOp op, DType dtype) {
    static const KernelIndex<UnaryOp, kUnaryOpCount> index(entries);
    return index.find(op, dtype);
}

}  // namespace kernels
}  // namespace gpk
