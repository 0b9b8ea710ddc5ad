#include "kernels/experts/route.hpp"

#include "kernels/device.cuh"
#include "kernels/floats.hpp"
#include "kernels/sampling/weights.hpp"

namespace gpk::kernels {

namespace {

// A lane holds every 32nd logit.
template <class T, int kEach>
__device__ __forceinline__ void route_token(const RouteParams& p, std::int64_t token) {
    constexpr unsigned kAll = 0xffffffffu;
    const T* logits = static_cast<const T*>(p.logits) + token * p.pitch;
    const int lane = threadIdx.x % 32;
    float values[kEach];
    std::uint32_t keys[kEach];  // 0: there is none, or it was taken
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const bool inside = i * 32 + lane < p.count;
        values[i] = inside ? convert<float>(logits[i * 32 + lane]) : 0;
        keys[i] = inside ? order_key(values[i]) : 0;
    }
    float largest = 0, own = 0;  // own: the lane's place's
    std::int32_t own_expert = 0;
    for (int place = 0; place < p.top; ++place) {
        std::uint64_t best = 0;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const std::uint64_t here =
                std::uint64_t{keys[i]} << 32 | ~static_cast<std::uint32_t>(i * 32 + lane);
            if (keys[i] != 0 && here > best) best = here;
        }
        best = warp_reduce(best, [](std::uint64_t a, std::uint64_t b) { return a > b ? a : b; });
        const auto expert = static_cast<std::int32_t>(~static_cast<std::uint32_t>(best));
        float value = 0;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            if (expert == i * 32 + lane) value = values[i], keys[i] = 0;
        }
        value = __shfl_sync(kAll, value, expert % 32);
        if (place == 0) largest = value;
        if (place == lane) own = value, own_expert = expert;
    }
    const auto add = [](float a, float b) { return a + b; };
    const float weight = lane < p.top ? expf(own - largest) : 0;
    float sum = 0;
    if (p.normalize != 0) {
        sum = warp_reduce(weight, add);
    } else {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            if (i * 32 + lane < p.count) sum += expf(values[i] - largest);
        }
        sum = warp_reduce(sum, add);
    }
    if (lane < p.top) {
        p.weights[token * p.top + lane] = weight / sum;
        p.experts[token * p.top + lane] = own_expert;
    }
}

template <class T>
__device__ __forceinline__ void route_tokens(const RouteParams& p) {
    wait_for_predecessor();
    for (std::int64_t token = global_thread() / 32; token < p.tokens; token += grid_threads() / 32) {
        if (p.count <= 128) {
            route_token<T, 4>(p, token);
        } else if (p.count <= 512) {
            route_token<T, 16>(p, token);
        } else {
            route_token<T, kMaxRouteExperts / 32>(p, token);
        }
    }
}

}  // namespace

#define X(suffix, T)                                            \
    extern "C" __global__ void __launch_bounds__(kRouteThreads) \
        route_##suffix(const __grid_constant__ RouteParams p) { \
        route_tokens<T>(p);                                     \
    }
GPK_FLOAT_TYPES(X)
#undef X

}  // namespace gpk::kernels
