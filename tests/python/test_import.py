import os

import pytest

from support import run_python

IMPORTS = """
import time
seconds, of_cpu = time.perf_counter(), time.process_time()
import pygpukit
print(time.process_time() - of_cpu, time.perf_counter() - seconds)
"""


def test_import_is_fast():
    run_python(IMPORTS)  # bytecode is written once
    times = [tuple(map(float, run_python(IMPORTS).stdout.split())) for _ in range(7)]
    # 50 ms is the promise. Of the CPU's time: what others take on a busy machine is no part of it.
    assert min(of_cpu for of_cpu, _ in times) <= 0.05
    assert min(seconds for _, seconds in times) <= 1  # nor does it wait for anything


def test_import_loads_neither_numpy_nor_a_driver():
    done = run_python(
        "import sys, pygpukit\n"
        "heavy = {'numpy', 'ml_dtypes', 'tokenizers', 'jinja2', 'rich', 'asyncio', 'subprocess'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "maps = open('/proc/self/maps').read()\n"
        "print([name for name in ('libcuda', 'nvrtc', 'cublas', 'libcudart') if name in maps])"
    )
    assert done.stdout.split("\n")[:2] == ["[]", "[]"], done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fork_after_import_works():
    done = run_python(
        "import os, pygpukit as gp\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    ok = gp.sum(gp.arange(10)).item() == 45\n"
        "    ok = ok and (gp.ones((8, 8)) @ gp.ones((8, 8)))[0, 0].item() == 8\n"
        "    os._exit(0 if ok else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "print(gp.sum(gp.arange(10)).item())"
    )
    assert done.stdout.split() == ["0", "45"], done.stderr


@pytest.mark.skipif(os.environ["PYGPUKIT_DEVICE"] != "cpu", reason="a GPU's driver does not outlive a fork")
def test_fork_after_use_works_without_a_gpu():
    done = run_python(
        "import os, pygpukit as gp\n"
        "x = gp.tanh(gp.ones(1_000_000))\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if abs(gp.mean(x * 2).item() - 1.523188) < 1e-4 else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    assert done.stdout.split() == ["0"], done.stderr


def test_the_interpreter_ends_cleanly():
    done = run_python(
        "import pygpukit as gp\nx = gp.ones(10)\ng = gp.Graph()\ns = gp.Stream()\ne = gp.Event()\nk = x + x"
    )
    assert done.returncode == 0
    assert "leak" not in done.stderr


def test_public_names_are_documented():
    import pygpukit as gp

    for name in dir(gp):
        value = getattr(gp, name)
        if not name.startswith("_") and callable(value):
            assert value.__doc__, name


def test_version():
    import pygpukit as gp

    assert gp.__version__.count(".") == 2
