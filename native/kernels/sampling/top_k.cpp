#include "kernels/sampling/top_k.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/floats.hpp"
#include "kernels/host.hpp"
#include "kernels/sampling/weights.hpp"

namespace gpk {
extern const Image image_top_k;
}

namespace gpk::kernels {

namespace {

template <class T>
void top_k_host(const TopKParams& p) {
    parallel_for(p.rows, 1, [&](std::int64_t begin, std::int64_t end) {
        std::vector<std::uint32_t> keys(static_cast<std::size_t>(p.n));
        std::vector<std::int32_t> order(keys.size());
        for (std::int64_t row = begin; row < end; ++row) {
            const T* x = static_cast<const T*>(p.x) + row * p.pitch;
            for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = order_key(convert<float>(x[i]));
            std::iota(order.begin(), order.end(), 0);
            std::partial_sort(order.begin(), order.begin() + p.k, order.end(),
                              [&](std::int32_t a, std::int32_t b) {
                                  const std::uint32_t left = keys[static_cast<std::size_t>(a)],
                                                      right = keys[static_cast<std::size_t>(b)];
                                  return left != right ? left > right : a < b;
                              });
            for (std::int32_t i = 0; i < p.k; ++i) {
                const std::int32_t index = order[static_cast<std::size_t>(i)];
                static_cast<T*>(p.values)[row * p.k + i] = x[index];
                p.indices[row * p.k + i] = index;
            }
        }
    });
}

#define X(suffix, T)                                          \
    Kernel(KernelDef{.name = "top_k_" #suffix,                \
                     .image = &image_top_k,                   \
                     .twin = twin<TopKParams, top_k_host<T>>, \
                     .max_shared_bytes = kAllSharedBytes,     \
                     .waits_for_predecessor = true}),
const Kernel kKernels[] = {GPK_FLOAT_TYPES(X)};
#undef X

}  // namespace

const Kernel& top_k(DType dtype) { return kKernels[float_index(dtype)]; }

}  // namespace gpk::kernels
