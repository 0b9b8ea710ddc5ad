"""Timing in turns, and the record of a run."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import math
import platform
import statistics
import subprocess
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pygpukit as gp
from pygpukit import _native


@dataclasses.dataclass
class Row:
    """One figure: the median of the rounds, their spread, and what it is held against."""

    name: str
    value: float
    unit: str
    low: float
    high: float
    error: float | None = None  # of the result: relative norm, float64 reference; or as the note says
    ratios: dict[str, float] = dataclasses.field(default_factory=dict)
    goal: str | None = None
    met: bool | None = None  # None: no goal, or nothing that could meet it (a trial run, a simulated device)
    figures: dict[str, float] = dataclasses.field(default_factory=dict)  # further ones, the unit in the name
    note: str | None = None
    group: str | None = None  # of the tables: "gemm", "memory", ...
    rate: float | None = None  # what the value comes to in rate_unit
    rate_unit: str | None = None  # "TFLOPS", "GB/s"
    limit: str | None = None  # what bounds it: "copy", "read", "bfloat16 product"
    share: float | None = None  # of the limit's rate, measured in the same run
    peer_errors: dict[str, float] = dataclasses.field(default_factory=dict)
    timing: str | None = None  # "graph of 64": how the time was taken

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no NaN: a figure that could not be measured is None."""
        fields = dataclasses.asdict(self)
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in fields.items()
        }


@dataclasses.dataclass
class Contender:
    """Something to time: `run(count)` queues the work so many times, `wait()` waits for it."""

    run: Callable[[int], object]
    wait: Callable[[], object]


def statement(code: str, names: dict[str, Any], wait: Callable[[], object]) -> Contender:
    """The contender that runs one statement, in timeit's loop: nothing but the statement is in it."""
    return Contender(timeit.Timer(code, globals=names).timeit, wait)


def in_turns(
    contenders: dict[str, Contender], *, count: int, rounds: int = 9
) -> dict[str, tuple[float, float, float]]:
    """Microseconds a call of each contender: median, least and most over rounds that go in turns."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for contender in contenders.values():
        contender.run(count // 10 + 1)
        contender.wait()
    for _ in range(rounds):
        for name, contender in contenders.items():
            start = time.perf_counter()
            contender.run(count)
            contender.wait()
            times[name].append((time.perf_counter() - start) / count * 1e6)
    return {name: (statistics.median(t), min(t), max(t)) for name, t in times.items()}


def _git_commit() -> str | None:
    folder = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return found.stdout.strip() or None


def environment(peers: list[str], commit: str | None = None) -> dict[str, Any]:
    """What a record must say of the run: the device, the versions, the commit."""
    device = gp.device()
    versions = {}
    for package in ["pygpukit", "numpy", *peers]:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.date.today().isoformat(),
        "device": device.name,
        "card": device.properties["name"],
        "driver": _native._gpu_driver_version() or None,
        "cuda": ".".join(map(str, device.properties["driver_version"])),
        "python": platform.python_version(),
        "commit": commit or _git_commit(),
        "versions": versions,
    }
