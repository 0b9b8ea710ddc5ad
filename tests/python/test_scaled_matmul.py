import numpy as np
import pytest

import pygpukit as gp
from support import np_dtype, relative_norm

# The result's rounding, and sums of all of k by tensor cores that keep 14 bits of each.
BOUNDS = {"bfloat16": 5e-3, "float16": 3e-3, "float32": 2.5e-3}


def draw(rng, shape, dtype):
    return rng.standard_normal(shape).astype(np_dtype(dtype))


def spread(scale, shape):
    """Each scale over the block of 128 that it is of."""
    return np.repeat(np.repeat(scale, 128, axis=0), 128, axis=1)[: shape[0], : shape[1]]


@pytest.mark.parametrize("result", BOUNDS)
@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2"])
@pytest.mark.parametrize("how", ["one", "rows", "blocks"])
def test_against_float64(rng, how, dtype, result):
    m, n, k = 70, 136, 400
    a, weight = draw(rng, (m, k), dtype), draw(rng, (n, k), dtype)
    shapes = {"one": ((), ()), "rows": ((m, 1), (1, n)), "blocks": ((m, 4), (4, 2))}[how]
    scale_a, scale_b = (np.exp(rng.standard_normal(shape)).astype(np.float32) for shape in shapes)
    c = gp.nn.scaled_matmul(
        gp.from_numpy(a),
        gp.from_numpy(weight).T,
        gp.from_numpy(np.asarray(scale_a)),
        gp.from_numpy(np.asarray(scale_b)),
        dtype=result,
    )
    wide_a, wide_b = a.astype(np.float64), weight.astype(np.float64).T
    if how == "blocks":
        expected = (wide_a * np.repeat(scale_a, 128, axis=1)[:, :k]) @ (wide_b * spread(scale_b, (k, n)))
    else:
        expected = (wide_a * scale_a) @ (wide_b * scale_b)
    assert c.dtype == result
    assert relative_norm(c.to_numpy(), expected) <= BOUNDS[result]


def test_names_what_is_wrong():
    x = gp.zeros((4, 16), dtype="float8_e4m3")
    one = gp.ones(())
    with pytest.raises(TypeError, match="'a'"):
        gp.nn.scaled_matmul(gp.zeros((4, 16)), x.T, one, one)
    with pytest.raises(ValueError, match="scale_a"):
        gp.nn.scaled_matmul(x, x.T, gp.ones(3), one)
    with pytest.raises(TypeError, match="dtype"):
        gp.nn.scaled_matmul(x, x.T, one, one, dtype="float64")
