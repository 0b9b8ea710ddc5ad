import pytest

import pygpukit as gp
from support import ON_GPU, run_python

# A program that says what it warned, and on which device it ended up.
PROBE = """
import warnings
import pygpukit as gp
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    gp.ones(3) + 1
    gp.zeros(2)
print(gp.device())
for each in caught:
    print(each.category.__name__, each.message)
"""
no_gpu = pytest.mark.skipif(gp.is_cuda_available(), reason="there is a GPU here")


def test_the_device_under_test():
    assert gp.device().is_cuda == ON_GPU
    assert gp.device() == gp.device(gp.device().name)
    assert gp.ones(1).device == gp.device()


def test_properties():
    properties = gp.device().properties
    assert properties["name"]
    assert properties["memory_bytes"] > 0
    assert properties["max_threads_per_block"] >= 1024
    if ON_GPU:
        assert properties["compute_capability"] >= (8, 0)
        assert properties["driver_version"] >= (12, 0)


def test_the_simulated_device_is_always_there():
    x = gp.ones((2, 2), device="cpu") @ gp.ones((2, 2), device="cpu")
    assert x.device == "cpu"
    assert x.tolist() == [[2, 2], [2, 2]]


@no_gpu
def test_without_a_gpu_one_warning_says_why():
    done = run_python(PROBE, PYGPUKIT_DEVICE=None, PYTHONWARNINGS=None)
    lines = done.stdout.strip().split("\n")
    assert lines[0] == "cpu"
    assert len(lines) == 2, done.stdout
    assert lines[1].startswith("RuntimeWarning ")
    assert gp.why_no_cuda() in lines[1]
    assert lines[1].endswith("Falling back to CPU simulation backend")


@no_gpu
def test_the_reason():
    reasons = ("CUDA driver not detected", "No GPU devices found", "driver", "compute capability")
    assert any(reason in gp.why_no_cuda() for reason in reasons)
    assert gp.cuda_device_count() == 0


@no_gpu
def test_a_gpu_that_is_not_there_is_an_error_with_the_reason():
    for name in ("cuda", "cuda:0"):
        with pytest.raises(gp.UnsupportedError) as caught:
            gp.device(name)
        assert gp.why_no_cuda() in str(caught.value)
        assert "doctor" in str(caught.value)
    done = run_python("import pygpukit as gp; gp.ones(1)", PYGPUKIT_DEVICE="cuda")
    assert "UnsupportedError" in done.stderr


def test_asking_for_the_cpu_is_silent():
    done = run_python(PROBE, PYGPUKIT_DEVICE="cpu")
    assert done.stdout.split() == ["cpu"]
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["gpu", "CPU", "", "cuda:x", "cuda:-1", "cuda:1234567", "cpu:0", "cpu\0"])
def test_bad_names(name):
    with pytest.raises((gp.InvalidValueError, gp.UnsupportedError)) as caught:
        gp.device(name)
    assert isinstance(caught.value, gp.InvalidValueError) or name.startswith("cuda:")


def test_a_bad_name_in_the_environment():
    done = run_python("import pygpukit as gp; gp.ones(1)", PYGPUKIT_DEVICE="tpu")
    assert "InvalidValueError" in done.stderr
    assert "tpu" in done.stderr


def test_set_device_is_the_threads_own():
    import threading

    here = gp.device()
    seen = []

    def other():
        gp.set_device("cpu")
        seen.append(gp.device().name)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == ["cpu"]
    assert gp.device() == here


def test_arrays_of_two_devices_do_not_mix():
    if not ON_GPU:
        pytest.skip("there is one device only")
    with pytest.raises(gp.InvalidValueError, match="device"):
        gp.ones(3) + gp.ones(3, device="cpu")


def test_devices_are_named():
    assert str(gp.device("cpu")) == "cpu"
    assert "cpu" in repr(gp.device("cpu"))
    assert hash(gp.device("cpu")) == hash("cpu")
    assert gp.device("cpu") == "cpu"
    assert gp.device("cpu") != 3
