import math

import numpy as np
import pytest

import pygpukit as gp
from support import np_dtype

FLOATS = ["float16", "bfloat16", "float32"]
BOUND = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 4e-6}


def drawn(shape, dtype, seed=1, scale=1.0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * scale).astype(np_dtype(dtype))


def assert_near(actual, expected, dtype):
    a = actual.to_numpy().astype(np.float64)
    assert a.shape == expected.shape
    assert np.all(np.abs(a - expected) <= BOUND[dtype] * (1 + np.abs(expected)))


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def layer_norm(x, weight=1.0, bias=0.0, eps=1e-5):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps) * weight + bias


def rms_norm(x, weight=1.0, eps=1e-6):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(4,), (3, 100), (2, 3, 128), (5, 4096)])
def test_softmax(dtype, shape):
    a = drawn(shape, dtype, scale=3)
    for axis in range(-1, len(shape)):
        assert_near(gp.nn.softmax(gp.asarray(a), axis=axis), softmax(a.astype(np.float64), axis), dtype)
    assert_near(gp.nn.softmax(gp.asarray(a).T), softmax(a.astype(np.float64).T), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(7,), (3, 100), (2, 3, 128), (5, 4096), (300, 64)])
def test_norms(dtype, shape):
    a, w, b = drawn(shape, dtype), drawn(shape[-1], dtype, 2), drawn(shape[-1], dtype, 3)
    x, weight, bias = gp.asarray(a), gp.asarray(w), gp.asarray(b)
    wide, wide_w, wide_b = (v.astype(np.float64) for v in (a, w, b))
    assert_near(gp.nn.layer_norm(x, weight, bias), layer_norm(wide, wide_w, wide_b), dtype)
    assert_near(gp.nn.layer_norm(x, eps=0.1), layer_norm(wide, eps=0.1), dtype)
    assert_near(gp.nn.rms_norm(x, weight), rms_norm(wide, wide_w), dtype)
    assert_near(gp.nn.rms_norm(x, eps=0.1), rms_norm(wide, eps=0.1), dtype)
    out = gp.empty(shape, dtype=dtype)
    assert gp.nn.rms_norm(x, out=out).shape == shape
    assert_near(out, rms_norm(wide), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_residual_gives_the_sum_too(dtype):
    a, r = drawn((6, 200), dtype), drawn((6, 200), dtype, 2)
    total = (a.astype(np.float32) + r.astype(np.float32)).astype(np_dtype(dtype))
    x, residual = gp.asarray(a), gp.asarray(r)
    for norm, reference in ((gp.nn.layer_norm, layer_norm), (gp.nn.rms_norm, rms_norm)):
        y, added = norm(x, residual=residual)
        np.testing.assert_array_equal(added.to_numpy(), total)
        np.testing.assert_array_equal(residual.to_numpy(), r)
        assert_near(y, reference(total.astype(np.float64)), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(5,), (3, 64), (2, 7, 33)])
def test_gated(dtype, shape):
    g, u = drawn(shape, dtype, scale=3), drawn(shape, dtype, 2)
    gate, up = gp.asarray(g), gp.asarray(u)
    wide, wide_up = g.astype(np.float64), u.astype(np.float64)
    gelu = wide * np.vectorize(lambda v: math.erfc(-v / math.sqrt(2)) / 2)(wide)
    gelu_tanh = wide / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    both = gp.asarray(np.concatenate([g, u], axis=-1))
    for function, expected in (
        (gp.nn.swiglu, wide / (1 + np.exp(-wide)) * wide_up),
        (gp.nn.geglu, gelu * wide_up),
        (lambda *x: gp.nn.geglu(*x, approximate="tanh"), gelu_tanh * wide_up),
    ):
        assert_near(function(gate, up), expected, dtype)
        assert_near(function(both), expected, dtype)


def test_nothing():
    for shape in [(0, 4), (3, 0)]:
        x = gp.empty(shape)
        assert gp.nn.softmax(x).shape == shape
        assert gp.nn.layer_norm(x).shape == shape
        assert gp.nn.rms_norm(x).shape == shape
        assert gp.nn.swiglu(x, x).shape == shape


def test_what_does_not_fit():
    x = gp.zeros((2, 4))
    with pytest.raises(TypeError, match="softmax"):
        gp.nn.softmax(gp.ones(3, dtype="int32"))
    with pytest.raises(IndexError, match="softmax"):
        gp.nn.softmax(x, axis=2)
    with pytest.raises(ValueError, match="weight"):
        gp.nn.rms_norm(x, gp.ones(3))
    with pytest.raises(TypeError, match="bias"):
        gp.nn.layer_norm(x, None, gp.ones(4, dtype="float16"))
    with pytest.raises(ValueError, match="eps"):
        gp.nn.layer_norm(x, eps=float("nan"))
    with pytest.raises(ValueError, match="residual"):
        gp.nn.layer_norm(x, residual=gp.ones((4, 2)))
    with pytest.raises(ValueError, match="approximate"):
        gp.nn.geglu(x, approximate="erf")
    with pytest.raises(ValueError, match="gate_up"):
        gp.nn.swiglu(gp.ones((2, 3)))
    with pytest.raises(TypeError):
        gp.nn.softmax(np.zeros(3, np.float32))
    assert gp.nn.gelu is gp.gelu
