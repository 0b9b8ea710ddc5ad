#include "kernels/activation/glu.hpp"

#include "kernels/elementwise/unary_functors.hpp"
#include "kernels/floats.hpp"
#include "kernels/host.hpp"

namespace gpk {
extern const Image image_glu;
}

namespace gpk::kernels {

namespace {

template <class F, class T>
void glu_host(const GluParams& p) {
    parallel_for(p.rows * p.n, 4096, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t row = i / p.n, column = i % p.n;
            const float gate =
                static_cast<float>(static_cast<const T*>(p.gate)[row * p.gate_stride + column]);
            const float up = static_cast<float>(static_cast<const T*>(p.up)[row * p.up_stride + column]);
            static_cast<T*>(p.y)[i] = T(F::apply(gate) * up);
        }
    });
}

const Kernel kernels[kGluOpCount][3] = {
#define GPK_KERNEL(name_, function, suffix, T)                                       \
    Kernel(KernelDef{.name = #name_ "_" #suffix,                                     \
                     .image = &image_glu,                                            \
                     .twin = twin<GluParams, glu_host<unary_functors::function, T>>, \
                     .waits_for_predecessor = true}),
#define GPK_ROW(name, function)                                                             \
    {GPK_KERNEL(name, function, f32, float) GPK_KERNEL(name, function, f16, ::gpk::float16) \
         GPK_KERNEL(name, function, bf16, ::gpk::bfloat16)},
    GPK_GLU_OPS(GPK_ROW)
#undef GPK_ROW
#undef GPK_KERNEL
};

}  // namespace

const Kernel& glu(GluOp op, DType dtype) { return kernels[static_cast<int>(op)][float_index(dtype)]; }

}  // namespace gpk::kernels
