"""Long short-term memory, against the formula in float64."""

import numpy as np
import pytest

import pygpukit as gp
from support import np_dtype, relative_norm

# An error stays in the state, and the sums of 16 bits are rounded at each step.
BOUNDS = {"float32": 5e-6, "float16": 3e-3, "bfloat16": 2e-2}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def reference(x, weight_ih, weight_hh, bias_ih=None, bias_hh=None, h=None, c=None, reverse=False):
    wide = [None if each is None else each.astype(np.float64) for each in (bias_ih, bias_hh, h, c)]
    bias = sum(each for each in wide[:2] if each is not None)
    steps, batch, _ = x.shape
    hidden = weight_hh.shape[1]
    h, c = (np.zeros((batch, hidden)) if each is None else each for each in wide[2:])
    output = np.zeros((steps, batch, hidden))
    for t in range(steps)[:: -1 if reverse else 1]:
        gates = x[t].astype(np.float64) @ weight_ih.astype(np.float64).T + bias
        i, f, g, o = np.split(gates + h @ weight_hh.astype(np.float64).T, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        output[t] = h
    return output, h, c


def draw(rng, dtype, steps, batch, inputs, hidden):
    def normal(*shape, scale=1.0):
        return (rng.standard_normal(shape) * scale).astype(np_dtype(dtype))

    return {
        "x": normal(steps, batch, inputs),
        "weight_ih": normal(4 * hidden, inputs, scale=inputs**-0.5),
        "weight_hh": normal(4 * hidden, hidden, scale=hidden**-0.5),
        "bias_ih": normal(4 * hidden),
        "bias_hh": normal(4 * hidden),
        "h": normal(batch, hidden, scale=0.5),
        "c": normal(batch, hidden),
    }


def run(arrays, **more):
    return gp.nn.lstm(**{name: gp.from_numpy(each) for name, each in arrays.items()}, **more)


def assert_close(results, expected, bound):
    for result, exact in zip(results, expected, strict=True):
        assert relative_norm(result.to_numpy(), exact) <= bound


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(
    ("batch", "hidden"),
    [(1, 64), (1, 33), (7, 40), (8, 64), (11, 128), (16, 30), (17, 64), (40, 24), (70, 32)],
)
def test_lstm(rng, dtype, batch, hidden):
    arrays = draw(rng, dtype, 9, batch, 20, hidden)
    results = run(arrays)
    assert [each.shape for each in results] == [(9, batch, hidden), (batch, hidden), (batch, hidden)]
    assert {str(each.dtype) for each in results} == {dtype}
    assert_close(results, reference(**arrays), BOUNDS[dtype])
    assert_close(run(arrays, reverse=True), reference(**arrays, reverse=True), BOUNDS[dtype])


def test_without_biases_and_state(rng):
    arrays = draw(rng, "float32", 5, 3, 8, 16)
    for name in ("bias_ih", "bias_hh", "h", "c"):
        del arrays[name]
        assert_close(run(arrays), reference(**arrays), BOUNDS["float32"])


def test_without_a_batch(rng):
    arrays = draw(rng, "float32", 6, 1, 8, 16)
    single = {**arrays, "x": arrays["x"][:, 0], "h": arrays["h"][0], "c": arrays["c"][0]}
    results = run(single)
    assert [each.shape for each in results] == [(6, 16), (16,), (16,)]
    assert_close(results, [arrays_of[..., 0, :] for arrays_of in reference(**arrays)], BOUNDS["float32"])


def test_views(rng):
    arrays = draw(rng, "float32", 5, 4, 8, 16)
    views = {name: gp.from_numpy(np.ascontiguousarray(each.T)).T for name, each in arrays.items()}
    assert_close(gp.nn.lstm(**views), reference(**arrays), BOUNDS["float32"])


def test_a_long_sequence_keeps_its_state(rng):
    arrays = draw(rng, "float32", 300, 2, 4, 8)
    whole = run(arrays)
    x = gp.from_numpy(arrays["x"])
    weights = [gp.from_numpy(arrays[n]) for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    _, h, c = gp.nn.lstm(x[:120], *weights, h=gp.from_numpy(arrays["h"]), c=gp.from_numpy(arrays["c"]))
    output, h, c = gp.nn.lstm(x[120:], *weights, h=h, c=c)
    np.testing.assert_array_equal(output.to_numpy(), whole[0][120:].to_numpy())
    np.testing.assert_array_equal(c.to_numpy(), whole[2].to_numpy())
    assert_close([h], reference(**arrays)[1:2], 2e-5)


def test_in_a_graph(rng):
    arrays = draw(rng, "float32", 7, 2, 8, 16)
    device = {name: gp.from_numpy(each) for name, each in arrays.items()}
    graph = gp.Graph()
    with graph:
        results = gp.nn.lstm(**device)
    graph.launch()
    assert_close(results, reference(**arrays), BOUNDS["float32"])


def test_empty():
    weights = gp.ones((16, 3)), gp.ones((16, 4))
    output, h, c = gp.nn.lstm(gp.ones((0, 2, 3)), *weights, h=gp.ones((2, 4)))
    assert (output.shape, h.tolist(), c.tolist()) == ((0, 2, 4), [[1.0] * 4] * 2, [[0.0] * 4] * 2)
    output, h, c = gp.nn.lstm(gp.ones((5, 0, 3)), *weights)
    assert (output.shape, h.shape, c.shape) == ((5, 0, 4), (0, 4), (0, 4))
    assert gp.nn.lstm(gp.ones((5, 2, 3)), gp.ones((0, 3)), gp.ones((0, 0)))[0].shape == (5, 2, 0)


@pytest.mark.parametrize(
    ("changed", "shape"),
    [
        ("x", (4,)),
        ("x", (5, 2, 4)),
        ("weight_ih", (12, 3)),
        ("weight_hh", (15, 4)),
        ("weight_hh", (16,)),
        ("bias_ih", (4,)),
        ("bias_hh", (16, 1)),
        ("h", (4,)),
        ("c", (3, 4)),
    ],
)
def test_what_does_not_fit_is_named(changed, shape):
    shapes = {"x": (5, 2, 3), "weight_ih": (16, 3), "weight_hh": (16, 4), "bias_ih": (16,), "bias_hh": (16,)}
    arrays = {name: gp.ones(each) for name, each in {**shapes, changed: shape}.items()}
    argument = "weight_ih" if shape == (5, 2, 4) else changed
    with pytest.raises(gp.InvalidValueError, match=f"lstm.*'{argument}'"):
        gp.nn.lstm(**arrays)


def test_dtypes():
    x, weights = gp.ones((5, 2, 3)), (gp.ones((16, 3)), gp.ones((16, 4)))
    with pytest.raises(gp.InvalidTypeError, match="lstm.*'x'"):
        gp.nn.lstm(x.astype("float64"), *weights)
    with pytest.raises(gp.InvalidTypeError, match="lstm.*'weight_hh'"):
        gp.nn.lstm(x, weights[0], weights[1].astype("float16"))
