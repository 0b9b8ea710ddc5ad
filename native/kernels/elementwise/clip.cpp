#include "kernels/elementwise/clip_value.hpp"
#include "kernels/elementwise/rows.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_clip;

namespace kernels {
namespace {

template <class C>
void clip_host(const ClipParams& p) {
    const Bounds<C> bounds(p.bounds);
    const DType dtype = p.bounds.dtype;
    const auto& stride = p.layout.axis[0].stride;
    for_rows(p.layout, kBufferElements, [&](std::int64_t count, const std::int64_t (&at)[2]) {
        C values[kBufferElements];
        load_row<C>(dtype, p.x, at[1], stride[1], count, values);
        for (std::int64_t i = 0; i < count; ++i) values[i] = bounds.apply(values[i]);
        store_row<C>(dtype, p.out, at[0], stride[0], count, values);
    });
}

const Kernel clip_kernels[kComputeTypeCount] = {
#define GPK_ROW(name, C) \
    Kernel(elementwise_kernel("clip_" #name, image_clip, twin<ClipParams, clip_host<C>>)),
    GPK_COMPUTE_TYPES(GPK_ROW)
#undef GPK_ROW
};

template <class C>
void clip_packs_host(const ClipPacksParams& p) {
    clip_host<C>({.layout = one_axis<2>(p.count), .out = p.out, .x = p.x, .bounds = p.bounds});
}

struct Entry {
    DType dtype;
    Kernel kernel;
};
const Entry packs[] = {
#define GPK_ROW(name, T)                                                     \
    {DType::name, Kernel(elementwise_kernel("clip_packs_" #name, image_clip, \
                                            twin<ClipPacksParams, clip_packs_host<compute_type_t<T>>>))},
    GPK_CLIP_PACKS(GPK_ROW)
#undef GPK_ROW
};

}  // namespace

const Kernel* clip_packs(DType dtype) {
    for (const Entry& entry : packs) {
        if (entry.dtype == dtype) return &entry.kernel;
    }
    return nullptr;
}

const Kernel& clip_kernel(ComputeType type) { return clip_kernels[static_cast<int>(type)]; }

}  // namespace kernels
}  // namespace gpk
