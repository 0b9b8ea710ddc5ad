#include "kernels/activation/silu_mul.hpp"

#include <cmath>

#include "kernels/floats.hpp"
#include "kernels/host.hpp"

namespace gpk {
extern const Image image_silu_mul;
}

namespace gpk::kernels {

namespace {

template <class T>
void silu_mul_host(const SiluMulParams& p) {
    parallel_for(p.rows * p.n, 4096, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t row = i / p.n, column = i % p.n;
            const float gate =
                static_cast<float>(static_cast<const T*>(p.gate)[row * p.gate_stride + column]);
            const float up = static_cast<float>(static_cast<const T*>(p.up)[row * p.up_stride + column]);
            static_cast<T*>(p.y)[i] = T(gate / (1.0f + std::exp(-gate)) * up);
        }
    });
}

#define X(suffix, T)                                                \
    Kernel(KernelDef{.name = "silu_mul_" #suffix,                   \
                     .image = &image_silu_mul,                      \
                     .twin = twin<SiluMulParams, silu_mul_host<T>>, \
                     .waits_for_predecessor = true}),
const Kernel kKernels[] = {GPK_FLOAT_TYPES(X)};
#undef X

}  // namespace

const Kernel& silu_mul(DType dtype) { return kKernels[float_index(dtype)]; }

}  // namespace gpk::kernels
