// What the attention kernels take.
#pragma once

namespace gpk::kernels {

inline constexpr int kMaxHeadDim = 256;

}  // namespace gpk::kernels
