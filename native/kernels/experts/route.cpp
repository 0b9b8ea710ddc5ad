#include "kernels/experts/route.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/floats.hpp"
#include "kernels/host.hpp"
#include "kernels/sampling/weights.hpp"

namespace gpk {
extern const Image image_route;
}

namespace gpk::kernels {

namespace {

template <class T>
void route_host(const RouteParams& p) {
    parallel_for(p.tokens, 16, [&](std::int64_t begin, std::int64_t end) {
        std::vector<float> values(static_cast<std::size_t>(p.count));
        std::vector<std::int32_t> order(values.size());
        for (std::int64_t token = begin; token < end; ++token) {
            const T* logits = static_cast<const T*>(p.logits) + token * p.pitch;
            std::transform(logits, logits + p.count, values.begin(), [](T x) { return convert<float>(x); });
            std::iota(order.begin(), order.end(), 0);
            const auto value = [&](std::int32_t expert) { return values[static_cast<std::size_t>(expert)]; };
            std::partial_sort(order.begin(), order.begin() + p.top, order.end(),
                              [&](std::int32_t a, std::int32_t b) {
                                  const std::uint32_t left = order_key(value(a)), right = order_key(value(b));
                                  return left != right ? left > right : a < b;
                              });
            const float largest = value(order[0]);
            float sum = 0;
            const auto kept = p.normalize != 0 ? order.begin() + p.top : order.end();
            for (auto expert = order.begin(); expert != kept; ++expert)
                sum += std::exp(value(*expert) - largest);
            for (std::int32_t i = 0; i < p.top; ++i) {
                const std::int32_t expert = order[static_cast<std::size_t>(i)];
                p.weights[token * p.top + i] = std::exp(value(expert) - largest) / sum;
                p.experts[token * p.top + i] = expert;
            }
        }
    });
}

#define X(suffix, T)                                           \
    Kernel(KernelDef{.name = "route_" #suffix,                 \
                     .image = &image_route,                    \
                     .twin = twin<RouteParams, route_host<T>>, \
                     .waits_for_predecessor = true}),
const Kernel kKernels[] = {GPK_FLOAT_TYPES(X)};
#undef X

}  // namespace

const Kernel& route(DType dtype) { return kKernels[float_index(dtype)]; }

}  // namespace gpk::kernels
