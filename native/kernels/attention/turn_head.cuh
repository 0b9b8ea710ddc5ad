// A head of q or k on its way into a cache or a product: normalised where the model does so, and rotated.
#pragma once

#include "kernels/attention/kv_append.hpp"
#include "kernels/device.cuh"

namespace gpk::kernels {

// A lane's part of a head of d elements, at most 64 * kPairs: pairs that turn together.
template <class T, int kPairs>
struct HeadPart {
    T a[kPairs], b[kPairs];
};

// Which elements those are, and the angles that all heads of a token share.
template <int kPairs>
struct TurnLane {
    int d, count = 0;  // of its pairs
    int first[kPairs], second[kPairs];
    float frequency[kPairs], sine[kPairs], cosine[kPairs];

    __device__ __forceinline__ TurnLane(const RopeTable& rope, int d) : d(d) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
            const int pair = lane + 32 * j;
            if (pair >= d / 2) break;
            count = j + 1;
            const ElementPair at = rope_pair(pair, rope.pairs);
            first[j] = static_cast<int>(at.first);
            second[j] = static_cast<int>(at.second);
            frequency[j] = pair < rope.pairs ? rope.inv_freq[pair] : 0.0f;
        }
    }
    __device__ __forceinline__ void set_position(const RopeTable& rope, float position) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
            if (j >= count) break;
            sine[j] = 0;
            cosine[j] = 1;
            if (lane + 32 * j < rope.pairs) {
                sincosf(position * frequency[j], &sine[j], &cosine[j]);
                sine[j] *= rope.factor;
                cosine[j] *= rope.factor;
            }
        }
    }

    template <class T>
    __device__ __forceinline__ HeadPart<T, kPairs> load(const T* x) const {
        HeadPart<T, kPairs> part;
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
            if (j < count) part.a[j] = x[first[j]], part.b[j] = x[second[j]];
        }
        return part;
    }
    // put(element, number) for the head turned, and before that normalised where there are weights.
    template <class T, class Put>
    __device__ __forceinline__ void turn(const HeadPart<T, kPairs>& x, const T* weights, float eps,
                                         Put put) const {
        float a[kPairs], b[kPairs];
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
            if (j < count) a[j] = float(x.a[j]), b[j] = float(x.b[j]);
        }
        if (weights != nullptr) {
            float squares = 0;
#pragma unroll
            for (int j = 0; j < kPairs; ++j) {
                if (j < count) squares += a[j] * a[j] + b[j] * b[j];
            }
            squares = warp_reduce(squares, [](float p, float q) { return p + q; });
            const float scale = 1.0f / sqrtf(squares / static_cast<float>(d) + eps);
#pragma unroll
            for (int j = 0; j < kPairs; ++j) {
                if (j >= count) break;
                a[j] *= scale * float(weights[first[j]]);
                b[j] *= scale * float(weights[second[j]]);
            }
        }
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
            if (j >= count) break;
            put(first[j], a[j] * cosine[j] - b[j] * sine[j]);
            put(second[j], b[j] * cosine[j] + a[j] * sine[j]);
        }
    }
};

}  // namespace gpk::kernels
