#include "kernels/norm/rms_norm.hpp"

#include "ops/norm.hpp"
#include "ops/norm_rows.hpp"

namespace gpk::ops {

Array rms_norm(const Array& x, const Array& weight, double eps, const Array* residual, const Array* out,
               const Array* sum) {
    const Array no_bias = {};
    return normalize({"rms_norm", kernels::rms_norm, x, weight, no_bias, eps, residual, out, sum});
}

}  // namespace gpk::ops
