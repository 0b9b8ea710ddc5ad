import ml_dtypes
import numpy as np
import pytest

import pygpukit as gp
from support import (
    EVERY,
    FLOAT8,
    FLOATS,
    INTEGERS,
    LAYOUTS,
    ON_GPU,
    assert_equal,
    np_dtype,
    pair,
    random_array,
)


@pytest.mark.parametrize("dtype", EVERY)
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_to_numpy_of_every_layout(rng, dtype, layout):
    host, x = pair(rng, layout, dtype)
    assert_equal(x, host)
    assert x.to_numpy().flags.c_contiguous
    assert x.to_numpy().flags.writeable


@pytest.mark.parametrize("dtype", EVERY)
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_from_numpy_of_every_layout(rng, dtype, layout):
    host = LAYOUTS[layout](random_array(rng, (6, 8), dtype))
    assert_equal(gp.from_numpy(host), host)


def test_large_round_trip(rng):
    host = rng.standard_normal(5_000_011).astype(np.float32)
    x = gp.from_numpy(host)
    kept = host.copy()
    host[:] = 0  # the copy must not look at the source any more
    assert_equal(x, kept)


def test_results_do_not_share_memory(rng):
    x = gp.from_numpy(rng.standard_normal(4))
    first = x.to_numpy()
    first[:] = 0
    assert (x.to_numpy() != 0).all()


@pytest.mark.parametrize("order", [">", "<"])
def test_byte_orders(order):
    host = np.array([1, 2, 300], order + "i4")
    assert_equal(gp.from_numpy(host), host.astype("=i4"))
    assert_equal(gp.asarray(np.array([1.5, 2], order + "f8")), np.array([1.5, 2]))


def test_zero_d_and_numpy_scalars():
    assert_equal(gp.from_numpy(np.array(3.5)), np.array(3.5))
    assert_equal(gp.from_numpy(np.float32(2)), np.array(2, np.float32))
    assert_equal(gp.asarray(np.int8(2)), np.array(2, np.int8))


@pytest.mark.parametrize(
    "host",
    [
        np.array([(1, 2.0)], [("a", "i4"), ("b", "f4")]),
        np.array([object()]),
        np.array(["text"]),
        np.array([1 + 2j]),
        np.array(["2026-01-01"], "datetime64[D]"),
    ],
    ids=lambda host: str(host.dtype),
)
def test_other_dtypes_are_refused(host):
    with pytest.raises(gp.InvalidTypeError):
        gp.from_numpy(host)
    with pytest.raises(gp.InvalidTypeError):
        gp.asarray(host)


def test_from_numpy_refuses_other_objects():
    with pytest.raises(gp.InvalidTypeError, match=r"expected a NumPy array, got list; use gp\.asarray"):
        gp.from_numpy([1, 2])


def test_asarray_of_python_objects():
    assert_equal(gp.asarray([1, 2, 3]), np.array([1, 2, 3]))
    assert_equal(gp.asarray([1.5, 2]), np.array([1.5, 2], np.float32))
    assert_equal(gp.asarray([[True], [False]]), np.array([[True], [False]]))
    assert_equal(gp.asarray(4), np.array(4))
    assert_equal(gp.asarray(4.5), np.array(4.5, np.float32))
    assert_equal(gp.asarray(range(3), dtype="float16"), np.arange(3, dtype=np.float16))
    assert_equal(gp.asarray([]), np.array([], np.float32))
    assert_equal(gp.asarray([2**63]), np.array([2**63], np.uint64))
    assert_equal(gp.asarray([1.1], dtype="float64"), np.array([1.1]))


def test_asarray_refuses_what_holds_no_numbers():
    for nonsense in (None, object(), "text", [None], {"a": 1}):
        with pytest.raises(gp.InvalidTypeError):
            gp.asarray(nonsense)
    with pytest.raises((gp.InvalidTypeError, gp.InvalidValueError)):
        gp.asarray([[1, 2], [3]])


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(300, "int8"), ([1, -1], "uint8"), (2**63, "int64"), (float("nan"), "int32"), ([[1e30]], "int64")],
)
def test_pythons_numbers_must_fit(value, dtype):
    with pytest.raises(gp.InvalidValueError, match=f"asarray: argument 'obj': expected .* for {dtype}, got"):
        gp.asarray(value, dtype)


def test_numbers_that_fit_and_those_of_arrays():
    for value, dtype in (
        (-128, "int8"),
        (2**64 - 1, "uint64"),
        (-(2**63), "int64"),
        ([], "int8"),
        (3.7, "int8"),
    ):
        assert_equal(
            gp.asarray(value, dtype), np.asarray(value, np.float64 if value == 3.7 else dtype).astype(dtype)
        )
    assert gp.asarray(np.int64(300), "int8").item() == 44


def test_asarray_of_an_array_copies_only_where_needed():
    x = gp.arange(6)
    assert gp.asarray(x).data_ptr == x.data_ptr
    assert gp.asarray(x, copy=True).data_ptr != x.data_ptr
    assert_equal(gp.asarray(x, dtype="float32"), np.arange(6, dtype=np.float32))
    assert gp.asarray(x, copy=False).data_ptr == x.data_ptr
    with pytest.raises(gp.InvalidValueError, match="copy"):
        gp.asarray(x, dtype="float32", copy=False)
    with pytest.raises(gp.InvalidValueError, match="copy"):
        gp.asarray([1], copy=False)


def test_an_empty_array_needs_no_copy_to_differ():
    x = gp.zeros(0, "int32")
    with pytest.raises(gp.InvalidValueError, match="copy"):
        gp.asarray(x, dtype="float32", copy=False)


@pytest.mark.parametrize("source", EVERY)
@pytest.mark.parametrize("target", EVERY)
def test_astype(rng, source, target):
    # In the range of every dtype and exact in none but the wider ones, so that rounding shows.
    host = random_array(rng, (5, 7), source, low=0, high=15)
    expected = (
        host.astype(np.float32).astype(np_dtype(target))
        if source in FLOAT8
        else host.astype(np_dtype(target))
    )
    assert_equal(gp.from_numpy(host).astype(target), expected)
    assert_equal(gp.from_numpy(host).T.astype(target), expected.T)


@pytest.mark.parametrize("target", ["float16", "bfloat16", *FLOAT8])
def test_narrowing_rounds_to_nearest_even(rng, target):
    values = (rng.standard_normal(20_000) * np.exp2(rng.integers(-20, 8, 20_000))).astype(np.float32)
    with np.errstate(over="ignore"):
        assert_equal(gp.from_numpy(values).astype(target), values.astype(np_dtype(target)))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_floats_out_of_range_saturate(dtype):
    info = np.iinfo(dtype)
    x = gp.asarray([1e30, -1e30, float("nan"), float("inf"), -float("inf")], dtype="float64").astype(dtype)
    assert x.to_numpy().tolist() == [info.max, info.min, 0, info.max, info.min]


def test_integers_wrap_between_integer_dtypes():
    host = np.array([300, -1, 2**40 + 7])
    for dtype in INTEGERS:
        assert_equal(gp.from_numpy(host).astype(dtype), host.astype(dtype))


def test_to_bool_is_whether_not_zero():
    assert_equal(
        gp.asarray([0.0, -0.0, 0.25, float("nan")]).astype("bool"), np.array([False, False, True, True])
    )
    assert_equal(gp.asarray([0, 256, -1]).astype("bool"), np.array([False, True, True]))


def test_astype_copies_unless_told_not_to():
    x = gp.arange(3)
    assert x.astype("int64").data_ptr != x.data_ptr
    assert x.astype("int64", copy=False).data_ptr == x.data_ptr
    assert x.copy().data_ptr != x.data_ptr
    assert x.contiguous().data_ptr == x.data_ptr
    assert x[::2].contiguous().is_contiguous


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (True, "bool"),
        (-5, "int8"),
        (2**64 - 1, "uint64"),
        (2**62 + 1, "int64"),
        (0.1, "float64"),
        (1.5, "bfloat16"),
    ],
)
def test_item_is_a_python_number(value, dtype):
    x = gp.full((1, 1), value, dtype)
    assert x.item() == value
    assert type(x.item()) is type(value)


def test_python_conversions():
    assert float(gp.full((), 2.5)) == 2.5
    assert int(gp.full((), 7)) == 7
    assert int(gp.full((), 7.9)) == 7
    assert bool(gp.full((), 7)) is True
    assert bool(gp.zeros((1, 1))) is False
    assert [10, 20, 30][gp.full((), 1, "int32")] == 20
    assert float(gp.full((), 3, "uint8")) == 3.0
    with pytest.raises(gp.InvalidTypeError):
        [10][gp.zeros(())]
    for convert in (float, int):
        with pytest.raises(gp.InvalidValueError, match="one element"):
            convert(gp.zeros(3))


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_tolist(dtype):
    host = np.arange(6).reshape(2, 3).astype(np_dtype(dtype))
    assert gp.from_numpy(host).tolist() == host.tolist()


def test_iteration_gives_rows():
    x = gp.arange(6).reshape(2, 3)
    assert [row.tolist() for row in x] == [[0, 1, 2], [3, 4, 5]]


def test_numpy_does_not_convert_unasked():
    x = gp.zeros(3)
    with pytest.raises(TypeError, match=r"to_numpy\(\)"):
        np.asarray(x)
    with pytest.raises(TypeError):
        np.array([x, x])


def test_printing():
    where = "" if ON_GPU else ", device='cpu'"
    assert repr(gp.arange(3)) == f"Array([0, 1, 2], dtype=int64{where})"
    assert repr(gp.full((), 1.5, "bfloat16")) == f"Array(1.5, dtype=bfloat16{where})"
    assert repr(gp.zeros((0, 2))) == f"Array([], shape=(0, 2), dtype=float32{where})"
    two_rows = f"Array([[0, 1],\n       [2, 3]], dtype=int64{where})"
    assert repr(gp.arange(4).reshape(2, 2)) == two_rows
    assert "..." in repr(gp.zeros(5000))
    assert str(gp.arange(3)) == repr(gp.arange(3))


def test_to_device_of_the_same_device_is_the_array():
    x = gp.arange(3)
    assert x.to_device(gp.device()).data_ptr == x.data_ptr
    there = x[::2].to_device("cpu")
    assert there.device == "cpu"
    assert_equal(there, np.array([0, 2]))


def test_bfloat16_crosses_as_ml_dtypes():
    host = np.array([1.5, -2], ml_dtypes.bfloat16)
    assert gp.from_numpy(host).to_numpy().dtype == ml_dtypes.bfloat16
