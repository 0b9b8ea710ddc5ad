import operator
import warnings

import ml_dtypes
import numpy as np
import pytest

import pygpukit as gp
from support import (
    ARITHMETIC,
    BOOL,
    EVERY,
    FLOAT8,
    FLOATS,
    INTEGERS,
    LAYOUTS,
    SIGNED,
    UNSIGNED,
    assert_equal,
    assert_within_ulps,
    gp_name,
    np_dtype,
    pair,
    random_array,
)

COMPARISONS = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
LOGICAL = ["logical_and", "logical_or", "logical_xor"]
BITWISE = ["bitwise_and", "bitwise_or", "bitwise_xor"]
SHIFTS = ["left_shift", "right_shift"]
EXACT = ["add", "subtract", "multiply", "divide", "minimum", "maximum"]  # one rounding, so equal to NumPy's
QUOTIENTS = ["floor_divide", "remainder", "fmod"]
# Largest errors against float64, in ulps of the result; CUDA's own (programming guide, appendix on
# mathematical functions) and one more for the rounding of 16-bit results.
TRANSCENDENTAL = {"power": 9, "arctan2": 4, "hypot": 4, "logaddexp": 8}

OPERATORS = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "power": operator.pow,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "left_shift": operator.lshift,
    "right_shift": operator.rshift,
}


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's: division by zero and overflow
        yield


def takes(op: str, dtype: str) -> bool:
    if op == "subtract":
        return dtype != "bool"
    if op in BITWISE:
        return dtype in BOOL + INTEGERS
    if op in SHIFTS:
        return dtype in INTEGERS
    return True


def operands(rng, op, layout, dtype):
    a, x = pair(rng, layout, dtype)
    limits = {"low": 0, "high": 7} if op in SHIFTS or (op == "power" and dtype not in FLOATS) else {}
    b, y = pair(rng, layout, dtype, **limits)
    return a, b, x, y


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("dtype", ARITHMETIC)
@pytest.mark.parametrize("op", EXACT + COMPARISONS + LOGICAL + BITWISE + SHIFTS + QUOTIENTS)
def test_against_numpy(rng, op, dtype, layout):
    if not takes(op, dtype):
        pytest.skip(f"{op} takes no {dtype}; see test_refused_dtypes")
    a, b, x, y = operands(rng, op, layout, dtype)
    expected = getattr(np, op)(a, b)
    if op == "divide" and dtype not in FLOATS:
        expected = expected.astype(np.float64)
    if dtype == "bfloat16" and op in QUOTIENTS:
        expected = getattr(np, op)(a.astype(np.float32), b.astype(np.float32)).astype(a.dtype)
    assert_equal(getattr(gp, op)(x, y), expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", sorted(TRANSCENDENTAL))
def test_error_of_transcendental_functions(rng, op, dtype):
    a = np.abs(random_array(rng, (2000,), dtype)) if op == "power" else random_array(rng, (2000,), dtype)
    b = random_array(rng, (2000,), dtype, low=-3, high=3)
    exact = getattr(np, op)(a.astype(np.float64), b.astype(np.float64))
    actual = getattr(gp, op)(gp.from_numpy(a), gp.from_numpy(b))
    assert str(actual.dtype) == dtype
    # logaddexp is the larger operand plus something positive: where it is near 0, these cancel.
    terms = np.maximum(a, b) if op == "logaddexp" else 0.0
    assert_within_ulps(actual, exact, TRANSCENDENTAL[op], terms)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_power_wraps(rng, dtype):
    a, b = random_array(rng, (500,), dtype), random_array(rng, (500,), dtype, low=0, high=40)
    assert_equal(gp.power(gp.from_numpy(a), gp.from_numpy(b)), np.power(a, b))


def test_integer_to_a_negative_power_is_refused():
    with pytest.raises(gp.InvalidValueError, match="power"):
        gp.arange(3) ** -1


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap_and_divide_by_zero_gives_zero(dtype):
    info = np.iinfo(dtype)
    a = np.array([info.max, info.min, info.min, 5, 0, info.max], dtype)
    b = np.array([1, 1, np.array(-1).astype(dtype), 0, 0, info.max], dtype)
    x, y = gp.from_numpy(a), gp.from_numpy(b)
    for op in ["add", "subtract", "multiply", *QUOTIENTS]:
        assert_equal(getattr(gp, op)(x, y), getattr(np, op)(a, b))


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values(dtype):
    special = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, np.inf, -np.inf, np.nan]
    a, b = (m.ravel().astype(np_dtype(dtype)) for m in np.meshgrid(special, special))
    wide = np.float64 if dtype == "float64" else np.float32
    for op in [
        *EXACT,
        *COMPARISONS,
        *LOGICAL,
        "floor_divide",
        "remainder",
        "fmod",
        "power",
        "arctan2",
        "hypot",
        "logaddexp",
    ]:
        expected = getattr(np, op)(a.astype(wide), b.astype(wide))
        actual = getattr(gp, op)(gp.from_numpy(a), gp.from_numpy(b)).to_numpy()
        if op in COMPARISONS + LOGICAL:
            np.testing.assert_array_equal(actual, expected, err_msg=op)
            continue
        actual, expected = actual.astype(np.float64), expected.astype(np_dtype(dtype)).astype(np.float64)
        np.testing.assert_allclose(actual, expected, rtol=0.02 if dtype == "bfloat16" else 2e-3, err_msg=op)
        if op not in ("minimum", "maximum"):  # of two zeros, either may come
            zero = expected == 0
            np.testing.assert_array_equal(np.signbit(actual[zero]), np.signbit(expected[zero]), err_msg=op)


def expected_result_type(a: str, b: str) -> str | None:
    """NumPy's, and ours where NumPy has no opinion; None where there is none."""
    if a == b:
        return a
    if a in FLOAT8 or b in FLOAT8:
        return None
    if "bfloat16" in (a, b):
        other = b if a == "bfloat16" else a
        if other in ("bool", "int8", "uint8"):
            return "bfloat16"
        return "float32" if other in ("int16", "uint16", "float16", "float32") else "float64"
    return gp_name(np.result_type(np.dtype(a), np.dtype(b)))


@pytest.mark.parametrize("a", EVERY)
@pytest.mark.parametrize("b", EVERY)
def test_promotion_of_every_pair(a, b):
    expected = expected_result_type(a, b)
    if expected is None:
        with pytest.raises(gp.InvalidTypeError, match="float8"):
            gp.result_type(a, b)
        return
    assert gp.result_type(a, b) == expected
    if a in FLOAT8:
        return
    x, y = gp.ones((2, 1), a), gp.ones(3, b)
    assert_equal(x + y, np.full((2, 3), 1 if expected == "bool" else 2, np_dtype(expected)))
    assert_equal(x == y, np.ones((2, 3), bool))


@pytest.mark.parametrize(
    "op", ["add", "divide", "power", "floor_divide", "arctan2", "hypot", "less", "logical_and"]
)
@pytest.mark.parametrize("a", BOOL + INTEGERS + ["float16", "float32", "float64"])
@pytest.mark.parametrize("b", BOOL + INTEGERS + ["float16", "float32", "float64"])
def test_result_dtypes_are_numpys(op, a, b):
    expected = getattr(np, op)(np.ones(1, a), np.ones(1, b)).dtype
    if op == "divide" and expected != np.float64 and not {a, b} & set(FLOATS):
        expected = np.dtype(np.float64)
    assert getattr(gp, op)(gp.ones(1, a), gp.ones(1, b)).dtype == expected.name


@pytest.mark.parametrize("dtype", [d for d in ARITHMETIC if d != "bfloat16"])
@pytest.mark.parametrize("scalar", [True, 3, -2, 2.5])
@pytest.mark.parametrize("name", ["add", "multiply", "divide", "less", "maximum", "subtract"])
def test_python_scalars_are_weak(rng, dtype, scalar, name):
    a = random_array(rng, (7,), dtype, low=1, high=5)
    x = gp.from_numpy(a)
    refused = scalar == -2 and dtype in UNSIGNED and name not in ("less", "divide")
    refused |= name == "subtract" and dtype == "bool" and scalar is True
    for mine, theirs in [((x, scalar), (a, scalar)), ((scalar, x), (scalar, a))]:
        if refused:
            with pytest.raises(gp.Error):
                getattr(gp, name)(*mine)
            continue
        if name == "divide" and dtype in UNSIGNED:  # in float64, where -2 has its place
            theirs = tuple(np.asarray(each, np.float64) for each in theirs)
        assert_equal(getattr(gp, name)(*mine), getattr(np, name)(*theirs))


def test_python_scalars_with_bfloat16():
    x = gp.ones(3, "bfloat16")
    for scalar in (True, 2, 2.5):
        assert (x + scalar).dtype == (scalar * x).dtype == gp.bfloat16


@pytest.mark.parametrize("dtype", INTEGERS)
def test_python_integers_out_of_range(dtype):
    info = np.iinfo(dtype)
    x = gp.from_numpy(np.array([info.min, 0, info.max], dtype))
    for beyond in (int(info.max) + 1, int(info.min) - 1):
        if abs(beyond) > 2**63 and beyond < 0:
            continue
        if beyond >= 2**64:
            continue
        with pytest.raises(gp.InvalidValueError, match=dtype):
            x + beyond
        # Comparisons know the answer (NEP 50).
        above = beyond > 0
        assert (x < beyond).tolist() == [above] * 3
        assert (x == beyond).tolist() == [False] * 3
        assert (beyond < x).tolist() == [not above] * 3
    for beyond in (2**64, -(2**63) - 1, 10**30):
        with pytest.raises(gp.InvalidValueError):
            x + beyond


def test_numpy_scalars_keep_their_dtype():
    x = gp.ones(3, "float32")
    for scalar in (np.float64(0.1), np.float16(2), np.int8(3), np.bool_(True), np.int64(7)):
        expected = np.ones(3, np.float32) + scalar
        assert_equal(x + scalar, expected)
        assert_equal(scalar + x, expected)
        assert_equal(gp.add(x, scalar), expected)
    assert_equal(gp.ones(3, "int8") * np.int16(1000), np.full(3, 1000, np.int16))
    assert_equal(gp.ones(3, "float16") + np.float64(0.1), np.ones(3, np.float16) + np.float64(0.1))
    assert_equal(gp.ones(2, "int32") + ml_dtypes.bfloat16(0.5), np.full(2, 1.5))


@pytest.mark.parametrize("op", sorted(OPERATORS))
def test_operators(rng, op):
    dtype = "int32"
    a, b, x, y = operands(rng, op, "steps", dtype)
    expected = getattr(np, op)(a, b)
    assert_equal(OPERATORS[op](x, y), expected)
    assert_equal(OPERATORS[op](x, 3), getattr(np, op)(a, 3))
    assert_equal(OPERATORS[op](3, y), getattr(np, op)(3, b))


@pytest.mark.parametrize("op", [op for op in sorted(OPERATORS) if op not in COMPARISONS])
def test_in_place_operators(rng, op):
    dtype = "float32" if op == "divide" else "int32"
    a, b, x, y = operands(rng, op, "negative", dtype)
    name = "truediv" if op == "divide" else OPERATORS[op].__name__.strip("_")
    in_place = getattr(operator, "i" + name)
    address, result = x.data_ptr, in_place(x, y)
    assert result is x
    assert x.data_ptr == address
    expected = getattr(np, op)(a, b)
    assert_equal(x, expected)
    in_place(x, 2)
    assert_equal(x, getattr(np, op)(expected, expected.dtype.type(2)))


def test_in_place_refuses_another_dtype_or_shape():
    x = gp.ones(3, "int32")
    with pytest.raises(gp.InvalidTypeError, match="divide.*out"):
        x /= 2
    with pytest.raises(gp.InvalidTypeError, match="out"):
        x += 1.5
    with pytest.raises(gp.InvalidValueError, match="shape"):
        x += gp.ones((2, 3), "int32")
    assert x.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "shapes",
    [((3, 1), (1, 4)), ((), (2, 3)), ((4,), (3, 1)), ((2, 1, 3), (5, 1)), ((0, 1), (1, 3)), ((1,), (0,))],
)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "bfloat16"])
def test_broadcasting(rng, shapes, dtype):
    a, b = (random_array(rng, shape, dtype) for shape in shapes)
    assert_equal(gp.add(gp.from_numpy(a), gp.from_numpy(b)), a + b)
    assert_equal(gp.from_numpy(a) < gp.from_numpy(b), a < b)


def test_shapes_that_do_not_broadcast():
    with pytest.raises(gp.InvalidValueError, match=r"add.*\(2, 3\).*\(4,\)"):
        gp.zeros((2, 3)) + gp.zeros(4)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "float64"])
def test_large(rng, dtype):
    a, b = random_array(rng, (1_000_003,), dtype), random_array(rng, (1_000_003,), dtype)
    x, y = gp.from_numpy(a), gp.from_numpy(b)
    assert_equal(x * y, a * b)
    assert_equal(x[1:] + y[:-1], a[1:] + b[:-1])  # not aligned to 16 bytes
    m = a[:1_000_000].reshape(1000, 1000)
    assert_equal(x[:1_000_000].reshape(1000, 1000).T + y[:1000], m.T + b[:1000])


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "steps", "negative"])
def test_out(rng, layout):
    a, x = pair(rng, layout, "float32")
    b, y = pair(rng, layout, "float32")
    target = LAYOUTS[layout](gp.full((6, 8), -1, "float32"))
    assert gp.add(x, y, out=target).data_ptr == target.data_ptr
    assert_equal(target, a + b)
    gp.multiply(x, y, out=x)
    assert_equal(x, a * b)


def test_out_that_overlaps_an_input(rng):
    host = rng.integers(0, 100, 100_000)
    x = gp.from_numpy(host)
    gp.add(x[:-1], 1, out=x[1:])
    assert_equal(x, np.concatenate([host[:1], host[:-1] + 1]))


def test_out_that_does_not_fit():
    x = gp.ones((2, 3))
    for out, error in [
        (gp.ones((3, 2)), gp.InvalidValueError),
        (gp.ones((2, 3), "float64"), gp.InvalidTypeError),
        (gp.broadcast_to(gp.ones(3), (2, 3)), gp.InvalidValueError),
        (np.ones((2, 3), np.float32), gp.InvalidTypeError),
    ]:
        with pytest.raises(error, match="add: argument 'out'"):
            gp.add(x, x, out=out)


@pytest.mark.parametrize(
    ("op", "dtypes"),
    [("subtract", BOOL), *((op, FLOATS) for op in BITWISE + SHIFTS), ("add", FLOAT8), ("equal", FLOAT8)],
)
def test_refused_dtypes(op, dtypes):
    for dtype in dtypes:
        x = gp.ones(2, dtype)
        with pytest.raises(gp.InvalidTypeError, match=op):
            getattr(gp, op)(x, x)


@pytest.mark.parametrize(
    "other", [np.ones(3, np.float32), [1, 2, 3], "text", object()], ids=lambda o: type(o).__name__
)
def test_mixing_with_host_objects_is_refused(other):
    x = gp.ones(3)
    with pytest.raises(gp.InvalidTypeError, match=r"gp\.asarray"):
        gp.add(x, other)
    with pytest.raises(gp.InvalidTypeError, match=r"gp\.asarray"):
        gp.add(other, x)
    with pytest.raises(TypeError):
        x + other
    with pytest.raises(TypeError):
        other - x


def test_none_is_refused():
    with pytest.raises(TypeError):
        gp.add(gp.ones(3), None)
    with pytest.raises(TypeError):
        gp.ones(3) + None


def test_a_numpy_operand_names_the_explicit_call():
    with pytest.raises(TypeError, match=r"gp\.asarray"):
        gp.ones(3) + np.ones(3)
    with pytest.raises(TypeError, match=r"gp\.asarray"):
        np.ones(3) * gp.ones(3)
    with pytest.raises(TypeError, match=r"gp\.asarray"):
        gp.ones(3) < np.ones(3)


def test_equality_with_a_stranger_is_pythons():
    assert (gp.ones(3) == "text") is False
    assert (gp.ones(3) != None) is True  # noqa: E711


def test_two_numbers_are_refused():
    with pytest.raises(gp.InvalidTypeError, match="at least one array"):
        gp.add(1, 2)


def test_short_names():
    assert gp.sub is gp.subtract
    assert gp.mul is gp.multiply
    assert gp.div is gp.divide


@pytest.mark.parametrize("dtype", SIGNED)
def test_mixed_signs_compare_as_numbers(dtype):
    a, b = np.array([-1, 0, 1], dtype), np.array([0, 1, 1], np.uint64)
    assert_equal(gp.from_numpy(a) < gp.from_numpy(b), np.array([True, True, False]))


def test_what_only_looks_like_a_number():
    class Itself:
        dtype, ndim = np.dtype("float32"), 0

        def item(self):
            return self

    for other in (np.longdouble(1.5), np.clongdouble(1), np.datetime64("2020-01-01"), Itself(), np.float32):
        with pytest.raises(TypeError):
            gp.ones(3) + other
        with pytest.raises(gp.InvalidTypeError, match="add: argument 'y'"):
            gp.add(gp.ones(3), other)
