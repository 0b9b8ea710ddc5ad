"""`pygpukit doctor`: what is here, what works, what is wrong and the command that mends it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import stat
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from . import Error, UnsupportedError, __version__, _native, _sharing
from .pull import cache_folder

_OLDEST_DRIVER = "525"  # CUDA 12.0

# What an optional package is for, and the command that brings it.
_PACKAGES = {
    "numpy": ("arrays from and to the host", "pip install numpy"),
    "nvidia-cuda-nvrtc": ("gp.jit on a GPU", "pip install nvidia-cuda-nvrtc"),
    "tokenizers": ("language models", "pip install tokenizers"),
    "jinja2": ("chat templates", "pip install jinja2"),
    "ml_dtypes": ("bfloat16 and float8 in NumPy", "pip install ml_dtypes"),
}

_JIT_SOURCE = """extern "C" __global__ void doctor(float* x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * factor + 1.0f;
}"""


def _problem(what: str, fix: str) -> dict[str, str]:
    return {"problem": what, "fix": fix}


def _devices() -> list[dict[str, Any]]:
    names = [f"cuda:{i}" for i in range(_native.cuda_device_count())]
    found = []
    for name in [*names, "cpu"]:
        device = _native.device(name)
        free, total = device.memory
        found.append({"device": name, **device.properties, "free_bytes": free, "total_bytes": total})
    return found


def _packages() -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def _cache() -> dict[str, Any]:
    folder = cache_folder()
    if not folder.is_dir():
        return {"path": str(folder), "exists": False, "private": None, "bytes": 0}
    info = folder.stat()
    others_write = bool(info.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    owned = not hasattr(os, "getuid") or info.st_uid == os.getuid()
    return {
        "path": str(folder),
        "exists": True,
        "private": owned and not others_write,
        "bytes": sum(path.stat().st_size for path in _files(folder)),
    }


def _files(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _checked(name: str, work: Callable[[], float]) -> dict[str, Any]:
    """Runs a self-test, which returns its largest error, twice: the first run may load and compile."""
    started = time.perf_counter()
    try:
        work()
        first = time.perf_counter() - started
        started = time.perf_counter()
        error = work()
    except UnsupportedError as reason:
        return {"test": name, "result": "not possible", "reason": str(reason)}
    except Error as reason:
        return {"test": name, "result": "failed", "reason": str(reason)}
    return {
        "test": name,
        "result": "passed" if error == 0 else "failed",
        "largest_error": error,
        "first_seconds": round(first, 6),
        "seconds": round(time.perf_counter() - started, 6),
    }


def _self_tests() -> list[dict[str, Any]]:
    import pygpukit as gp

    count = 100_003

    def prebuilt() -> float:
        x = gp.arange(count, dtype="float32")
        expected = gp.arange(0, 3 * count, 3, dtype="float32")
        return float(gp.max(gp.absolute(x + x * 2 - expected)))

    def compiled() -> float:
        x = gp.arange(count, dtype="float32")
        gp.jit(_JIT_SOURCE, func="doctor")(x, factor=0.5, n=count)
        expected = gp.arange(count, dtype="float32") * 0.5 + 1
        return float(gp.max(gp.absolute(x - expected)))

    return [_checked("prebuilt kernel", prebuilt), _checked("compiled kernel (gp.jit)", compiled)]


def _problems(report: dict[str, Any]) -> list[dict[str, str]]:
    found = []
    reason = report["cuda"]["problem"]
    if reason:
        fix = (
            f"install the NVIDIA driver {_OLDEST_DRIVER} or newer for your GPU and check it with "
            "`nvidia-smi`; without one everything runs on the simulated device"
        )
        found.append(_problem(reason, fix))
    libraries = {each["name"]: each for each in report["libraries"]}
    nvrtc = libraries.get("NVRTC", {})
    if report["cuda"]["available"] and nvrtc.get("problem"):
        found.append(
            _problem(
                f"NVRTC JIT compiler not available: {nvrtc['problem']}", _PACKAGES["nvidia-cuda-nvrtc"][1]
            )
        )
    if not report["cuda"]["available"] and not report["host_compiler"]:
        found.append(
            _problem(
                "no C++ compiler for gp.jit on the simulated device", "apt install g++, or set PYGPUKIT_CXX"
            )
        )
    for package, version in report["packages"].items():
        purpose, command = _PACKAGES[package]
        needed = package not in ("nvidia-cuda-nvrtc", "ml_dtypes")
        if version is None and needed:
            found.append(_problem(f"the package {package} is missing ({purpose})", command))
    cache = report["cache"]
    if cache["private"] is False:
        found.append(_problem(f"others may write to {cache['path']}", f"chmod go-w {cache['path']}"))
    for test in report["self_tests"]:
        if test["result"] == "failed":
            found.append(
                _problem(
                    f"self-test '{test['test']}' failed: {test.get('reason', test)}", "report it as a bug"
                )
            )
    return found


def report() -> dict[str, Any]:
    """All that `pygpukit doctor --json` prints."""
    version = _native.get_nvrtc_version()
    result: dict[str, Any] = {
        "pygpukit": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cuda": {
            "available": _native.is_cuda_available(),
            "problem": _native.why_no_cuda(),
            "kernel_driver": _native._gpu_driver_version(),
            "nvrtc_version": None if version is None else f"{version[0]}.{version[1]}",
        },
        "device": str(_native.device()),
        "devices": _devices(),
        "sharing": {"mig": _sharing.mig(), "mps": _sharing.mps()},
        "libraries": _native._library_statuses(),
        "host_compiler": _native._host_compiler(),
        "packages": _packages(),
        "cache": _cache(),
        "self_tests": _self_tests(),
    }
    result["problems"] = _problems(result)
    return result


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"


def _lines(found: dict[str, Any]) -> Iterable[str]:
    yield f"PyGPUkit {found['pygpukit']}, Python {found['python']}, {found['platform']}"
    yield ""
    yield "Driver"
    cuda = found["cuda"]
    kernel = f" (kernel driver {cuda['kernel_driver']})" if cuda["kernel_driver"] else ""
    yield f"  {'usable' if cuda['available'] else cuda['problem']}{kernel}"
    yield "Devices"
    for each in found["devices"]:
        current = " (current)" if each["device"] == found["device"] else ""
        yield f"  {each['device']}: {each['name']}{current}"
        major, minor = each["compute_capability"]
        capability = f"SM {major}{minor}, " if major else ""
        yield (
            f"    {capability}{each['multiprocessors']} multiprocessors, "
            f"{_gib(each['free_bytes'])} of {_gib(each['total_bytes'])} free, "
            f"{each['shared_bytes_per_block'] // 1024} KiB shared memory a block"
        )
    yield "Sharing by others"
    yield from (f"  {line}" for line in _sharing.lines(found["sharing"]))
    yield "Libraries"
    for each in found["libraries"]:
        if each["path"]:
            yield f"  {each['name']} {each['version']}: {each['path']} ({each['how']})"
        if each["problem"]:
            yield f"  {each['name']}: {each['problem']}"
    yield f"  C++ compiler for the simulated device: {found['host_compiler'] or 'none'}"
    yield "Python packages"
    for package, version in found["packages"].items():
        yield f"  {package} {version or 'not installed'} ({_PACKAGES[package][0]})"
    cache = found["cache"]
    state = "private" if cache["private"] else "not private" if cache["exists"] else "not made yet"
    yield "Cache"
    yield f"  {cache['path']} ({state}, {cache['bytes'] / 2**20:.1f} MiB)"
    yield "Self-tests"
    for test in found["self_tests"]:
        detail = (
            test.get("reason") or f"largest error {test['largest_error']}, {test['seconds'] * 1e3:.2f} ms"
        )
        yield f"  {test['test']}: {test['result']} ({detail})"
    yield ""
    if not found["problems"]:
        yield "Everything works."
    for each in found["problems"]:
        yield f"Problem: {each['problem']}"
        yield f"    Fix: {each['fix']}"


def run(*, as_json: bool) -> int:
    """Prints the report. The status is 1 where a self-test failed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the report says it
        found = report()
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(_lines(found)))
    failed = any(test["result"] == "failed" for test in found["self_tests"])
    if failed:
        print("pygpukit: a self-test failed", file=sys.stderr)
    return int(failed)
