#include "kernels/norm/layer_norm.hpp"

#include "ops/norm.hpp"
#include "ops/norm_rows.hpp"

namespace gpk::ops {

Array layer_norm(const Array& x, const Array& weight, const Array& bias, double eps, const Array* residual,
                 const Array* out, const Array* sum) {
    return normalize({"layer_norm", kernels::layer_norm, x, weight, bias, eps, residual, out, sum});
}

}  // namespace gpk::ops
