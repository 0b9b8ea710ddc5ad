import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import pygpukit as gp
from support import assert_equal

SHAPE = (4, 5, 6)


def both(shape=SHAPE, dtype="int32"):
    host = np.arange(np.prod(shape, dtype=int), dtype=dtype).reshape(shape)
    return host, gp.from_numpy(host)


@given(key=hnp.basic_indices(SHAPE, allow_newaxis=True, allow_ellipsis=True, max_dims=6))
def test_basic_indexing_is_numpys(key):
    host, x = both()
    assert_equal(x[key], host[key])


@given(key=hnp.basic_indices(SHAPE, allow_newaxis=True), data=st.data())
def test_a_view_of_a_view(key, data):
    host, x = both()
    once = np.asarray(host[key])
    second = data.draw(hnp.basic_indices(once.shape, allow_newaxis=False))
    assert_equal(x[key][second], once[second])


@given(key=hnp.basic_indices(SHAPE, allow_newaxis=True))
def test_views_share_memory(key):
    host, x = both()
    before = x.data_ptr
    x[key] = -1
    host[key] = -1
    assert x.data_ptr == before
    assert_equal(x, host)


@pytest.mark.parametrize(
    "key", [np.int64(1), slice(np.int8(1), None), (True,), [0, 1], 1.5, "a", (slice(None), [0])]
)
def test_what_may_index(key):
    host, x = both()
    if isinstance(key, np.integer | slice):
        assert_equal(x[key], host[key])
    else:
        with pytest.raises(gp.InvalidTypeError, match=r"gp\.take"):
            x[key]


def test_an_array_does_not_index():
    _, x = both()
    with pytest.raises(gp.InvalidTypeError, match=r"gp\.take"):
        x[gp.arange(2)]
    with pytest.raises(gp.InvalidTypeError, match=r"gp\.where"):
        x[x > 3]


@pytest.mark.parametrize("key", [4, -5, (0, 5), (0, 0, 0, 0), (..., ...), (0, 0, 0, 0, ...)])
def test_indices_out_of_range(key):
    _, x = both()
    with pytest.raises(IndexError):
        x[key]


def test_a_step_of_zero_is_refused():
    _, x = both()
    with pytest.raises(ValueError, match="zero"):
        x[::0]


def test_indexing_ends_iteration():
    _, x = both((3,))
    assert [int(v) for v in x] == [0, 1, 2]
    assert 2 in x.tolist()


@pytest.mark.parametrize("axes", [(), (0, 1, 2), (2, 0, 1), (-1, 0, 1), (1, 2, 0)])
def test_transpose(axes):
    host, x = both()
    assert_equal(x.transpose(*axes), host.transpose(*axes))
    if axes:
        assert_equal(x.transpose(axes), host.transpose(axes))
        assert_equal(gp.transpose(x, axes), host.transpose(axes))
    assert_equal(gp.transpose(x), host.T)
    assert_equal(x.T, host.T)


@pytest.mark.parametrize("axes", [(0, 1), (0, 0, 1), (0, 1, 3), (0, 1, 2, 3)])
def test_transpose_refuses(axes):
    _, x = both()
    with pytest.raises((gp.InvalidValueError, gp.OutOfBoundsError), match="transpose"):
        x.transpose(axes)


@pytest.mark.parametrize("shape", [(120,), (-1,), (2, -1, 3), (4, 5, 6, 1), (1, 120), (8, 15)])
def test_reshape(shape):
    host, x = both()
    assert_equal(x.reshape(shape), host.reshape(shape))
    assert_equal(x.reshape(*shape), host.reshape(shape))
    assert_equal(gp.reshape(x, shape), host.reshape(shape))
    assert x.reshape(shape).data_ptr == x.data_ptr
    assert_equal(x.T.reshape(shape), host.T.reshape(shape))
    assert_equal(x[::2, ::-1].reshape(-1), host[::2, ::-1].reshape(-1))


def test_reshape_is_a_view_where_numpys_is():
    host, x = both()
    for view, mine in [
        (host[1:3], x[1:3]),
        (host[:, :, ::2], x[:, :, ::2]),
        (host[::-1], x[::-1]),
        (host.T, x.T),
    ]:
        for shape in [(-1,), (view.shape[0], -1), (*view.shape, 1), (view.shape[0] * view.shape[1], -1)]:
            shared = np.shares_memory(view.reshape(shape), host)
            result = mine.reshape(shape)
            assert_equal(result, view.reshape(shape))
            assert (result.data_ptr == mine.data_ptr) == shared


@pytest.mark.parametrize("shape", [(7,), (-1, -1), (-1, 7), (0, -1), (-2, 60)])
def test_reshape_refuses(shape):
    _, x = both()
    with pytest.raises(gp.InvalidValueError, match="reshape"):
        x.reshape(shape)


def test_reshape_of_nothing():
    x = gp.zeros((0, 3))
    assert x.reshape(3, 0).shape == (3, 0)
    with pytest.raises(gp.InvalidValueError):
        x.reshape(0, -1)


def test_ravel_and_flatten():
    host, x = both()
    assert_equal(x.ravel(), host.ravel())
    assert x.ravel().data_ptr == x.data_ptr
    assert_equal(x.T.ravel(), host.T.ravel())
    assert_equal(x.flatten(), host.flatten())
    assert x.flatten().data_ptr != x.data_ptr


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), ()])
def test_squeeze(axis):
    host, x = both((1, 3, 1))
    assert_equal(x.squeeze(axis), host.squeeze(axis))


def test_squeeze_refuses_a_longer_axis():
    with pytest.raises(gp.InvalidValueError, match="squeeze"):
        gp.zeros((1, 3)).squeeze(1)


@pytest.mark.parametrize("axis", [0, 1, 3, -1, -4])
def test_expand_dims(axis):
    host, x = both()
    assert_equal(gp.expand_dims(x, axis), np.expand_dims(host, axis))


def test_expand_dims_refuses():
    with pytest.raises(gp.OutOfBoundsError):
        gp.expand_dims(gp.zeros(3), 2)
    with pytest.raises(gp.OutOfBoundsError):
        gp.expand_dims(gp.zeros(3), -3)


@pytest.mark.parametrize(
    ("shape", "to"),
    [((3,), (2, 3)), ((3, 1), (3, 4)), ((1,), (0,)), ((), (2, 2)), ((1, 3, 1), (5, 3, 2)), ((0,), (3, 0))],
)
def test_broadcast_to(shape, to):
    host, x = both(shape)
    assert_equal(gp.broadcast_to(x, to), np.broadcast_to(host, to))


@pytest.mark.parametrize(("shape", "to"), [((3,), (4,)), ((2, 3), (3,)), ((3, 2), (3,)), ((3,), (2, -3))])
def test_broadcast_to_refuses(shape, to):
    with pytest.raises(gp.InvalidValueError, match="broadcast"):
        gp.broadcast_to(gp.zeros(shape), to)


def test_a_view_keeps_its_memory_alive():
    view = gp.arange(1000)[10:20]
    for _ in range(50):
        gp.full(1000, -1, "int64")
    assert view.tolist() == list(range(10, 20))


def test_more_axes_than_an_array_can_have():
    with pytest.raises(gp.InvalidValueError):
        gp.zeros((1,) * 40)
