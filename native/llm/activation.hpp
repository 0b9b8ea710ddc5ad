// A model's activation in the terms of ops.
#pragma once

#include "kernels/activation/glu.hpp"
#include "kernels/gemm/epilogue.hpp"
#include "llm/config.hpp"
#include "ops/elementwise.hpp"

namespace gpk::llm {

// What the activation is where it multiplies, in a product's epilogue, and alone.
struct ActivationOps {
    GluOp gated;
    GemmActivation following;
    UnaryOp alone;
};
inline constexpr ActivationOps kActivations[] = {
    {GluOp::swiglu, GemmActivation::silu, UnaryOp::silu},
    {GluOp::geglu, GemmActivation::gelu, UnaryOp::gelu},
    {GluOp::geglu_tanh, GemmActivation::gelu_tanh, UnaryOp::gelu_tanh},
};

inline const ActivationOps& activation_ops(const ModelConfig& config) {
    return kActivations[static_cast<std::size_t>(config.activation)];
}

}  // namespace gpk::llm
