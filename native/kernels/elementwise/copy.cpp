#include "kernels/elementwise/copy.hpp"

#include <cstring>

#include "kernels/elementwise/rows.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_copy;

namespace kernels {
namespace {

void copy_strided_host(const CopyParams& p) {
    const std::int64_t to_stride = p.layout.axis[0].stride[0], from_stride = p.layout.axis[0].stride[1];
    with_word(p.element_bytes, [&]<class W>() {
        for_rows(p.layout, kWholeRow, [&](std::int64_t count, const std::int64_t (&at)[2]) {
            auto* to = static_cast<std::byte*>(p.to) + at[0] * static_cast<std::int64_t>(sizeof(W));
            const auto* from =
                static_cast<const std::byte*>(p.from) + at[1] * static_cast<std::int64_t>(sizeof(W));
            if (to_stride == 1 && from_stride == 1) {
                std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(W));
                return;
            }
            constexpr auto size = static_cast<std::int64_t>(sizeof(W));
            for (std::int64_t i = 0; i < count; ++i) {
                std::memcpy(to + i * to_stride * size, from + i * from_stride * size, sizeof(W));
            }
        });
    });
}

// Contiguous conversions are the hot ones: from and to memory without a buffer between.
template <class From, class To>
void convert_row(const void* from, void* to, std::int64_t begin, std::int64_t end) {
    const auto* source = static_cast<const stored_t<From>*>(from);
    auto* target = static_cast<stored_t<To>*>(to);
    for (std::int64_t i = begin; i < end; ++i) {
        target[i] = encode<To>(decode<From, compute_type_t<From>>(source[i]));
    }
}

template <class C>
void convert_strided_host(const ConvertParams& p) {
    const std::int64_t to_stride = p.layout.axis[0].stride[0], from_stride = p.layout.axis[0].stride[1];
    for_rows(p.layout, kBufferElements, [&](std::int64_t count, const std::int64_t (&at)[2]) {
        C buffer[kBufferElements];
        load_row<C>(p.from_dtype, p.from, at[1], from_stride, count, buffer);
        store_row<C>(p.to_dtype, p.to, at[0], to_stride, count, buffer);
    });
}

const Kernel copy_elements(elementwise_kernel("copy_strided", image_copy,
                                              twin<CopyParams, copy_strided_host>));

const Kernel convert_kernels[kComputeTypeCount] = {
#define GPK_ROW(name, C)                                            \
    Kernel(elementwise_kernel("convert_strided_" #name, image_copy, \
                              twin<ConvertParams, convert_strided_host<C>>)),
    GPK_COMPUTE_TYPES(GPK_ROW)
#undef GPK_ROW
};

// One plain loop for each pair, so that each is compiled for the widest vectors there are.
#define GPK_TWIN(a, A, b, B)                                                                \
    GPK_SIMD void convert_##a##_##b##_range(const void* from, void* to, std::int64_t begin, \
                                            std::int64_t end) {                             \
        convert_row<A, B>(from, to, begin, end);                                            \
    }                                                                                       \
    void convert_##a##_##b##_host(const ConvertContiguousParams& p) {                       \
        parallel_for(p.count, kParallelGrain, [&](std::int64_t begin, std::int64_t end) {   \
            convert_##a##_##b##_range(p.from, p.to, begin, end);                            \
        });                                                                                 \
    }
GPK_CONVERT_PAIRS(GPK_TWIN)
#undef GPK_TWIN

struct Pair {
    DType from, to;
    Kernel kernel;
};
const Pair pairs[] = {
#define GPK_ROW(a, A, b, B)                                      \
    {DType::a, DType::b,                                         \
     Kernel(elementwise_kernel("convert_" #a "_" #b, image_copy, \
                               twin<ConvertContiguousParams, convert_##a##_##b##_host>))},
    GPK_CONVERT_PAIRS(GPK_ROW)
#undef GPK_ROW
};

}  // namespace

const Kernel& copy_kernel() { return copy_elements; }

const Kernel& convert_strided(ComputeType from) { return convert_kernels[static_cast<int>(from)]; }

const Kernel* convert_contiguous(DType from, DType to) {
    for (const Pair& pair : pairs) {
        if (pair.from == from && pair.to == to) return &pair.kernel;
    }
    return nullptr;
}

}  // namespace kernels
}  // namespace gpk
