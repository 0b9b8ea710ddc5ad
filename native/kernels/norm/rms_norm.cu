#include "kernels/norm/rms_norm.hpp"

#include "kernels/norm/norm_rows.cuh"

namespace gpk::kernels {

#define X(suffix, dtype, T, N, accesses) GPK_NORM_KERNEL(rms_norm, suffix, T, N, accesses, false)
GPK_ROW_VARIANTS(X)
GPK_LONG_ROW_VARIANTS(X)
#undef X

}  // namespace gpk::kernels
