#include "kernels/elementwise/binary.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/elementwise/binary_functors.hpp"
#include "kernels/elementwise/rows.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_binary_strided;
extern const Image image_binary_packs_float;
extern const Image image_binary_packs_integer;

namespace kernels {
namespace {

// Elements begin..end of an op on contiguous values of its compute type; `out` holds the same, or bytes
// for truth values.
template <class C>
using Loop = void (*)(const C* a, const C* b, void* out, std::int64_t count);

#define GPK_LOOP(name, rule, C, suffix)                                                                \
    GPK_SIMD void name##_##suffix(const C* a, const C* b, void* out, std::int64_t count) {             \
        if constexpr (binary_computes<BinaryRule::rule, C>) {                                          \
            using R = decltype(binary_functors::name::apply(C{}, C{}));                                \
            auto* to = static_cast<stored_t<R>*>(out);                                                 \
            for (std::int64_t i = 0; i < count; ++i) to[i] = binary_functors::name::apply(a[i], b[i]); \
        }                                                                                              \
    }
#define GPK_LOOPS(name, rule)                 \
    GPK_LOOP(name, rule, float, float32)      \
    GPK_LOOP(name, rule, double, float64)     \
    GPK_LOOP(name, rule, std::int64_t, int64) \
    GPK_LOOP(name, rule, std::uint64_t, uint64)
GPK_BINARY_OPS(GPK_LOOPS)
#undef GPK_LOOPS
#undef GPK_LOOP

template <class C>
struct Loops;
#define GPK_LOOP_TABLE(suffix, C)                                                              \
    template <>                                                                                \
    struct Loops<C> {                                                                          \
        static constexpr Loop<C> table[kBinaryOpCount] = {GPK_BINARY_OPS(GPK_ENTRY_##suffix)}; \
    };
#define GPK_ENTRY_float32(name, rule) name##_float32,
#define GPK_ENTRY_float64(name, rule) name##_float64,
#define GPK_ENTRY_int64(name, rule) name##_int64,
#define GPK_ENTRY_uint64(name, rule) name##_uint64,
GPK_COMPUTE_TYPES(GPK_LOOP_TABLE)
#undef GPK_LOOP_TABLE

// One side of the op, `count` elements at a time, in the compute type.
template <class C>
class Side {
   public:
    Side(const Operand& operand, std::int64_t stride, std::int64_t longest)
        : operand_(operand), stride_(stride) {
        if (operand.kind != OperandKind::immediate) return;
        C value{};
        load_row<C>(operand.dtype, &operand.bits, 0, 0, 1, &value);
        std::fill_n(buffer_, std::min(longest, kBufferElements), value);
    }
    const C* at(std::int64_t offset, std::int64_t count) {
        if (operand_.kind == OperandKind::immediate) return buffer_;
        if (stride_ == 1 && stored_as_computed()) return static_cast<const C*>(operand_.data) + offset;
        load_row<C>(operand_.dtype, operand_.data, offset, stride_, count, buffer_);
        return buffer_;
    }

   private:
    bool stored_as_computed() const {
        return itemsize(operand_.dtype) == sizeof(C);  // the widest of the class is C itself
    }

    const Operand& operand_;
    std::int64_t stride_;
    C buffer_[kBufferElements];
};

// One body for all: packs become a layout of elements.
template <class C>
void binary_rows(BinaryOp op, const Layout<3>& layout, const Operand& a, const Operand& b, void* out,
                 DType out_dtype) {
    const Loop<C> loop = Loops<C>::table[static_cast<int>(op)];
    const bool truth = gives_bool(info(op).rule);
    const auto& stride = layout.axis[0].stride;
    const bool direct = stride[0] == 1 && (truth || itemsize(out_dtype) == sizeof(C));
    parallel_for(layout.count, kParallelGrain, [&](std::int64_t begin, std::int64_t end) {
        Side<C> a_side(a, stride[1], end - begin), b_side(b, stride[2], end - begin);
        C result[kBufferElements];
        for_rows_between(
            layout, begin, end, kBufferElements, [&](std::int64_t count, const std::int64_t (&at)[3]) {
                const C* x = a_side.at(at[1], count);
                const C* y = b_side.at(at[2], count);
                void* target =
                    static_cast<std::byte*>(out) + at[0] * static_cast<std::int64_t>(itemsize(out_dtype));
                loop(x, y, direct ? target : result, count);
                if (direct) return;
                if (truth) {
                    store_bytes(out, at[0], stride[0], count, result);
                } else {
                    store_row<C>(out_dtype, out, at[0], stride[0], count, result);
                }
            });
    });
}

template <class C>
void binary_strided_host(const BinaryStridedParams& p) {
    binary_rows<C>(p.op, p.layout, p.a, p.b, p.out, p.out_dtype);
}

template <BinaryOp op, class T>
void binary_packs_host(const BinaryPacksParams& p) {
    using C = compute_type_t<T>;
    const DType out = gives_bool(info(op).rule) ? DType::bool_ : p.a.dtype;
    constexpr std::int64_t N = 16 / sizeof(stored_t<T>);
    const bool is_run[] = {p.a.kind == OperandKind::array, p.b.kind == OperandKind::array};
    binary_rows<C>(op, in_elements(p.layout, p.count, N, is_run), p.a, p.b, p.out, out);
}

const Kernel strided[kComputeTypeCount] = {
#define GPK_ROW(name, C)                                                     \
    Kernel(elementwise_kernel("binary_strided_" #name, image_binary_strided, \
                              twin<BinaryStridedParams, binary_strided_host<C>>)),
    GPK_COMPUTE_TYPES(GPK_ROW)
#undef GPK_ROW
};

#define GPK_ENTRY(op, dtype, T, image)                          \
    {BinaryOp::op, DType::dtype,                                \
     Kernel(elementwise_kernel("binary_" #op "_" #dtype, image, \
                               twin<BinaryPacksParams, binary_packs_host<BinaryOp::op, T>>))},
#define GPK_FLOATS(op)                                               \
    GPK_ENTRY(op, float16, gpk::float16, image_binary_packs_float)   \
    GPK_ENTRY(op, bfloat16, gpk::bfloat16, image_binary_packs_float) \
    GPK_ENTRY(op, float32, float, image_binary_packs_float)          \
    GPK_ENTRY(op, float64, double, image_binary_packs_float)
#define GPK_INTEGERS(op)                                           \
    GPK_ENTRY(op, int32, std::int32_t, image_binary_packs_integer) \
    GPK_ENTRY(op, int64, std::int64_t, image_binary_packs_integer)
#define GPK_BOOLS(op) GPK_ENTRY(op, bool_, bool, image_binary_packs_integer)
const KernelEntry<BinaryOp> entries[] = {GPK_PACKS_FLOAT_OPS(GPK_FLOATS) GPK_PACKS_INTEGER_OPS(GPK_INTEGERS)
                                             GPK_PACKS_BOOL_OPS(GPK_BOOLS)};

}  // namespace

const Kernel& binary_strided(ComputeType type) { return strided[static_cast<int>(type)]; }

const Kernel* binary_packs(BinaryOp op, DType dtype) {
    static const KernelIndex<BinaryOp, kBinaryOpCount> index(entries);
    return index.find(op, dtype);
}

}  // namespace kernels
}  // namespace gpk
