import numpy as np
import pytest

import pygpukit as gp
from support import np_dtype, relative_norm

FORMATS = [("int8", {}), ("int4", {"group": 64}), ("int4", {"zero_points": True}), ("fp8", {}), ("nvfp4", {})]


@pytest.mark.parametrize(("name", "options"), FORMATS)
def test_products_agree_with_the_dequantised_weight(name, options):
    rng = np.random.default_rng(1)
    weight = gp.asarray(rng.standard_normal((96, 256)).astype(np_dtype("bfloat16")))
    w = gp.nn.quantize(weight, name, **options)
    assert w.format == name
    assert w.shape == (96, 256)
    assert w.dtype is gp.bfloat16
    assert w.group == (options.get("group", 128) if name == "int4" else None)
    assert w.nbytes < weight.nbytes * 0.6
    assert name in repr(w)
    exact = w.dequantize(gp.float32).to_numpy().astype(np.float64)
    assert w.dequantize().dtype is gp.bfloat16
    for m in (1, 5, 16, 40):
        x = rng.standard_normal((m, 256)).astype(np_dtype("bfloat16"))
        bias = rng.standard_normal(96).astype(np_dtype("bfloat16"))
        y = gp.nn.linear(gp.asarray(x), w, gp.asarray(bias))
        expected = x.astype(np.float64) @ exact.T + bias.astype(np.float64)
        assert relative_norm(y.to_numpy(), expected) < 8e-3
    wide = gp.nn.linear(gp.asarray(x[:2]), w, dtype="float32")
    assert wide.dtype is gp.float32
    assert relative_norm(wide.to_numpy(), x[:2].astype(np.float64) @ exact.T) < 3e-6


@pytest.mark.parametrize("m", [1, 3, 40])
def test_results_go_where_they_are_asked_for(m):
    rng = np.random.default_rng(2)
    w = gp.nn.quantize(gp.asarray(rng.standard_normal((64, 64)).astype(np.float32)), "int8")
    x = gp.asarray(rng.standard_normal((m, 64)).astype(np.float32))
    bias = gp.asarray(rng.standard_normal(64).astype(np.float32))
    expected = gp.nn.linear(x, w, bias).to_numpy()
    own = gp.full((m, 64), np.nan, "float32")
    assert gp.nn.linear(x, w, bias, out=own) is not x
    np.testing.assert_array_equal(own.to_numpy(), expected)
    # With gaps between rows, with gaps between elements, and over an operand.
    for make in (
        lambda: gp.full((m, 80), np.nan, "float32")[:, 3:67],
        lambda: gp.full((m, 128), np.nan, "float32")[:, ::2],
        lambda: gp.full((64, m), np.nan, "float32").T,
    ):
        out = make()
        gp.nn.linear(x, w, bias, out=out)
        np.testing.assert_array_equal(out.to_numpy(), expected)
    over = gp.nn.linear(x, w, out=x)
    np.testing.assert_array_equal(x.to_numpy() + bias.to_numpy(), expected)
    np.testing.assert_array_equal(over.to_numpy(), x.to_numpy())
    with pytest.raises(gp.InvalidValueError, match="out"):
        gp.nn.linear(x, w, out=gp.empty((m, 63), "float32"))
    with pytest.raises(gp.InvalidTypeError, match="out"):
        gp.nn.linear(x, w, out=gp.empty((m, 64), "float16"))


def test_errors():
    weight = gp.asarray(np.zeros((4, 32), np.float32))
    with pytest.raises(gp.InvalidValueError, match="int4"):
        gp.nn.quantize(weight, "int5")
    with pytest.raises(gp.InvalidValueError, match="group"):
        gp.nn.quantize(weight, "int4", group=7)
    with pytest.raises(gp.InvalidTypeError):
        gp.nn.quantize(gp.asarray(np.zeros((4, 32), np.int32)), "int8")
    with pytest.raises(gp.InvalidValueError):
        gp.nn.linear(gp.asarray(np.zeros((2, 31), np.float32)), gp.nn.quantize(weight, "int8"))
