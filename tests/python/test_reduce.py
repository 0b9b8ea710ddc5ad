import math
import warnings

import numpy as np
import pytest

import pygpukit as gp
from support import (
    ARITHMETIC,
    FLOAT8,
    FLOATS,
    INTEGERS,
    LAYOUTS,
    assert_equal,
    np_dtype,
    pair,
    random_array,
    ulps,
)

REDUCTIONS = ["sum", "mean", "max", "min", "prod", "any", "all"]
AXES = [None, 0, 1, -1, (0, 1), (1, 0), ()]


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's: mean of nothing
        yield


def reference(name, a, axis, keepdims=False):
    """In float64 for floats; NumPy's own for the rest."""
    wide = a.astype(np.float64) if a.dtype.kind not in "biu" else a
    return getattr(np, name)(wide, axis=axis, keepdims=keepdims)


def check(name, actual, a, expected):
    if a.dtype.kind in "biu" or name in ("max", "min", "any", "all"):
        if a.dtype.kind not in "biu" and name in ("max", "min"):
            expected = np.asarray(expected).astype(a.dtype)
        if name == "mean":
            assert actual.dtype == gp.float64
            np.testing.assert_allclose(actual.to_numpy(), expected, rtol=1e-14, atol=1e-14)
        else:
            assert_equal(actual, expected)
        return
    # Small sums of small numbers: the accumulation in float32 or float64 loses next to nothing, and
    # the rounding to the dtype is what is left.
    host = actual.to_numpy()
    assert host.dtype == a.dtype
    assert host.shape == np.shape(expected)
    scale = np.abs(a.astype(np.float64)).sum() if name != "prod" else 0
    slack = {"float16": 1, "bfloat16": 1, "float32": 4, "float64": 4}[host.dtype.name]
    error = ulps(host, expected)
    close = np.abs(host.astype(np.float64) - expected) <= scale * 1e-6
    assert (np.asarray(error <= slack) | close).all()


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("dtype", ARITHMETIC)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_against_numpy(rng, name, dtype, layout):
    limits = {"low": -2, "high": 2} if name == "prod" else {}
    a, x = pair(rng, layout, dtype, **limits)
    for axis in AXES:
        axes = axis if isinstance(axis, tuple) else () if axis is None else (axis,)
        if any(not -a.ndim <= i < a.ndim for i in axes):
            with pytest.raises(gp.OutOfBoundsError):
                getattr(gp, name)(x, axis=axis)
            continue
        try:
            expected = reference(name, a, axis)
        except ValueError:
            with pytest.raises(gp.InvalidValueError, match=name):
                getattr(gp, name)(x, axis=axis)
            continue
        check(name, getattr(gp, name)(x, axis=axis), a, expected)
        check(name, getattr(x, name)(axis, keepdims=True), a, reference(name, a, axis, True))


@pytest.mark.parametrize("dtype", [d for d in ARITHMETIC if d != "bfloat16"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_result_dtypes_are_numpys(name, dtype):
    assert (
        getattr(gp, name)(gp.ones((2, 2), dtype)).dtype
        == getattr(np, name)(np.ones((2, 2), dtype)).dtype.name
    )


@pytest.mark.parametrize("axis", [0, 1, 2, 3, (0, 2), (1, 3), (0, 1, 3), (1, 2), (3, 0), None, (-1, -2)])
def test_many_axes(rng, axis):
    a = rng.integers(-100, 100, (3, 5, 4, 7))
    x = gp.from_numpy(a)
    for view, mine in [(a, x), (a.transpose(2, 0, 3, 1), x.transpose(2, 0, 3, 1)), (a[:, ::-2], x[:, ::-2])]:
        assert_equal(gp.sum(mine, axis), view.sum(axis))
        assert_equal(gp.max(mine, axis=axis, keepdims=True), view.max(axis, keepdims=True))


@pytest.mark.parametrize(
    "shape", [(1, 100_003), (100_003, 1), (317, 411), (3, 70_001), (70_001, 3), (2_000_003,), (65, 33, 129)]
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "float64", "bfloat16"])
def test_large(rng, shape, dtype):
    a = (
        rng.standard_normal(shape).astype(np_dtype(dtype))
        if dtype in FLOATS
        else rng.integers(-1000, 1000, shape, dtype)
    )
    x = gp.from_numpy(a)
    wide = a.astype(np.float64) if dtype in FLOATS else a
    for axis in (None, 0, -1):
        total = gp.sum(x, axis).to_numpy()
        exact = wide.sum(axis)
        if dtype not in FLOATS:
            np.testing.assert_array_equal(total, exact)
        else:
            # The worst of any order of adding, had each step lost half an ulp of the running sum: far
            # above what pairwise or blocked sums lose, far below a sum in 16 bits.
            magnitude = np.abs(wide).sum(axis)
            accumulate = {"float64": 2.0**-53}.get(dtype, 2.0**-24)
            bound = 64 * accumulate * magnitude + np.abs(exact) * {
                "float16": 2.0**-11,
                "bfloat16": 2.0**-8,
            }.get(dtype, 0)
            assert (np.abs(total.astype(np.float64) - exact) <= bound + 1e-7).all()
        assert_equal(gp.max(x, axis), a.max(axis), dtype)
        assert_equal(gp.argmin(x, axis), a.argmin(axis))


def test_float32_sums_do_not_drift():
    count = 20_000_000
    assert gp.sum(gp.full(count, 0.1)).item() == pytest.approx(count * float(np.float32(0.1)), rel=1e-6)


def test_small_integers_widen():
    assert gp.sum(gp.full(1000, 127, "int8")).item() == 127_000
    assert gp.sum(gp.full(10, 2**63, "uint64")).item() == (10 * 2**63) % 2**64
    assert gp.sum(gp.ones(300, "bool")).item() == 300
    assert gp.prod(gp.full(5, 100, "uint8")).item() == 10**10
    assert gp.sum(gp.ones(3, "uint8")).dtype == gp.uint64


def test_float16_accumulates_in_float32():
    assert gp.sum(gp.ones(4096, "float16") * 2).item() == 8192
    assert gp.mean(gp.full(100_000, 100, "float16")).item() == 100


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_and_infinities(dtype):
    a = np.array([[1, np.nan, 3], [np.inf, 2, -np.inf], [4, 5, 6]], np_dtype(dtype))
    x = gp.from_numpy(a)
    for name in REDUCTIONS:
        for axis in (None, 0, 1):
            expected = reference(name, a, axis)
            np.testing.assert_array_equal(
                getattr(gp, name)(x, axis).to_numpy().astype(float), expected, err_msg=name
            )
    for name in ("argmax", "argmin"):
        for axis in (None, 0, 1):
            assert_equal(getattr(gp, name)(x, axis), getattr(np, name)(a.astype(float), axis))


@pytest.mark.parametrize("layout", [name for name in sorted(LAYOUTS) if name != "empty"])
@pytest.mark.parametrize("dtype", ARITHMETIC)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_arg_reductions(rng, name, dtype, layout):
    a, x = pair(rng, layout, dtype)  # many ties: the first one counts
    for axis in [None, *range(-a.ndim, a.ndim)]:
        assert_equal(getattr(gp, name)(x, axis), np.asarray(getattr(np, name)(a, axis)))
        assert_equal(
            getattr(x, name)(axis, keepdims=True), np.asarray(getattr(np, name)(a, axis, keepdims=True))
        )


def test_arg_reductions_of_many(rng):
    for size in (1, 31, 1024, 100_001):
        a = rng.integers(0, 50, size)
        assert gp.argmax(gp.from_numpy(a)).item() == a.argmax()
        assert gp.argmin(gp.from_numpy(a)).item() == a.argmin()


@pytest.mark.parametrize("axis", [None, 0, 1, 2, (0, 2), (1, 2), ()])
def test_var_and_std(rng, axis):
    a = rng.standard_normal((5, 6, 7)).astype(np.float32) + 3
    x = gp.asarray(a)
    for correction in (0, 1):
        for keepdims in (False, True):
            if axis == () and (correction or keepdims):
                continue  # nothing is left to divide by; NumPy's shapes are those of the array
            options = {"axis": axis, "keepdims": keepdims}
            var, std = np.var(a, ddof=correction, **options), np.std(a, ddof=correction, **options)
            np.testing.assert_allclose(gp.var(x, correction=correction, **options).to_numpy(), var, rtol=2e-6)
            np.testing.assert_allclose(x.std(correction=correction, **options).to_numpy(), std, rtol=2e-6)
    assert gp.var(gp.asarray(np.arange(5))).item() == 2.0
    with pytest.raises(gp.InvalidTypeError):
        gp.std(gp.zeros(3, "float8_e4m3"))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)])
def test_nothing(shape):
    a, x = np.zeros(shape, np.float32), gp.zeros(shape)
    for axis in [None, *range(len(shape))]:
        for name in ("sum", "prod", "any", "all", "mean"):
            assert_equal(getattr(gp, name)(x, axis), getattr(np, name)(a, axis))
        for name in ("max", "min", "argmax", "argmin"):
            try:
                expected = getattr(np, name)(a, axis)
            except ValueError:
                with pytest.raises(gp.InvalidValueError, match=name):
                    getattr(gp, name)(x, axis)
            else:
                assert_equal(getattr(gp, name)(x, axis), expected)


def test_axes_that_are_not_there():
    x = gp.zeros((2, 3))
    for axis in (2, -3, (0, 2)):
        with pytest.raises(gp.OutOfBoundsError, match="sum"):
            gp.sum(x, axis)
    with pytest.raises(gp.InvalidValueError, match="each axis once"):
        gp.sum(x, (0, -2))
    with pytest.raises(gp.InvalidTypeError, match="argmax: argument 'axis'"):
        gp.argmax(x, (0, 1))
    with pytest.raises(gp.InvalidTypeError):
        gp.sum(x, 1.5)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_has_no_arithmetic(dtype):
    for name in [*REDUCTIONS, "argmax"]:
        with pytest.raises(gp.InvalidTypeError, match=name):
            getattr(gp, name)(gp.ones(3, dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_extremes_of_integers(dtype):
    info = np.iinfo(dtype)
    a = np.array([info.min, 0, info.max], dtype)
    assert gp.max(gp.from_numpy(a)).item() == info.max
    assert gp.min(gp.from_numpy(a)).item() == info.min
    assert gp.mean(gp.full(4, int(info.max), dtype)).item() == pytest.approx(float(info.max))


def test_mean_is_correctly_scaled(rng):
    a = random_array(rng, (37, 53), "float64")
    assert gp.mean(gp.from_numpy(a)).item() == pytest.approx(math.fsum(a.ravel()) / a.size, rel=1e-14)
