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
    assert_within_ulps,
    np_dtype,
    pair,
    random_array,
)

EVERYWHERE = (-30.0, 30.0)
# name: (range of x, largest error in ulps of the result). CUDA's documented errors, one more where a
# 16-bit result rounds a second time.
FUNCTIONS = {
    "sqrt": ((0, 1e4), 1),
    "rsqrt": ((1e-3, 1e4), 2.5),
    "cbrt": (EVERYWHERE, 4),
    "exp": ((-10, 10), 2.5),
    "exp2": ((-14, 14), 2.5),
    "expm1": ((-5, 10), 2.5),
    "log": ((1e-3, 1e4), 2.5),
    "log2": ((1e-3, 1e4), 2.5),
    "log10": ((1e-3, 1e4), 3),
    "log1p": ((-0.9, 1e4), 2.5),
    "sin": (EVERYWHERE, 3),
    "cos": (EVERYWHERE, 3),
    "tan": (EVERYWHERE, 5),
    "arcsin": ((-1, 1), 4),
    "arccos": ((-1, 1), 4),
    "arctan": (EVERYWHERE, 3),
    "sinh": ((-10, 10), 4),
    "cosh": ((-10, 10), 3),
    "tanh": ((-10, 10), 3),
    "arcsinh": (EVERYWHERE, 4),
    "arccosh": ((1, 1e4), 5),
    "arctanh": ((-0.99, 0.99), 4),
    "reciprocal": ((0.01, 1e3), 1),
    "square": ((-100, 100), 1),
    "erf": ((-5, 5), 3),
    "sigmoid": ((-10, 10), 4),
    "silu": ((-10, 10), 5),
    "gelu": ((-5, 5), 32),  # erfc near the tail: its argument's rounding counts times x^2
    "gelu_tanh": ((-4, 4), 40),  # the same through exp(2u)
}


def _erf(x):
    import math

    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _erfc(x):
    import math

    return np.vectorize(math.erfc, otypes=[np.float64])(x)


EXACT = {
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": _erf,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.where(x > 0, x, np.where(np.isnan(x), x, 0)),
    "gelu": lambda x: 0.5 * x * _erfc(-x * np.sqrt(0.5)),
    "gelu_tanh": lambda x: x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}
# Exact in every dtype that they take.
SIMPLE = [
    "negative",
    "absolute",
    "sign",
    "floor",
    "ceil",
    "trunc",
    "isnan",
    "isinf",
    "isfinite",
    "logical_not",
]


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def exact_function(name):
    return EXACT.get(name) or getattr(np, name)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_error_against_float64(rng, name, dtype):
    (low, high), limit = FUNCTIONS[name]
    x = rng.uniform(low, high, 4001).astype(np_dtype(dtype))
    x = np.clip(x, np_dtype(dtype).type(low), np_dtype(dtype).type(high)).astype(np_dtype(dtype))
    wide = x.astype(np.longdouble if dtype == "float64" and name not in EXACT else np.float64)
    exact = exact_function(name)(wide)
    if dtype == "float64" and name in ("erf", "gelu", "gelu_tanh", "sigmoid", "silu"):
        limit = max(limit, 8)  # the reference is in float64 itself
    actual = getattr(gp, name)(gp.from_numpy(x))
    assert str(actual.dtype) == dtype
    assert_within_ulps(actual, exact, limit)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_large_angles_are_reduced_exactly(name, dtype):
    x = np.array([1e5, 123456.789, -3e7, 1e10, 2.0**60], dtype)
    exact = getattr(np, name)(x.astype(np.float64))
    assert_within_ulps(getattr(gp, name)(gp.from_numpy(x)), exact, 5)


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("dtype", ARITHMETIC)
@pytest.mark.parametrize("name", SIMPLE)
def test_against_numpy(rng, name, dtype, layout):
    if dtype == "bool" and name in ("negative", "sign"):
        pytest.skip("NumPy takes no bool either; see test_refused_dtypes")
    a, x = pair(rng, layout, dtype)
    if dtype == "bfloat16":
        expected = getattr(np, name)(a.astype(np.float32))
        expected = expected if expected.dtype == bool else expected.astype(a.dtype)
    else:
        expected = getattr(np, name)(a)
    assert_equal(getattr(gp, name)(x), expected)


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("name", ["exp", "tanh", "gelu", "sqrt", "arcsinh"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_layouts(rng, name, dtype, layout):
    a, x = pair(rng, layout, dtype, low=0, high=3)
    assert_within_ulps(getattr(gp, name)(x), exact_function(name)(a.astype(np.float64)), 8)


@pytest.mark.parametrize("dtype", [d for d in ARITHMETIC if d != "bfloat16"])
@pytest.mark.parametrize("name", [n for n in sorted(FUNCTIONS) if hasattr(np, n)] + ["rint"])
def test_result_dtypes_are_numpys(name, dtype):
    assert getattr(gp, name)(gp.ones(2, dtype)).dtype == getattr(np, name)(np.ones(2, dtype)).dtype.name


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", "bool"])
@pytest.mark.parametrize("name", ["sqrt", "exp", "sigmoid", "erf"])
def test_functions_of_integers(rng, name, dtype):
    a = random_array(rng, (50,), dtype, low=0, high=5)
    assert_within_ulps(getattr(gp, name)(gp.from_numpy(a)), exact_function(name)(a.astype(np.float64)), 4)


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values(dtype):
    a = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1], np_dtype(dtype))
    wide = a.astype(np.float64)
    for name in [*FUNCTIONS, *SIMPLE, "rint", "relu"]:
        expected = exact_function(name)(wide)
        if name in ("silu", "gelu_tanh", "gelu"):
            expected = np.where(wide == -np.inf, expected, expected)
            keep = np.isfinite(wide)
        else:
            keep = np.ones(a.shape, bool)
        actual = getattr(gp, name)(gp.from_numpy(a)).to_numpy()
        np.testing.assert_allclose(
            actual.astype(np.float64)[keep], expected.astype(np.float64)[keep], rtol=1e-2, err_msg=name
        )


@pytest.mark.parametrize("dtype", FLOATS)
def test_rint_rounds_half_to_even(dtype):
    a = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 3.49], np_dtype(dtype))
    assert gp.rint(gp.from_numpy(a)).to_numpy().astype(float).tolist() == [0, 2, 2, 0, -2, 3]


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_relu(rng, dtype):
    a = random_array(rng, (100,), dtype)
    assert_equal(gp.relu(gp.from_numpy(a)), np.maximum(a, a.dtype.type(0)))
    if dtype in FLOATS:
        assert np.isnan(gp.relu(gp.full(1, np.nan, dtype)).to_numpy().astype(float)).all()


@pytest.mark.parametrize("dtype", ["bool", *INTEGERS])
def test_invert(rng, dtype):
    a = random_array(rng, (20,), dtype)
    assert_equal(~gp.from_numpy(a), ~a)


def test_operators(rng):
    a, x = pair(rng, "steps", "float32")
    assert_equal(-x, -a)
    assert_equal(abs(x), abs(a))
    assert_equal(+x, a)


@pytest.mark.parametrize("name", ["exp", "negative", "isnan"])
def test_large(rng, name):
    a = rng.standard_normal(2_000_003).astype(np.float32)
    actual = getattr(gp, name)(gp.from_numpy(a))
    expected = getattr(np, name)(a.astype(np.float64))
    if name == "isnan":
        assert_equal(actual, expected)
    else:
        assert_within_ulps(actual, expected, 2.5)


def test_out(rng):
    a, x = pair(rng, "transposed", "float32")
    target = gp.empty(x.shape)
    gp.negative(x, out=target)
    assert_equal(target, -a)
    gp.negative(x, out=x)
    assert_equal(x, -a)
    with pytest.raises(gp.InvalidTypeError, match="sqrt: argument 'out'"):
        gp.sqrt(x, out=gp.empty(x.shape, "float64"))
    with pytest.raises(gp.InvalidValueError, match="sqrt: argument 'out'"):
        gp.sqrt(x, out=gp.empty(3))


def test_out_that_overlaps(rng):
    host = rng.integers(-50, 50, 100_000)
    x = gp.from_numpy(host)
    gp.negative(x[:-1], out=x[1:])
    assert_equal(x, np.concatenate([host[:1], -host[:-1]]))


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [("negative", ["bool"]), ("sign", ["bool"]), ("invert", FLOATS), ("exp", FLOAT8), ("negative", FLOAT8)],
)
def test_refused_dtypes(name, dtypes):
    for dtype in dtypes:
        with pytest.raises(gp.InvalidTypeError, match=name):
            getattr(gp, name)(gp.ones(2, dtype))


def test_host_objects_are_refused():
    for other in (np.ones(3), [1.0], 2.0):
        with pytest.raises(gp.InvalidTypeError, match=r"exp: argument 'x'.*gp\.asarray"):
            gp.exp(other)
