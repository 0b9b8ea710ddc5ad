import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import pygpukit as gp
from support import EVERY, assert_equal, np_dtype, random_array

SHAPE = (5, 6, 7)


@given(key=hnp.basic_indices(SHAPE, allow_newaxis=True), data=st.data())
def test_arrays_broadcast_into_views(key, data):
    host = np.zeros(SHAPE, np.int32)
    x = gp.from_numpy(host)
    target_shape = np.shape(host[key])
    # A source that broadcasts to the view: some axes of extent 1, some of the first ones left out.
    ones = data.draw(st.lists(st.booleans(), min_size=len(target_shape), max_size=len(target_shape)))
    shape = tuple(1 if one else extent for one, extent in zip(ones, target_shape, strict=True))
    shape = shape[data.draw(st.integers(0, len(shape))) :]
    source = np.arange(1, np.prod(shape, dtype=int) + 1, dtype=np.int32).reshape(shape)
    host[key] = source
    x[key] = gp.from_numpy(source)
    assert_equal(x, host)


@pytest.mark.parametrize("dtype", EVERY)
def test_numbers_into_every_dtype(dtype):
    host = np.zeros((3, 4), np_dtype(dtype))
    x = gp.from_numpy(host)
    host[1:, ::2] = 1
    x[1:, ::2] = 1
    assert_equal(x, host)
    x[...] = 0
    assert not x.to_numpy().astype(bool).any()


def test_numpy_scalars():
    x = gp.zeros(3, "float32")
    x[1] = np.float64(2.5)
    x[2] = np.int8(-3)
    assert x.tolist() == [0, 2.5, -3]


@pytest.mark.parametrize("source", ["bool", "int64", "uint8", "float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("target", ["bool", "int8", "uint32", "float16", "bfloat16", "float64"])
def test_values_convert(rng, source, target):
    host = random_array(rng, (4, 5), source, low=0, high=9)
    x = gp.zeros((4, 5), target)
    x[::2] = gp.from_numpy(host)[::2]
    expected = np.zeros((4, 5), np_dtype(target))
    expected[::2] = host[::2].astype(np_dtype(target))
    assert_equal(x, expected)


@pytest.mark.parametrize(
    ("to", "source"),
    [
        (np.s_[1:], np.s_[:-1]),
        (np.s_[:-1], np.s_[1:]),
        (np.s_[::-1], np.s_[:]),
        (np.s_[:], np.s_[::-1]),
        (np.s_[:5], np.s_[::2]),
        (np.s_[::2], np.s_[5:]),
    ],
)
@pytest.mark.parametrize("count", [10, 100_000])
def test_overlapping_source(to, source, count):
    host = np.arange(count)
    x = gp.from_numpy(host)
    if count != 10 and (to, source) in [(np.s_[:5], np.s_[::2]), (np.s_[::2], np.s_[5:])]:
        to, source = np.s_[: count // 2], np.s_[::2]
    host[to] = host[source].copy()
    x[to] = x[source]
    assert_equal(x, host)


def test_transposed_onto_itself():
    host = np.arange(400 * 400).reshape(400, 400)
    x = gp.from_numpy(host)
    x[...] = x.T
    assert_equal(x, host.T)


def test_shapes_that_do_not_fit():
    x = gp.zeros((2, 3))
    with pytest.raises(gp.InvalidValueError, match=r"\(2, 3\)"):
        x[...] = gp.zeros(4)
    with pytest.raises(gp.InvalidValueError):
        x[0] = gp.zeros((2, 3))


def test_only_arrays_and_numbers():
    x = gp.zeros(3)
    with pytest.raises(gp.InvalidTypeError, match=r"assignment: argument 'value'.*gp\.asarray"):
        x[:] = np.zeros(3)
    with pytest.raises(gp.InvalidTypeError):
        x[:] = [1, 2, 3]
    with pytest.raises(gp.InvalidTypeError):
        x[0] = None


def test_an_integer_out_of_range():
    x = gp.zeros(3, "uint8")
    with pytest.raises(gp.InvalidValueError, match="uint8"):
        x[:] = 256
    assert x.tolist() == [0, 0, 0]


def test_nothing_into_nothing():
    x = gp.zeros((0, 3))
    x[...] = 5
    x[...] = gp.zeros(3)
    assert x.shape == (0, 3)


def test_augmented_assignment_through_an_index():
    x = gp.arange(6).reshape(2, 3)
    x[1] += 10
    x[:, 0] *= 2
    assert x.tolist() == [[0, 1, 2], [26, 14, 15]]
