import numpy as np
import pytest

import pygpukit as gp
from support import ARITHMETIC, EVERY, FLOATS, INTEGERS, LAYOUTS, assert_equal, np_dtype, pair, random_array


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("dtype", ARITHMETIC)
def test_where(rng, dtype, layout):
    c, condition = pair(rng, layout, "bool")
    a, x = pair(rng, layout, dtype)
    b, y = pair(rng, layout, dtype)
    assert_equal(gp.where(condition, x, y), np.where(c, a, b))


@pytest.mark.parametrize(
    "shapes", [((3, 1), (4,), (2, 1, 1)), ((), (3,), (3,)), ((2, 3), (), ()), ((0, 1), (3,), ())]
)
def test_where_broadcasts(rng, shapes):
    c, a, b = (
        random_array(rng, shape, dtype)
        for shape, dtype in zip(shapes, ["bool", "float32", "float32"], strict=True)
    )
    assert_equal(gp.where(gp.from_numpy(c), gp.from_numpy(a), gp.from_numpy(b)), np.where(c, a, b))


def test_where_promotes():
    c = gp.asarray([True, False])
    assert_equal(gp.where(c, gp.ones(2, "int8"), gp.ones(2, "float32") * 2), np.array([1, 2], np.float32))
    assert_equal(gp.where(c, gp.ones(2, "int32"), gp.zeros(2, "uint32")), np.array([1, 0], np.int64))


def test_where_of_numbers():
    c = gp.asarray([True, False])
    assert_equal(gp.where(c, gp.ones(2, "float16"), 5), np.array([1, 5], np.float16))
    assert_equal(gp.where(c, 5, gp.ones(2, "uint8")), np.array([5, 1], np.uint8))
    assert_equal(gp.where(c, 2.5, gp.ones(2, "int32")), np.array([2.5, 1]))
    assert_equal(gp.where(c, 1, 0), np.array([1, 0]))
    assert_equal(
        gp.where(c, gp.ones(2), np.float64(0.1)),
        np.where([True, False], np.ones(2, np.float32), np.float64(0.1)),
    )


def test_where_refuses():
    c = gp.asarray([True, False])
    with pytest.raises(gp.InvalidTypeError, match="where: argument 'condition'.*bool"):
        gp.where(gp.asarray([1, 0]), gp.ones(2), gp.ones(2))
    with pytest.raises(gp.InvalidTypeError, match="where: argument 'y'"):
        gp.where(c, gp.ones(2), "text")
    with pytest.raises(gp.InvalidValueError, match="where"):
        gp.where(c, gp.ones(3), gp.ones(2))


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
@pytest.mark.parametrize("limits", [(1, 4), (None, 3), (2, None), (None, None), (5, 2)])
def test_clip(rng, limits, dtype, layout):
    a, x = pair(rng, layout, dtype)
    low, high = limits
    expected = a
    if low is not None:
        expected = np.maximum(expected, a.dtype.type(low))
    if high is not None:
        expected = np.minimum(expected, a.dtype.type(high))
    assert_equal(gp.clip(x, low, high), expected)


def test_clip_keeps_nan_and_infinite_limits_do_nothing():
    a = np.array([np.nan, -np.inf, 0, np.inf], np.float32)
    assert_equal(gp.clip(gp.from_numpy(a), -1, 1), np.clip(a, -1, 1))
    assert_equal(gp.clip(gp.from_numpy(a), float("-inf"), float("inf")), a)


def test_clip_out_of_an_integers_range():
    x = gp.asarray([0, 100, 255], dtype="uint8")
    assert_equal(gp.clip(x, -1, 300), np.array([0, 100, 255], np.uint8))
    assert_equal(gp.clip(x, 50, 300), np.array([50, 100, 255], np.uint8))


def test_clip_out(rng):
    a, x = pair(rng, "steps", "int32")
    gp.clip(x, -2, 2, out=x)
    assert_equal(x, np.clip(a, -2, 2))


@pytest.mark.parametrize("dtype", EVERY)
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_take(rng, axis, dtype):
    a, x = random_array(rng, (5, 7), dtype, low=0), None
    x = gp.from_numpy(a)
    for index in (
        np.array([0, 4, 4, -1, -5]),
        np.array([[1, 2], [3, 0]], np.int32),
        np.array(2, np.uint8),
        np.array([], np.int64),
    ):
        assert_equal(gp.take(x, gp.from_numpy(index), axis), np.take(a, index, axis))


@pytest.mark.parametrize("index_dtype", INTEGERS)
def test_take_with_every_index_dtype(rng, index_dtype):
    a = rng.standard_normal((4, 3))
    index = np.array([3, 0, 1], index_dtype)
    assert_equal(gp.take(gp.from_numpy(a), gp.from_numpy(index), 0), a[index.astype(int)])


@pytest.mark.parametrize("layout", [name for name in sorted(LAYOUTS) if name not in ("empty", "scalar")])
def test_take_of_every_layout(rng, layout):
    a, x = pair(rng, layout, "float32")
    index = np.array([1, 0, -1])
    for axis in range(a.ndim):
        assert_equal(gp.take(x, gp.from_numpy(index), axis), np.take(a, index, axis))
    spread = gp.from_numpy(np.array([1, 9, 0, 9, -1, 9]))[::2]
    assert_equal(gp.take(x, spread, 0), np.take(a, index, 0))


def test_take_out_of_range_gives_zero():
    x = gp.asarray([1.0, 2, 3])
    for far in (3, -4, 2**40, -(2**62)):
        assert gp.take(x, gp.asarray([0, far]), 0).tolist() == [1, 0]
    assert gp.take(x, gp.full(1, 2**64 - 1, "uint64"), 0).tolist() == [0]


def test_take_refuses():
    with pytest.raises(gp.InvalidTypeError, match="take"):
        gp.take(gp.ones(3), gp.ones(2), 0)
    with pytest.raises(gp.InvalidTypeError, match="take"):
        gp.take(gp.ones(3), gp.ones(3, "bool"), 0)
    with pytest.raises(gp.OutOfBoundsError, match="take"):
        gp.take(gp.ones(3), gp.zeros(2, "int32"), 1)
    for axis in ("0", 1.5, 2**32):
        with pytest.raises(TypeError, match="take"):
            gp.take(gp.ones(3), gp.zeros(2, "int32"), axis)


@pytest.mark.parametrize("dtype", EVERY)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(rng, axis, dtype):
    shapes = [(2, 3), (2, 3), (2, 3)]
    shapes[1] = tuple(5 if i == axis % 2 else extent for i, extent in enumerate(shapes[1]))
    shapes[2] = tuple(0 if i == axis % 2 else extent for i, extent in enumerate(shapes[2]))
    parts = [random_array(rng, shape, dtype) for shape in shapes]
    assert_equal(gp.concat([gp.from_numpy(p) for p in parts], axis), np.concatenate(parts, axis))


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_concat_and_stack_of_every_layout(rng, layout):
    (a, x), (b, y) = pair(rng, layout, "int16"), pair(rng, layout, "int16")
    for axis in range(-a.ndim, a.ndim):
        assert_equal(gp.concat([x, y, x], axis), np.concatenate([a, b, a], axis))
    for axis in range(-a.ndim - 1, a.ndim + 1):
        assert_equal(gp.stack((x, y), axis), np.stack((a, b), axis))
    assert_equal(gp.concat([x, y], None), np.concatenate([a, b], None))


def test_concat_promotes():
    parts = [np.ones(2, np.int8), np.ones(3, np.float32), np.ones(1, bool)]
    assert_equal(gp.concat([gp.from_numpy(p) for p in parts]), np.concatenate(parts))
    assert gp.stack([gp.ones(2, "bfloat16"), gp.ones(2, "float16")]).dtype == gp.float32


def test_concat_of_many():
    parts = [np.full((3, i % 4), i) for i in range(100)]
    assert_equal(gp.concat([gp.from_numpy(p) for p in parts], 1), np.concatenate(parts, 1))


def test_concat_and_stack_refuse():
    for function in (gp.concat, gp.stack):
        with pytest.raises(gp.InvalidValueError, match="at least one"):
            function([])
        with pytest.raises(gp.InvalidTypeError, match="arrays"):
            function([gp.ones(2), np.ones(2)])
        with pytest.raises(gp.InvalidValueError):
            function([gp.ones((2, 3)), gp.ones((3, 2))])
        with pytest.raises(gp.OutOfBoundsError):
            function([gp.ones(2)], 5)
    with pytest.raises(gp.OutOfBoundsError, match="0-d"):
        gp.concat([gp.ones(()), gp.ones(())])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_large_tables(rng, dtype):
    table = random_array(rng, (5000, 96), dtype)
    index = rng.integers(-5000, 5000, (40, 50))
    assert_equal(gp.take(gp.from_numpy(table), gp.from_numpy(index), 0), table.astype(np_dtype(dtype))[index])
