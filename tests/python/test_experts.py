"""Gated products and mixtures of experts, against NumPy in float64."""

import itertools

import numpy as np
import pytest

import pygpukit as gp
from support import np_dtype, relative_norm

# A rounding of each product, of their product and of the result.
BOUNDS = {"float32": 3e-6, "float16": 2e-3, "bfloat16": 1.2e-2}


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def draw(rng, shape, dtype, scale=1.0):
    return (rng.standard_normal(shape) * scale).astype(np_dtype(dtype))


def wide(array):
    return array.astype(np.float64)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("lead", [(), (3,), (2, 20), (0,)])
def test_gated_linear(rng, lead, dtype):
    x, weight = draw(rng, (*lead, 64), dtype), draw(rng, (80, 64), dtype, 1 / 8)
    both = wide(x) @ wide(weight).T
    y = gp.nn.gated_linear(gp.from_numpy(x), gp.from_numpy(weight))
    assert y.shape == (*lead, 40)
    assert relative_norm(y.to_numpy(), silu(both[..., :40]) * both[..., 40:]) <= BOUNDS[dtype]
    out = gp.empty((*lead, 40), dtype)
    gp.nn.gated_linear(gp.from_numpy(x), gp.from_numpy(weight), "gelu_tanh", out=out)
    assert relative_norm(out.to_numpy(), gelu_tanh(both[..., :40]) * both[..., 40:]) <= BOUNDS[dtype]


def test_gated_linear_of_a_quantized_weight(rng):
    x, weight = (
        draw(rng, (3, 64), "bfloat16"),
        gp.nn.quantize(gp.from_numpy(draw(rng, (32, 64), "float32")), "int8"),
    )
    both = wide(x) @ wide(weight.dequantize("float32").to_numpy()).T
    y = gp.nn.gated_linear(gp.from_numpy(x), weight)
    assert relative_norm(y.to_numpy(), silu(both[:, :16]) * both[:, 16:]) <= BOUNDS["bfloat16"]


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("normalize", [True, False])
def test_a_layer_of_experts(rng, dtype, normalize):
    tokens, experts, k, width, inner = 21, 5, 2, 64, 24
    x, logits = draw(rng, (tokens, width), dtype), draw(rng, (tokens, experts), dtype)
    up, down = (
        draw(rng, (experts, 2 * inner, width), dtype, 1 / 8),
        draw(rng, (experts, width, inner), dtype, 1 / 8),
    )

    weights, chosen = gp.nn.route(gp.from_numpy(logits), k, normalize=normalize)
    of, places, offsets = gp.nn.sort_by_expert(chosen, experts)
    rows = gp.take(gp.from_numpy(x), of, axis=0)
    inside = gp.nn.grouped_linear(rows, gp.from_numpy(up), offsets, gate="silu")
    made = gp.nn.grouped_linear(inside, gp.from_numpy(down), offsets)
    y = gp.nn.combine_experts(made, places, weights, residual=gp.from_numpy(x))

    share = np.exp(wide(logits))
    share /= share.sum(1, keepdims=True)
    order = np.argsort(-wide(logits), 1, kind="stable")[:, :k]
    np.testing.assert_array_equal(chosen.to_numpy(), order)
    expected = wide(x)
    for token in range(tokens):
        kept = share[token, order[token]]
        if normalize:
            kept /= kept.sum()
        for expert, part in zip(order[token], kept, strict=True):
            both = wide(up[expert]) @ wide(x[token])
            expected[token] += part * (wide(down[expert]) @ (silu(both[:inner]) * both[inner:]))
    assert y.dtype == dtype
    assert relative_norm(y.to_numpy(), expected) <= BOUNDS[dtype]
    np.testing.assert_array_equal(
        offsets.to_numpy(), np.searchsorted(np.sort(order.ravel()), range(experts + 1))
    )


def test_a_captured_layer_follows_its_offsets(rng):
    x, weight = draw(rng, (12, 32), "bfloat16"), draw(rng, (3, 16, 32), "bfloat16")
    rows, matrices = gp.from_numpy(x), gp.from_numpy(weight)
    offsets = gp.from_numpy(np.array([0, 4, 4, 12], np.int32))
    out = gp.empty((12, 16), "bfloat16")
    gp.nn.grouped_linear(rows, matrices, offsets, out=out)
    with gp.Graph() as graph:
        gp.nn.grouped_linear(rows, matrices, offsets, out=out)
    for split in ([0, 1, 7, 12], [0, 0, 12, 12]):
        offsets[...] = gp.from_numpy(np.array(split, np.int32))
        graph.launch()
        expected = np.concatenate(
            [wide(x[a:b]) @ wide(weight[e]).T for e, (a, b) in enumerate(itertools.pairwise(split))]
        )
        assert relative_norm(out.to_numpy(), expected) <= BOUNDS["bfloat16"]


def test_names_what_is_wrong():
    x, weight, offsets = gp.zeros((4, 16)), gp.zeros((2, 6, 16)), gp.zeros(3, "int32")
    with pytest.raises(ValueError, match="activation.*'tanh'"):
        gp.nn.gated_linear(x, weight[0], "tanh")
    with pytest.raises(ValueError, match="gate.*'relu'"):
        gp.nn.grouped_linear(x, weight, offsets, gate="relu")
    with pytest.raises(ValueError, match="even"):
        gp.nn.gated_linear(x, gp.zeros((7, 16)))
    with pytest.raises(ValueError, match="offsets"):
        gp.nn.grouped_linear(x, weight, offsets[:2])
    with pytest.raises(TypeError, match="offsets.*int32"):
        gp.nn.grouped_linear(x, weight, gp.zeros(3, "int64"))
    with pytest.raises(TypeError, match="weight.*float32"):
        gp.nn.grouped_linear(x, weight.astype("float16"), offsets)
    with pytest.raises(ValueError, match="k.*1 to 6"):
        gp.nn.route(gp.zeros((2, 6)), 7)
    with pytest.raises(ValueError, match="num_experts"):
        gp.nn.sort_by_expert(gp.zeros((2, 2), "int32"), 0)
    with pytest.raises(TypeError, match="places.*int32"):
        gp.nn.combine_experts(x, x, x)
