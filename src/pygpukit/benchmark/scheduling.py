"""The GPU as a shared resource: partitions, pacing, the pool, transfers, and what they cost.

What Python would disturb is measured by an executable of the same repository, `pygpukit_benchmarks` (a build
with PYGPUKIT_BUILD_BENCHMARKS), whose rows come as lines of JSON; the rest is measured here.
"""

from __future__ import annotations

import json
import math
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pygpukit as gp

from .._libraries import _site_packages
from ._measure import Row
from .copies import measure_copies
from .pools import measure_pools
from .tracing import measure_tracing

NATIVE = ("smid", "victim", "hooks", "pool", "eviction", "transfers", "cycles")
_PYTHON: dict[str, Callable[[bool], list[Row]]] = {
    "python-pool": measure_pools,
    "python-copies": measure_copies,
    "python-trace": measure_tracing,
}
SECTIONS = (*NATIVE, *_PYTHON)


def find_executable(given: Path | None = None) -> Path:
    """`given`, PYGPUKIT_BENCHMARKS, or the newest one in the build folders of this repository."""
    if given is not None or "PYGPUKIT_BENCHMARKS" in os.environ:
        candidates = [given if given is not None else Path(os.environ["PYGPUKIT_BENCHMARKS"])]
    else:
        folders = [Path(__file__).resolve().parents[3], Path.cwd()]
        candidates = [found for folder in folders for found in folder.glob("build/*/pygpukit_benchmarks")]
    found = [path for path in candidates if path.is_file()]
    if not found:
        raise FileNotFoundError(
            "--scheduling: expected the executable pygpukit_benchmarks; build it with "
            "-DPYGPUKIT_BUILD_BENCHMARKS=ON and name it with --executable or PYGPUKIT_BENCHMARKS"
        )
    return max(found, key=lambda path: path.stat().st_mtime).absolute()


def _row(line: dict[str, Any]) -> Row:
    value, low, high = (
        math.nan if line[key] is None else float(line[key]) for key in ("value", "low", "high")
    )
    rest = {key: line[key] for key in ("error", "ratios", "goal", "met", "figures", "note")}
    rest["ratios"] = {of: math.nan if ratio is None else ratio for of, ratio in rest["ratios"].items()}
    return Row(f"{line['section']}: {line['name']}", value, line["unit"], low, high, **rest)


def _native_rows(command: list[str], seconds: float) -> Iterator[Row]:
    """The rows as they come; RuntimeError with what came before for a run that fails or takes too long."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        lines: queue.Queue[str | None] = queue.Queue()

        def read_lines(stdout: Iterable[str]) -> None:
            for line in stdout:
                lines.put(line)
            lines.put(None)

        threading.Thread(target=read_lines, args=(process.stdout,), daemon=True).start()
        end = time.monotonic() + seconds
        failure, complaints = None, ""
        try:
            while (text := lines.get(timeout=max(0.1, end - time.monotonic()))) is not None:
                if not text.startswith("{"):
                    complaints = (complaints + text)[-2000:]
                    continue
                line = json.loads(text)
                if "failure" in line:
                    failure = line["failure"]
                else:
                    yield _row(line)
        except queue.Empty:
            raise RuntimeError(f"not done after {seconds:.0f} s; {complaints}") from None
        finally:
            process.kill()  # nothing where it is done
        if process.wait() != 0 or failure is not None:
            raise RuntimeError(failure or f"exit status {process.returncode}: {complaints}")


def measure(
    sections: list[str],
    *,
    quick: bool = False,
    seconds: float = 150,
    executable: Path | None = None,
    arguments: list[str] | None = None,
) -> Iterator[tuple[str, Row | Exception]]:
    """Yields (section, row) as each is known, and (section, exception) where a section fails."""
    program: Path | None = None
    for section in sections or SECTIONS:
        try:
            if section in _PYTHON:
                for row in _PYTHON[section](quick):
                    row.name = f"{section}: {row.name}"
                    yield section, row
                continue
            program = program or find_executable(executable)
            command = [str(program), section, "--device", gp.device().name, "--seconds", str(seconds)]
            command += ["--library-folders", ":".join(_site_packages())]
            command += ["--quick"] if quick else []
            for row in _native_rows(command + (arguments or []), 2 * seconds + 60):
                yield section, row
        except Exception as failure:
            yield section, failure
