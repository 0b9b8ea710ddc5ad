import pickle

import numpy as np
import pytest

import pygpukit as gp
from support import EVERY, LAYOUTS, np_dtype, pair


@pytest.mark.parametrize("dtype", EVERY)
def test_sizes(dtype):
    x = gp.zeros((2, 3, 4), dtype)
    size = np_dtype(dtype).itemsize
    assert x.shape == (2, 3, 4)
    assert x.ndim == 3
    assert x.size == 24
    assert x.itemsize == size
    assert x.nbytes == 24 * size
    assert x.strides == (12 * size, 4 * size, size)
    assert len(x) == 2
    assert x.dtype == dtype
    assert x.writable


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_strides_are_numpys(rng, layout):
    host, x = pair(rng, layout, "float32")
    assert x.shape == host.shape
    assert x.ndim == host.ndim
    assert x.size == host.size
    if host.size > 1:
        assert x.strides == host.strides
        assert x.is_contiguous == host.flags.c_contiguous


def test_addresses_of_views():
    x = gp.zeros((4, 8), "int32")
    assert x[1:].data_ptr == x.data_ptr + 32
    assert x[:, ::-1].data_ptr == x.data_ptr + 28
    assert x.T.data_ptr == x.data_ptr


def test_device_of_an_array():
    x = gp.zeros(2)
    assert x.device == gp.device()
    assert x.device == gp.device().name
    assert x.device != "cuda:99"
    assert (x + 1).device == x.device


def test_a_broadcast_view_is_read_only():
    x = gp.broadcast_to(gp.zeros(3), (2, 3))
    assert not x.writable
    with pytest.raises(gp.InvalidValueError, match="read-only"):
        x[0] = 1
    with pytest.raises(gp.InvalidValueError, match="read-only"):
        x += 1


@pytest.mark.parametrize("name", EVERY)
def test_dtype_objects(name):
    dtype = gp.zeros(1, name).dtype
    assert dtype is getattr(gp, "bool_" if name == "bool" else name)
    assert dtype.name == str(dtype) == name
    assert repr(dtype) == f"pygpukit.{name}"
    assert dtype == name
    assert hash(dtype) == hash(name)
    assert dtype.itemsize == np_dtype(name).itemsize
    assert dtype.kind == ("f" if "float" in name else np.dtype(name).kind)
    assert dtype != "nonsense"
    assert dtype != None  # noqa: E711
    assert pickle.loads(pickle.dumps(dtype)) is dtype


def test_dtype_compares_with_numpys():
    assert gp.float32 == np.float32
    assert gp.float32 == np.dtype("float32")
    assert gp.float32 != np.float64


def test_arrays_cannot_be_hashed():
    with pytest.raises(TypeError, match="hash"):
        hash(gp.zeros(1))


def test_an_array_of_many_elements_has_no_truth():
    with pytest.raises(gp.InvalidValueError, match="one element"):
        bool(gp.zeros(2))
    with pytest.raises(gp.InvalidTypeError, match="0-d"):
        len(gp.zeros(()))
    with pytest.raises(gp.InvalidTypeError, match="0-d"):
        iter(gp.zeros(()))
