"""DLPack: NumPy on the host always, PyTorch and CuPy on the GPU where they are."""

import ctypes
import gc
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pygpukit as gp
from support import ARITHMETIC, LAYOUTS, ON_GPU, pair, random_array, run_python

NUMPY_DTYPES = [name for name in ARITHMETIC if name != "bfloat16"]
on_host = pytest.mark.skipif(ON_GPU, reason="NumPy sees host memory only")
on_cuda = pytest.mark.skipif(not ON_GPU, reason="needs a GPU")

# -- DLPack's structs, to look into capsules and to make bad ones ------------------------------------------


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


FORMS = {b"dltensor": Managed, b"dltensor_versioned": ManagedVersioned}
api = ctypes.pythonapi
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
api.PyCapsule_GetName.restype = ctypes.c_char_p
api.PyCapsule_GetName.argtypes = [ctypes.py_object]
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def inside(capsule):
    """The name of a capsule and the struct in it."""
    name = api.PyCapsule_GetName(capsule)
    return name, FORMS[name].from_address(api.PyCapsule_GetPointer(capsule, name))


class Producer:
    """A library of the test's own, with memory that it counts the ends of."""

    def __init__(self, form=b"dltensor_versioned", name=None, device=(1, 0)):
        self.memory = (ctypes.c_int64 * 8)(*range(8))
        self.shape = (ctypes.c_int64 * 2)(2, 4)
        self.strides = (ctypes.c_int64 * 2)(4, 1)
        self.deleted = 0
        self.asked = []
        self.device = device

        def delete(_):
            self.deleted += 1

        self.deleter = DELETER(delete)
        self.struct = FORMS[form]()
        self.struct.deleter = self.deleter
        if form == b"dltensor_versioned":
            self.struct.major, self.struct.minor = 1, 0
        tensor = self.tensor = self.struct.tensor
        tensor.data = ctypes.addressof(self.memory)
        tensor.device_type, tensor.device_id = 1, 0
        tensor.ndim, tensor.code, tensor.bits, tensor.lanes = 2, 0, 64, 1
        tensor.shape, tensor.strides = self.shape, self.strides
        self.name = ctypes.c_char_p(name if name is not None else form)
        self.capsule = api.PyCapsule_New(ctypes.addressof(self.struct), self.name, None)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **how):
        self.asked.append(how)
        return self.capsule


# -- With NumPy, on the host -------------------------------------------------------------------------------


@on_host
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_numpy_sees_the_same_memory(rng, layout, dtype):
    host, array = pair(rng, layout, dtype)
    seen = np.from_dlpack(array)
    assert (seen.dtype, seen.shape) == (host.dtype, host.shape)
    np.testing.assert_array_equal(seen, host)
    assert seen.flags.aligned
    assert seen.flags.writeable == array.writable
    if array.size:
        assert seen.ctypes.data == array.data_ptr
        assert [s for s, n in zip(seen.strides, seen.shape, strict=True) if n > 1] == [
            s for s, n in zip(array.strides, array.shape, strict=True) if n > 1
        ]
    if array.size and array.writable:
        seen[...] = 1
        assert (array.to_numpy() == np.ones(1, dtype)).all()


@on_host
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_numpy_memory_is_used_where_it_is(rng, layout, dtype):
    host = LAYOUTS[layout](random_array(rng, (6, 8), dtype))
    array = gp.from_dlpack(host)
    assert (str(array.dtype), array.shape) == (dtype, host.shape)
    assert array.device.name == "cpu"
    np.testing.assert_array_equal(array.to_numpy(), host)
    if host.size:
        assert array.data_ptr == host.ctypes.data
        assert array.writable == host.flags.writeable
    if host.size and host.flags.writeable:
        host[...] = 1
        assert (array.to_numpy() == np.ones(1, dtype)).all()
        array[...] = 0
        assert not host.any()


@on_host
@given(st.data())
def test_any_view_of_an_array_goes_there_and_back(data):
    shape = data.draw(st.lists(st.integers(0, 5), max_size=4))
    dtype = data.draw(st.sampled_from(NUMPY_DTYPES))
    host = np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape)
    array = gp.from_dlpack(host)
    key = tuple(data.draw(st.slices(n) if n else st.just(slice(None)), label=f"axis of {n}") for n in shape)
    axes = data.draw(st.permutations(range(len(shape))))
    view = array[key].transpose(*axes) if shape else array
    expected = host[key].transpose(axes) if shape else host
    np.testing.assert_array_equal(view.to_numpy(), expected)
    seen = np.from_dlpack(view)
    np.testing.assert_array_equal(seen, expected)
    np.testing.assert_array_equal(gp.from_dlpack(seen).to_numpy(), expected)
    np.testing.assert_array_equal((view + view).to_numpy(), expected + expected)


@on_host
def test_each_side_keeps_the_other_alive():
    host = np.arange(6.0)
    gone = weakref.ref(host)
    array = gp.from_dlpack(host)[2:]
    del host
    gc.collect()
    assert gone() is not None
    assert array.tolist() == [2, 3, 4, 5]
    del array
    gc.collect()
    assert gone() is None

    seen = np.from_dlpack(gp.arange(6, dtype="float32"))
    assert seen.tolist() == [0, 1, 2, 3, 4, 5]
    before = gp.memory.stats()["live_bytes"]
    del seen
    gc.collect()
    assert gp.memory.stats()["live_bytes"] == before - 24


@on_host
def test_read_only_stays_read_only():
    host = np.arange(3)
    host.flags.writeable = False
    array = gp.from_dlpack(host)
    assert not array.writable
    with pytest.raises(gp.InvalidValueError, match="read-only"):
        array[0] = 5
    assert not np.from_dlpack(array).flags.writeable
    with pytest.raises(BufferError, match="read-only"):
        array.__dlpack__()
    assert np.from_dlpack(array, copy=True).flags.writeable


@on_host
def test_borrowed_memory_counts_for_no_limit():
    host = np.ones(1 << 20)
    with gp.partition(memory=1 << 20) as part:
        array = gp.from_dlpack(host)
        assert float(gp.sum(array)) == 1 << 20
        assert part.stats()["memory_used"] < 1 << 20
        with pytest.raises(gp.OutOfMemoryError):
            gp.zeros(1 << 20, dtype="float64")


@on_host
def test_large_arrays_pass_the_transfer_engine():
    host = np.arange(1 << 20, dtype=np.float64)  # 8 MiB
    array = gp.from_dlpack(host)
    np.testing.assert_array_equal(array.to_numpy(), host)
    del array
    gc.collect()
    assert sys.getrefcount(host) == 2


# -- The protocol ------------------------------------------------------------------------------------------


def test_own_arrays_are_views_and_copies_where_asked_for():
    array = gp.arange(4, dtype="int32")
    view = gp.from_dlpack(array)
    view[0] = 9
    assert array.tolist() == [9, 1, 2, 3]
    copy = gp.from_dlpack(array, copy=True)
    copy[0] = 0
    assert array.tolist() == [9, 1, 2, 3]
    assert gp.from_dlpack(array, device=array.device, copy=False).data_ptr == array.data_ptr


def test_capsules_have_the_form_that_was_asked_for():
    array = gp.zeros((2, 3), dtype="float8_e4m3")
    expected = (2, 0) if ON_GPU else (1, 0)
    assert array.__dlpack_device__() == expected
    for version, name in {None: b"dltensor", (0, 8): b"dltensor", (1, 0): b"dltensor_versioned"}.items():
        capsule = array.__dlpack__(max_version=version)
        found, struct = inside(capsule)
        assert found == name
        tensor = struct.tensor
        assert (tensor.device_type, tensor.device_id) == expected
        assert (tensor.code, tensor.bits, tensor.lanes) == (10, 8, 1)
        assert tensor.shape[:2] == [2, 3]
        assert tensor.strides[:2] == [3, 1]
        assert tensor.data == array.data_ptr
    for asked, given_ in {(1, 0): (1, 0), (1, 1): (1, 1), (1, 9): (1, 1), (7, 0): (1, 1)}.items():
        struct = inside(array.__dlpack__(max_version=asked))[1]
        assert (struct.major, struct.minor, struct.flags) == (*given_, 0)
    assert inside(array.__dlpack__(max_version=(1, 0), copy=True))[1].flags == 2
    broadcast = gp.broadcast_to(gp.zeros(3), (2, 3))
    assert inside(broadcast.__dlpack__(max_version=(1, 0)))[1].flags == 1


def test_a_capsule_that_nobody_takes_lets_go():
    before = gp.memory.stats()["live_bytes"]
    for version in (None, (1, 0)):
        capsule = gp.zeros(1000).__dlpack__(max_version=version)
        assert gp.memory.stats()["live_bytes"] == before + 4000
        del capsule
        assert gp.memory.stats()["live_bytes"] == before


def test_arguments_that_make_no_sense_are_refused():
    array = gp.zeros(3)
    for stream in (0, -2, 1 << 70):
        with pytest.raises(gp.InvalidValueError, match="stream|64 bits"):
            array.__dlpack__(stream=stream)
    for stream in ("1", 1.0, True):
        with pytest.raises(gp.InvalidTypeError, match="stream"):
            array.__dlpack__(stream=stream)
    for version in ((1,), (1, 0, 0), "1.0", 1, (1.0, 0)):
        with pytest.raises(gp.InvalidTypeError, match="max_version"):
            array.__dlpack__(max_version=version)
    with pytest.raises(gp.InvalidValueError, match="dl_device"):
        array.__dlpack__(dl_device=(-1, 0))
    with pytest.raises(gp.ExchangeError, match=r"dl_device.*\(10, 0\)"):
        array.__dlpack__(dl_device=(10, 0))
    if not ON_GPU:
        with pytest.raises(gp.InvalidValueError, match="stream"):
            array.__dlpack__(stream=1)
        assert inside(array.__dlpack__(stream=-1))[0] == b"dltensor"


def test_lending_inside_a_capture_is_refused():
    array = gp.zeros(3)
    with gp.Graph():
        with pytest.raises(gp.UnsupportedError, match="captured"):
            array.__dlpack__()
        array + array


# -- Eviction ----------------------------------------------------------------------------------------------


def states(address):
    return [each["state"] for each in gp.memory.snapshot() if each["address"] == address]


@pytest.fixture
def small_device():
    gp.memory.trim()
    gp.memory.set_limit(gp.memory.stats()["reserved_bytes"] + (64 << 20))
    gp.memory.set_eviction(True)
    yield
    gp.memory.set_eviction(False)
    gp.memory.set_limit(None)


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_what_is_lent_stays_until_it_is_back(small_device, version):
    array = gp.full(8 << 20, 7, dtype="uint8")
    capsule = array.__dlpack__(max_version=version)
    address = inside(capsule)[1].tensor.data
    others = [gp.full(8 << 20, n, dtype="uint8") for n in range(20)]
    assert gp.memory.stats()["evicted_bytes"] > 0
    assert states(address) == ["live"]
    del capsule
    others += [gp.full(8 << 20, n, dtype="uint8") for n in range(20)]
    assert states(address) == ["evicted"]
    assert int(gp.sum(array.astype("uint32"))) == 7 * (8 << 20)
    assert int(others[3][5]) == 3


# -- Producers of all kinds --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_both_forms_are_taken_and_ended_once(form):
    producer = Producer(form)
    array = gp.from_dlpack(producer)
    assert array.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert array.device.name == "cpu"
    assert producer.asked == [{"max_version": (1, 1)}]
    assert api.PyCapsule_GetName(producer.capsule) == b"used_" + form
    with pytest.raises(gp.ExchangeError, match="used_dltensor"):
        gp.from_dlpack(producer)
    view = array[1]
    del array
    assert producer.deleted == 0
    assert view.tolist() == [4, 5, 6, 7]
    del view
    assert producer.deleted == 1


def test_producers_from_before_the_versions_are_asked_again():
    class Old(Producer):
        def __dlpack__(self, *, stream=None):
            return self.capsule

    producer = Old(b"dltensor")
    copy = gp.from_dlpack(producer, copy=True)
    assert producer.deleted == 1
    assert copy.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert copy.writable

    class Broken(Producer):
        def __dlpack__(self, **how):
            raise TypeError("broken" + "".join(how))

    with pytest.raises(TypeError, match="^broken$"):
        gp.from_dlpack(Broken())


def test_a_copy_that_the_producer_made_is_not_copied_again():
    producer = Producer()
    producer.struct.flags = 2
    array = gp.from_dlpack(producer, copy=True)
    assert producer.asked == [{"max_version": (1, 1), "copy": True}]
    assert array.data_ptr == producer.tensor.data
    with pytest.raises(gp.ExchangeError):
        gp.from_dlpack(producer)


def test_flags_and_missing_deleters_are_minded():
    producer = Producer()
    producer.struct.flags = 1
    assert not gp.from_dlpack(producer).writable
    producer = Producer()
    producer.struct.deleter = DELETER()
    array = gp.from_dlpack(producer)
    del array  # nothing to call
    assert producer.deleted == 0


def test_other_devices_are_asked_for_a_copy_on_the_host():
    producer = Producer(device=(8, 3))  # Metal
    with pytest.raises(gp.ExchangeError, match=r"\(8, 3\)"):
        gp.from_dlpack(producer)
    with pytest.raises(gp.ExchangeError):
        gp.from_dlpack(producer, device="cpu", copy=False)
    assert producer.asked == []
    array = gp.from_dlpack(producer, device="cpu")
    assert producer.asked == [{"max_version": (1, 1), "dl_device": (1, 0)}]
    assert array.tolist()[1][3] == 7


@pytest.mark.skipif(ON_GPU, reason="a GPU is here")
def test_cuda_memory_without_cuda_is_refused():
    producer = Producer(device=(2, 0))
    with pytest.raises(gp.UnsupportedError):
        gp.from_dlpack(producer)
    assert producer.asked == []


SPOILED = {
    "rank": lambda t: setattr(t, "ndim", -3),
    "huge rank": lambda t: setattr(t, "ndim", 2**31 - 1),
    "no shape": lambda t: setattr(t, "shape", None),
    "no data": lambda t: setattr(t, "data", None),
    "lanes": lambda t: setattr(t, "lanes", 2),
    "dtype": lambda t: setattr(t, "code", 5),
    "device": lambda t: setattr(t, "device_type", 10),
    "negative extent": lambda t: t.shape.__setitem__(0, -2),
    "too large": lambda t: (t.shape.__setitem__(0, 2**62), t.shape.__setitem__(1, 2**62)),
    "stride": lambda t: t.strides.__setitem__(0, 2**63 - 1),
    "negative stride": lambda t: t.strides.__setitem__(0, -(2**63)),
    "offset": lambda t: setattr(t, "byte_offset", 2**64 - 8),
    "misaligned": lambda t: setattr(t, "byte_offset", 3),
}


@pytest.mark.parametrize("spoil", SPOILED)
@pytest.mark.parametrize("form", FORMS)
def test_hostile_tensors_are_refused_and_left_to_their_owner(form, spoil):
    producer = Producer(form)
    SPOILED[spoil](producer.tensor)
    with pytest.raises(gp.ExchangeError):
        gp.from_dlpack(producer)
    assert producer.deleted == 0
    assert api.PyCapsule_GetName(producer.capsule) == form


def test_hostile_capsules_are_refused():
    producer = Producer()
    producer.struct.major = 2
    with pytest.raises(gp.ExchangeError, match=r"2\.0"):
        gp.from_dlpack(producer)
    with pytest.raises(gp.ExchangeError, match="strange"):
        gp.from_dlpack(Producer(name=b"strange"))
    for answer in (None, 3, "dltensor"):
        producer = Producer()
        producer.capsule = answer
        with pytest.raises(gp.ExchangeError, match=type(answer).__name__):
            gp.from_dlpack(producer)
    for x in (None, 3, [1, 2], Producer().capsule):
        with pytest.raises(gp.InvalidTypeError):
            gp.from_dlpack(x)
    for device in (None, (1,), (1, 0, 0), "cpu", (1.5, 0)):
        with pytest.raises(gp.InvalidTypeError):
            gp.from_dlpack(Producer(device=device))
    for device in ((-1, 0), (1, 2**31), (2**80, 0)):
        with pytest.raises(gp.InvalidValueError):
            gp.from_dlpack(Producer(device=device))


def test_errors_of_the_producer_come_through():
    class Failing(Producer):
        def __dlpack__(self, **how):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        gp.from_dlpack(Failing())


# -- Threads, fork, and the end ----------------------------------------------------------------------------


def test_many_threads_exchange():
    wrong = []

    def work(seed):
        for i in range(100):
            producer = Producer()
            array = gp.from_dlpack(producer)
            array += seed + i
            total = int(gp.sum(array))
            del array
            # While others use the stream, it ends on another thread, and must be there until then.
            end = time.monotonic() + 30
            while producer.deleted == 0 and time.monotonic() < end:
                time.sleep(0)
            if total != 28 + 8 * (seed + i) or producer.deleted != 1:
                wrong.append((seed, i, total, producer.deleted))

    threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []


@on_host
def test_what_is_alive_at_the_end_of_the_interpreter_is_no_trouble():
    done = run_python(
        """
import os, numpy as np, pygpukit as gp
host = np.arange(5)
array, seen, capsule = gp.from_dlpack(host), np.from_dlpack(gp.ones(4)), gp.ones(3).__dlpack__()
child = os.fork()
if child == 0:
    assert array.tolist() == [0, 1, 2, 3, 4]
    del array, seen, capsule
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
class Keep: pass
keep = Keep()
keep.me, keep.all = keep, (array, seen, capsule)
"""
    )
    assert (done.returncode, done.stderr) == (0, "")


# -- PyTorch and CuPy on the GPU ---------------------------------------------------------------------------


@on_cuda
def test_torch_and_back():
    torch = pytest.importorskip("torch")
    array = gp.arange(12, dtype="float32").reshape(3, 4)
    seen = torch.from_dlpack(array[:, ::2])
    assert seen.device.type == "cuda"
    assert seen.data_ptr() == array.data_ptr
    assert seen.stride() == (4, 2)
    seen += 1
    torch.cuda.synchronize()
    assert array.tolist()[0] == [1, 1, 3, 3]
    for name in ("float16", "bfloat16", "float64", "int8", "uint8", "int32", "int64", "bool"):
        tensor = torch.ones(5, 7, device="cuda").to(getattr(torch, name)).t()
        back = gp.from_dlpack(tensor)
        assert (str(back.dtype), back.shape) == (name, (7, 5))
        assert back.data_ptr == tensor.data_ptr()
        assert float(gp.sum(back.astype("float32"))) == 35


@on_cuda
def test_torch_streams_are_ordered_both_ways():
    torch = pytest.importorskip("torch")
    side = torch.cuda.Stream()
    a = torch.randn(3000, 3000, device="cuda")
    for n in range(20):
        with torch.cuda.stream(side):
            product = a @ a
            product.fill_(n)
            array = gp.from_dlpack(product)  # our stream waits for the side stream
        with gp.Stream():
            doubled = array * 2
            for _ in range(5):
                doubled = doubled + 0
            with torch.cuda.stream(side):
                seen = torch.from_dlpack(doubled)  # and the side stream for ours
                assert float(seen.sum()) == 2 * n * 9e6
        side.synchronize()
        del array, seen


@on_cuda
def test_memory_that_torch_gives_back_is_not_reused_too_early():
    torch = pytest.importorskip("torch")
    a = torch.randn(4000, 4000, device="cuda")
    for n in range(20):
        array = gp.full((1 << 22,), n, dtype="float32")
        seen = torch.from_dlpack(array)
        a @ a
        total = (seen + 0).double().sum()  # behind the product, on torch's stream
        del seen, array
        again = gp.full((1 << 22,), -1, dtype="float32")  # the same block
        assert float(total) == n * float(1 << 22)
        assert float(gp.sum(again)) == -float(1 << 22)


@on_cuda
def test_torch_memory_lives_until_our_kernels_are_done():
    torch = pytest.importorskip("torch")
    x = gp.ones((4096, 4096), dtype="float32")
    for n in range(20):
        tensor = torch.full((1 << 22,), float(n), device="cuda")
        borrowed = gp.from_dlpack(tensor)
        with gp.Stream() as stream:
            for _ in range(4):
                x @ x
            result = borrowed + 0.0
        del tensor, borrowed
        torch.full((1 << 22,), -1.0, device="cuda")  # would take the block if it came back too early
        stream.synchronize()
        assert float(gp.max(result)) == n
        assert float(gp.min(result)) == n


@on_cuda
def test_cupy_and_back():
    cupy = pytest.importorskip("cupy")
    array = gp.arange(12, dtype="int32").reshape(3, 4)
    seen = cupy.from_dlpack(array[::-1])
    assert cupy.asnumpy(seen).tolist() == array.to_numpy()[::-1].tolist()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        made = cupy.arange(1 << 20, dtype="float32") * 2
        back = gp.from_dlpack(made)
        assert float(back[12345].item()) == 24690
        stream.synchronize()


@on_cuda
def test_a_gpu_array_reaches_numpy_where_a_copy_is_asked_for():
    array = gp.arange(6, dtype="float32")[::-1]
    seen = np.from_dlpack(array, device="cpu")
    assert seen.tolist() == [5, 4, 3, 2, 1, 0]
    with pytest.raises((gp.ExchangeError, BufferError)):
        np.from_dlpack(array, device="cpu", copy=False)
    assert gp.from_dlpack(np.arange(4), device=array.device).tolist() == [0, 1, 2, 3]


@on_cuda
def test_addresses_that_are_not_the_gpus_are_refused():
    producer = Producer(device=(2, 0))
    producer.tensor.device_type = 2
    with pytest.raises(gp.InvalidValueError, match="CUDA does not know"):
        gp.from_dlpack(producer)
    assert producer.deleted == 1
