// variance: the mean of the squares of what elements differ from their mean, or its root, over any
// dimensions. One pass: counts, means and sums of squares about them are kept for pieces of the elements, and
// joined (Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample
// variances"), so a mean much larger than the spread costs few digits. 16-bit floats compute in float32.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "kernels/reduce/layout.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

template <class C>
struct alignas(4 * sizeof(C)) Moments {
    C count, mean, squares, unused;
};

// a and b together, neither of which the other's elements are in.
template <class C>
GPK_HD Moments<C> joined(const Moments<C>& a, const Moments<C>& b) {
    const C count = a.count + b.count;
    if (!(count > 0)) return a;
    const C difference = b.mean - a.mean, share = b.count / count;
    return {count, a.mean + difference * share,
            a.squares + b.squares + difference * difference * (a.count * share), C(0)};
}

struct VarianceParams {
    const void* input;  // elements, or, of a second pass, Moments
    void* output;       // parts * outputs: Moments, or, where there is one part, the results
    ReduceLayout layout;
    double divisor;  // the count less the correction, at least 0
    bool root;
};

// For elements of `dtype`, float16, bfloat16, float32 or float64. Grid and block: as ReduceLayout says.
const Kernel& variance(DType dtype, ReduceWalk walk);
// The second pass of those, which walks elements; and what a Moments takes.
const Kernel& variance_join(DType dtype);
std::int64_t moments_bytes(DType dtype);

}  // namespace gpk::kernels
