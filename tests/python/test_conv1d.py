"""Convolution along a sequence, against a float64 sum of windows."""

import numpy as np
import pytest

import pygpukit as gp
from support import np_dtype, relative_norm

BOUNDS = {"float32": 2e-6, "float16": 6e-4, "bfloat16": 5e-3}


def reference(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    batch, channels, length = x.shape
    outputs, inner, taps = weight.shape
    padded = np.zeros((batch, channels, length + 2 * padding))
    padded[:, :, padding : padding + length] = x
    positions = (length + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
    y = np.zeros((batch, outputs, positions))
    for o in range(outputs):
        first = o // (outputs // groups) * inner
        for t in range(taps):
            begin = t * dilation
            window = padded[:, first : first + inner, begin : begin + (positions - 1) * stride + 1 : stride]
            y[:, o] += np.einsum("bcl,c->bl", window, weight[o, :, t])
    return y if bias is None else y + bias.astype(np.float64)[:, None]


CASES = {
    "one tap": ((2, 40, 33), (24, 40, 1), {}),
    "whisper's first": ((1, 80, 60), (48, 80, 3), {"padding": 1}),
    "whisper's second": ((2, 48, 61), (32, 48, 3), {"padding": 1, "stride": 2}),
    "dilated": ((2, 16, 70), (8, 16, 5), {"dilation": 3, "padding": 6}),
    "groups": ((3, 32, 40), (16, 16, 4), {"groups": 2, "stride": 3}),
    "depthwise": ((2, 24, 50), (24, 1, 7), {"groups": 24, "padding": 3}),
    "depthwise, twice as many": ((2, 6, 50), (12, 1, 3), {"groups": 6, "dilation": 2}),
    "few channels": ((2, 3, 500), (5, 3, 4), {"stride": 5, "padding": 9}),
    "one position": ((2, 20, 9), (16, 20, 9), {}),
    "padding alone": ((1, 4, 1), (16, 4, 9), {"padding": 4}),
    "stride beyond": ((1, 40, 10), (8, 40, 1), {"stride": 100}),
}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", CASES)
def test_conv1d(rng, name, dtype):
    shape, weight_shape, settings = CASES[name]
    x = rng.standard_normal(shape).astype(np_dtype(dtype))
    weight = rng.standard_normal(weight_shape).astype(np_dtype(dtype))
    bias = rng.standard_normal(weight_shape[0]).astype(np_dtype(dtype))
    arrays = [gp.from_numpy(each) for each in (x, weight, bias)]
    y = gp.nn.conv1d(*arrays, **settings)
    assert str(y.dtype) == dtype
    expected = reference(x, weight, bias, **settings)
    # The bias is added to a rounded sum where a product makes it.
    assert relative_norm(y.to_numpy(), expected) <= 1.5 * BOUNDS[dtype]
    plain = gp.nn.conv1d(*arrays[:2], **settings)
    assert relative_norm(plain.to_numpy(), reference(x, weight, **settings)) <= BOUNDS[dtype]
    single = gp.nn.conv1d(arrays[0][0], arrays[1], **settings)
    assert single.shape == plain.shape[1:]
    assert relative_norm(single.to_numpy(), reference(x[:1], weight, **settings)[0]) <= BOUNDS[dtype]


@pytest.mark.parametrize("name", ["whisper's first", "depthwise"])
def test_views(rng, name):
    shape, weight_shape, settings = CASES[name]
    x = rng.standard_normal((shape[2], 2 * shape[1], shape[0])).astype(np.float32)
    weight = rng.standard_normal((weight_shape[2], weight_shape[1], 2 * weight_shape[0])).astype(np.float32)
    view = gp.from_numpy(x).transpose(2, 1, 0)[:, ::-2]
    turned = gp.from_numpy(weight).transpose(2, 1, 0)[1::2]
    y = gp.nn.conv1d(view, turned, **settings)
    expected = reference(x.transpose(2, 1, 0)[:, ::-2], weight.transpose(2, 1, 0)[1::2], **settings)
    assert relative_norm(y.to_numpy(), expected) <= BOUNDS["float32"]


def test_empty():
    assert gp.nn.conv1d(gp.ones((0, 4, 9)), gp.ones((5, 4, 3))).shape == (0, 5, 7)
    assert gp.nn.conv1d(gp.ones((2, 4, 9)), gp.ones((0, 4, 3))).shape == (2, 0, 7)
    y = gp.nn.conv1d(gp.ones((2, 0, 9)), gp.ones((5, 0, 3)), gp.full(5, 2.0, "float32"))
    assert y.tolist() == [[[2.0] * 7] * 5] * 2
    assert gp.nn.conv1d(gp.ones((1, 4, 0)), gp.ones((5, 4, 3)), padding=2).tolist() == [[[0.0] * 2] * 5]


@pytest.mark.parametrize(
    ("shapes", "settings", "complaint"),
    [
        (((4,), (5, 4, 3)), {}, "'x'"),
        (((1, 2, 4, 9), (5, 4, 3)), {}, "'x'"),
        (((2, 4, 9), (5, 3, 3)), {}, "'weight'"),
        (((2, 4, 9), (5, 4)), {}, "'weight'"),
        (((2, 4, 9), (5, 4, 0)), {}, "'weight'"),
        (((2, 4, 9), (5, 4, 10)), {}, "'weight'.*reach"),
        (((2, 4, 9), (5, 4, 3)), {"dilation": 5}, "'weight'.*reach"),
        (((2, 4, 9), (5, 4, 3)), {"stride": 0}, "'stride'"),
        (((2, 4, 9), (5, 4, 3)), {"stride": 1 << 40}, "'stride'"),
        (((2, 4, 9), (5, 4, 3)), {"padding": -1}, "'padding'"),
        (((2, 4, 9), (5, 4, 3)), {"dilation": 1 << 62}, "'dilation'"),
        (((2, 4, 9), (5, 4, 3)), {"groups": 3}, "'groups'"),
        (((2, 4, 9), (5, 2, 3)), {"groups": 2}, "'weight'"),
        (((2, 4, 9), (5, 4, 3), (4,)), {}, "'bias'"),
    ],
)
def test_what_does_not_fit_is_named(shapes, settings, complaint):
    with pytest.raises(gp.InvalidValueError, match=f"conv1d.*{complaint}"):
        gp.nn.conv1d(*(gp.ones(shape) for shape in shapes), **settings)


def test_dtypes():
    x, weight = gp.ones((2, 4, 9)), gp.ones((5, 4, 3))
    for dtype in ("float64", "int32", "float8_e4m3"):
        with pytest.raises(gp.InvalidTypeError, match="conv1d.*'x'"):
            gp.nn.conv1d(x.astype(dtype), weight.astype(dtype))
    with pytest.raises(gp.InvalidTypeError, match="conv1d.*'weight'"):
        gp.nn.conv1d(x, weight.astype("bfloat16"))
