// The functions of GemmActivation.
#pragma once

#include "kernels/elementwise/unary_functors.hpp"
#include "kernels/gemm/epilogue.hpp"

namespace gpk {

GPK_HD float activate(GemmActivation activation, float x) {
    namespace f = kernels::unary_functors;
    switch (activation) {
        case GemmActivation::none: return x;
        case GemmActivation::relu: return f::relu::apply(x);
        case GemmActivation::gelu: return f::gelu::apply(x);
        case GemmActivation::gelu_tanh: return f::gelu_tanh::apply(x);
        case GemmActivation::silu: return f::silu::apply(x);
    }
    return x;
}

}  // namespace gpk
