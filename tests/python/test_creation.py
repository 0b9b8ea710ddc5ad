import ml_dtypes
import numpy as np
import pytest

import pygpukit as gp
from support import ARITHMETIC, EVERY, FLOATS, INTEGERS, assert_equal, np_dtype

SHAPES = [(), (0,), (5,), (2, 0, 3), (3, 4), (2, 3, 4, 5), (1, 1), 7]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", EVERY)
def test_zeros_ones_and_full(shape, dtype):
    assert_equal(gp.zeros(shape, dtype), np.zeros(shape, np_dtype(dtype)))
    assert_equal(gp.ones(shape, dtype=dtype), np.ones(shape, np_dtype(dtype)))
    assert_equal(gp.full(shape, 1, dtype=dtype), np.full(shape, 1, np_dtype(dtype)))


def test_large_fill_reaches_every_element():
    count = 3_000_017
    assert_equal(gp.full(count, 7, "int16"), np.full(count, 7, np.int16))
    assert_equal(gp.full(count, -2.5, "float64"), np.full(count, -2.5))


def test_default_dtypes():
    assert gp.zeros(2).dtype == gp.ones(2).dtype == gp.empty(2).dtype == gp.eye(2).dtype == gp.float32
    assert gp.full(2, True).dtype == gp.bool_
    assert gp.full(2, 3).dtype == gp.int64
    assert gp.full(2, 2**63).dtype == gp.uint64
    assert gp.full(2, 3.0).dtype == gp.float32
    assert gp.full(2, np.float16(3)).dtype == gp.float16
    assert gp.arange(3).dtype == gp.int64
    assert gp.arange(3.0).dtype == gp.float32
    assert gp.linspace(0, 1).dtype == gp.float32


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(255, "uint8"), (-128, "int8"), (2**64 - 1, "uint64"), (-(2**63), "int64"), (2**53 + 1, "int64")],
)
def test_full_keeps_every_bit_of_an_integer(value, dtype):
    assert gp.full((), value, dtype).item() == value


@pytest.mark.parametrize(
    ("value", "dtype"), [(256, "uint8"), (-1, "uint16"), (2**31, "int32"), (2**63, "int64")]
)
def test_full_refuses_an_integer_out_of_range(value, dtype):
    with pytest.raises(gp.InvalidValueError, match=dtype):
        gp.full(2, value, dtype)


def test_full_takes_nan_and_infinities():
    for value in (np.nan, np.inf, -np.inf):
        for dtype in FLOATS:
            assert_equal(gp.full(3, value, dtype), np.full(3, value, np_dtype(dtype)))


@pytest.mark.parametrize("dtype", EVERY)
def test_like(dtype):
    x = gp.zeros((2, 3), dtype)
    assert gp.empty_like(x).dtype == dtype
    assert gp.empty_like(x).shape == (2, 3)
    assert_equal(gp.zeros_like(x), np.zeros((2, 3), np_dtype(dtype)))
    assert_equal(gp.ones_like(x), np.ones((2, 3), np_dtype(dtype)))
    assert_equal(gp.full_like(x, 1), np.ones((2, 3), np_dtype(dtype)))
    assert_equal(gp.ones_like(x, dtype="int32"), np.ones((2, 3), np.int32))
    assert gp.ones_like(x.T).is_contiguous


@pytest.mark.parametrize(
    "arguments", [(5,), (0,), (2, 9), (9, 2), (0, 10, 3), (10, 0, -3), (-5, 5, 2), (3, 3), (0, 1, 5)]
)
@pytest.mark.parametrize("dtype", [None, "int32", "float32", "float64", "int8"])
def test_arange_of_integers(arguments, dtype):
    assert_equal(gp.arange(*arguments, dtype=dtype), np.arange(*arguments, dtype=dtype or "int64"))


@pytest.mark.parametrize("arguments", [(0.0, 1.0, 0.1), (1.0, 0.0, -0.25), (5.5,), (0.5, 3), (1.0, 1.0)])
def test_arange_of_floats(arguments):
    exact = np.arange(*arguments)
    assert_equal(gp.arange(*arguments, dtype="float64"), exact)
    np.testing.assert_allclose(gp.arange(*arguments).to_numpy(), exact, rtol=1e-6)


def test_arange_counts_past_32_bits_exactly():
    start = 2**62 + 1
    assert_equal(gp.arange(start, start + 5), np.arange(start, start + 5))


@pytest.mark.parametrize("arguments", [(0, 1, 0), (0, float("nan")), (0, float("inf"))])
def test_arange_refuses(arguments):
    with pytest.raises(gp.InvalidValueError, match="arange"):
        gp.arange(*arguments)


def test_arange_of_integers_past_int64():
    assert_equal(gp.arange(2**63, 2**63 + 3), np.arange(2**63, 2**63 + 3, dtype="uint64"))
    assert_equal(gp.arange(2**63 - 2, 2**63), np.arange(2**63 - 2, 2**63, dtype="int64"))


@pytest.mark.parametrize(
    ("arguments", "dtype"), [((300, 303), "int8"), ((-1, 3), "uint8"), ((0, 2**40, 2**39), "int32")]
)
def test_arange_refuses_integers_out_of_the_dtypes_range(arguments, dtype):
    with pytest.raises(gp.InvalidValueError, match=f"arange: expected integers in the range of {dtype}"):
        gp.arange(*arguments, dtype=dtype)
    with pytest.raises(gp.InvalidValueError, match="arange: expected integers in the range of uint64"):
        gp.arange(-1, 2**63 + 9, 2**63 + 2)


@pytest.mark.parametrize("num", [0, 1, 2, 7, 1000])
@pytest.mark.parametrize("endpoint", [True, False])
def test_linspace(num, endpoint):
    actual = gp.linspace(-1, 3, num, endpoint, dtype="float64")
    np.testing.assert_allclose(actual.to_numpy(), np.linspace(-1, 3, num, endpoint), rtol=1e-15, atol=1e-15)
    if num > 1 and endpoint:
        assert actual[-1].item() == 3


def test_linspace_ends_exactly_at_stop():
    for stop in (0.1, 1 / 3, 1e30):
        assert gp.linspace(-7, stop, 11, dtype="float64")[-1].item() == stop


def test_linspace_refuses_a_negative_count():
    with pytest.raises(gp.InvalidValueError, match="linspace: argument 'num'"):
        gp.linspace(0, 1, -1)


@pytest.mark.parametrize("dtype", ARITHMETIC)
@pytest.mark.parametrize("arguments", [(3,), (3, 5), (5, 3, 1), (5, 3, -2), (2, 2, 9), (0, 4)])
def test_eye(arguments, dtype):
    assert_equal(gp.eye(*arguments, dtype=dtype), np.eye(*arguments, dtype=np_dtype(dtype)))


def test_negative_extent_is_refused():
    for make in (gp.empty, gp.zeros, gp.ones):
        with pytest.raises(gp.InvalidValueError, match="negative|-1"):
            make((2, -1))
        with pytest.raises(gp.InvalidValueError, match="negative|-1"):
            make((0, -1))


def test_shapes_past_the_address_space_are_refused():
    with pytest.raises(gp.InvalidValueError):
        gp.empty((2**40, 2**40))
    for shape in ((2**62, 2**62, 0), (0, 2**62)):  # without elements, but their strides do not fit
        with pytest.raises(gp.InvalidValueError):
            gp.empty(shape)
        with pytest.raises(gp.InvalidValueError):
            gp.empty(0).reshape(shape)
    with pytest.raises(gp.InvalidValueError, match=r"2\*\*63 bytes"):
        gp.broadcast_to(gp.ones(()), (2**62,))
    with pytest.raises(gp.InvalidTypeError, match="shape"):
        gp.empty((2, 3.5))
    with pytest.raises(gp.InvalidTypeError, match="shape"):
        gp.empty("3")


def test_dtype_names_are_many():
    for spelling in ("float32", gp.float32, np.float32, np.dtype("float32")):
        assert gp.zeros(1, dtype=spelling).dtype is gp.float32
    assert gp.zeros(1, dtype=float).dtype == gp.float64
    assert gp.zeros(1, dtype=int).dtype == gp.int64
    assert gp.zeros(1, dtype=bool).dtype == gp.bool_
    assert gp.zeros(1, dtype=ml_dtypes.bfloat16).dtype == gp.bfloat16
    with pytest.raises(gp.InvalidTypeError, match="float128"):
        gp.zeros(1, dtype="float128")
    with pytest.raises(gp.InvalidTypeError):
        gp.zeros(1, dtype=[])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_fill_of_a_float_truncates_or_refuses_as_documented(dtype):
    assert gp.full(2, 3.7, dtype).to_numpy().tolist() == [3, 3]
