import math

import numpy as np
import pytest

import pygpukit as gp
from support import np_dtype, relative_norm

# Against float64, of inputs of the dtype: the rounding of the result, of every step where there is no kernel
# that does them all, and of sums in float32.
BOUNDS = {"float32": 3e-6, "float16": 2e-3, "bfloat16": 1.2e-2}


def relu(x):
    return np.maximum(x, 0)


def gelu(x):
    return 0.5 * x * (1 + np.reshape([math.erf(each / math.sqrt(2)) for each in np.ravel(x)], np.shape(x)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def silu(x):
    return x / (1 + np.exp(-x))


ACTIVATIONS = {None: lambda x: x, "relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu}


def draw(rng, shape, dtype):
    return rng.standard_normal(shape).astype(np_dtype(dtype))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (130,), (2, 0)])
def test_against_float64(rng, lead, activation, dtype):
    x, weight = draw(rng, (*lead, 72), dtype), draw(rng, (40, 72), dtype)
    bias, residual = draw(rng, (40,), dtype), draw(rng, (*lead, 40), dtype)
    y = gp.nn.linear(
        gp.from_numpy(x),
        gp.from_numpy(weight),
        gp.from_numpy(bias),
        activation,
        gp.from_numpy(residual),
        scale=0.25,
    )
    wide = [values.astype(np.float64) for values in (x, weight, bias, residual)]
    expected = ACTIVATIONS[activation](0.25 * (wide[0] @ wide[1].T) + wide[2]) + wide[3]
    assert y.dtype == dtype
    assert y.shape == expected.shape
    assert relative_norm(y.to_numpy(), expected) <= BOUNDS[dtype]


def test_out_may_be_the_residual(rng):
    x, weight = draw(rng, (9, 64), "bfloat16"), draw(rng, (48, 64), "bfloat16")
    stream = draw(rng, (9, 48), "bfloat16")
    out = gp.from_numpy(stream)
    assert gp.nn.linear(gp.from_numpy(x), gp.from_numpy(weight), residual=out, out=out) is not None
    expected = x.astype(np.float64) @ weight.astype(np.float64).T + stream.astype(np.float64)
    assert relative_norm(out.to_numpy(), expected) <= BOUNDS["bfloat16"]


@pytest.mark.parametrize("rows", [1, 16, 20])
def test_float32_of_16_bit_weights(rng, rows):
    x, weight = draw(rng, (rows, 128), "bfloat16"), draw(rng, (300, 128), "bfloat16")
    y = gp.nn.linear(gp.from_numpy(x), gp.from_numpy(weight), dtype="float32")
    assert y.dtype == "float32"
    assert relative_norm(y.to_numpy(), x.astype(np.float64) @ weight.astype(np.float64).T) <= 1e-6
    with pytest.raises(TypeError, match="dtype"):
        gp.nn.linear(gp.from_numpy(x), gp.from_numpy(weight), dtype="float16")


def test_one_residual_for_all_rows(rng):
    x, weight = draw(rng, (3, 7, 16), "float32"), draw(rng, (8, 16), "float32")
    residual = draw(rng, (8,), "float32")
    y = gp.nn.linear(gp.from_numpy(x), gp.from_numpy(weight), residual=gp.from_numpy(residual))
    assert relative_norm(y.to_numpy(), x.astype(np.float64) @ weight.T + residual) <= BOUNDS["float32"]


def test_names_what_is_wrong(rng):
    x, weight = gp.zeros((3, 16)), gp.zeros((8, 16))
    with pytest.raises(ValueError, match="activation.*'tanh'"):
        gp.nn.linear(x, weight, activation="tanh")
    with pytest.raises(ValueError, match="bias"):
        gp.nn.linear(x, weight, gp.zeros(7))
    with pytest.raises(ValueError, match="shape"):
        gp.nn.linear(x, weight, residual=gp.zeros((2, 8)))
    with pytest.raises(ValueError, match="weight"):
        gp.nn.linear(x, gp.zeros(16))
    with pytest.raises(ValueError, match="16"):
        gp.nn.linear(x, gp.zeros((8, 15)))
    with pytest.raises(TypeError, match="out"):
        gp.nn.linear(x, weight, out=gp.zeros((3, 8), dtype="float16"))


@pytest.mark.parametrize(
    ("dtype", "wide", "bound"),
    [("bfloat16", "float32", 2e-6), ("float16", "float32", 2e-6), ("int8", "int32", 0)],
)
def test_matmul_to_a_wider_dtype(rng, dtype, wide, bound):
    if dtype == "int8":
        a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((33, 520), (520, 48)))
    else:
        a, b = draw(rng, (33, 520), dtype), draw(rng, (520, 48), dtype)
    c = gp.matmul(gp.from_numpy(a), gp.from_numpy(b), dtype=wide)
    assert c.dtype == wide
    expected = a.astype(np.float64) @ b.astype(np.float64)
    assert relative_norm(c.to_numpy().astype(np.float64), expected) <= bound


def test_matmul_to_a_dtype_that_cannot_hold_it():
    with pytest.raises(TypeError, match="dtype"):
        gp.matmul(gp.zeros((2, 2)), gp.zeros((2, 2)), dtype="float16")
