"""The benchmarks at tiny sizes: that each section runs, and gives the rows that a record is read for."""

import json
import math
import os
import shutil
import subprocess
import sys

import pytest

from pygpukit.benchmark import scheduling
from pygpukit.benchmark._measure import Row
from pygpukit.benchmark.copies import measure_copies
from pygpukit.benchmark.pools import measure_pools
from pygpukit.benchmark.tracing import measure_tracing
from support import ON_GPU


def executable():
    try:
        return scheduling.find_executable()
    except FileNotFoundError:
        pytest.skip("built without PYGPUKIT_BUILD_BENCHMARKS")


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "pygpukit.benchmark", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYGPUKIT_BENCHMARKS": str(executable())},
    )


def test_native_sections(tmp_path):
    saved = tmp_path / "record.json"
    done = run("--scheduling", *scheduling.NATIVE, "--quick", "--save", str(saved), "--commit", "abc")
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(saved.read_text())
    assert record["commit"] == "abc"
    assert "failures" not in record
    rows = {row["name"]: row for row in record["rows"]}
    assert len(rows) == len(record["rows"])
    assert {name.split(": ")[0] for name in rows} == set(scheduling.NATIVE)
    for row in rows.values():
        assert isinstance(row["value"], float), row
        assert row["unit"]
        assert row["met"] is None  # of a trial run
        assert row["error"] in (0, None), row
    for what in ("two partitions", "two processes"):
        audit = rows[f"smid: blocks outside their partition's SMs, {what}"]
        assert audit["goal"] == "<= 0"
        assert audit["value"] == 0
        assert audit["figures"]["blocks"] > 0
        assert rows[f"smid: SMs that both ran on, {what}"]["value"] == 0
        assert rows[f"smid: SMs too many or too few, {what}"]["value"] == 0
    for neighbour in ("compute-bound", "memory-saturating"):
        for setting in ("alone", "shared", "priorities only", "partitions only", "partitions and pacing"):
            row = rows[f"victim: victim's p99, {setting}, {neighbour} neighbour"]
            assert row["figures"]["requests"] == 4
            assert 0 < row["figures"]["p50 us"] <= row["value"] <= row["figures"]["max us"]
    assert rows["hooks: driver's launch"]["value"] > 0
    assert rows["hooks: trace, added"]["goal"] == "<= 300"
    paced = rows["victim: victim's p99, partitions and pacing, memory-saturating neighbour"]
    assert paced["goal"] == "its p99 alone <= 1.25"
    assert "bandwidth 0.7" in paced["note"]
    cycles = rows["cycles: bytes that did not come back, a partition made, used and destroyed"]
    assert cycles["value"] == 0
    assert cycles["figures"]["cycles"] == 3
    for what in ("to the device", "to the host", "each way, both at once"):
        assert rows[f"transfers: pinned, {what}"]["ratios"]["a plain copy"] > 0
    assert rows["transfers: p99 of an urgent 64 KiB to the host beside bulk"]["goal"] == "<= 100"
    moved = rows["eviction: bytes that did not come back, a block of 4 MiB evicted and reloaded"]
    assert moved["value"] == 0
    assert moved["figures"]["cycles"] >= 6
    touches = ("each way, cyclic touch of twice the pool", "each way, random touch of twice the pool")
    for what in ("evict", "reload", *touches):
        assert rows[f"eviction: {what}, blocks of 8 MiB"]["goal"] == "a plain copy >= 0.9"
        assert rows[f"eviction: {what}, blocks of 8 MiB"]["value"] > 0
    assert rows["pool: allocate and release 1 MiB"]["value"] > 0


@pytest.mark.parametrize("sm", [80, 90])
def test_kernels_compile(sm):
    folders = ":".join(scheduling._site_packages())
    command = [str(executable()), "--library-folders", folders, "--compile-for", str(sm)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if "NVRTC JIT compiler not available" in done.stdout:
        pytest.skip("needs NVRTC")
    assert done.returncode == 0, done.stdout


def test_a_failing_section_is_recorded(tmp_path):
    script = tmp_path / "pygpukit_benchmarks"
    row = '{"section": "pool", "name": "n", "value": 1, "unit": "ns", "low": null, "high": 2, "error": null, '
    row += '"goal": "<= 2", "met": true, "ratios": {}, "figures": {}, "note": null}'
    script.write_text(
        f"#!/bin/sh\necho '{row}'\necho oh\n" + 'echo \'{"section": "pool", "failure": "lost"}\'\n'
    )
    script.chmod(0o700)
    first, second = scheduling.measure(["pool"], quick=True, executable=script)
    assert first[0] == second[0] == "pool"
    assert isinstance(first[1], Row)
    assert (first[1].name, first[1].value, first[1].met) == ("pool: n", 1.0, True)
    assert math.isnan(first[1].low)
    assert first[1].as_dict()["low"] is None
    assert isinstance(second[1], RuntimeError)
    assert str(second[1]) == "lost"

    script.write_text("#!/bin/sh\necho why\nexit 3\n")
    ((_, failure),) = scheduling.measure(["pool"], quick=True, executable=script)
    assert "status 3" in str(failure)
    assert "why" in str(failure)


@pytest.mark.skipif(shutil.which("sleep") is None, reason="needs sleep")
def test_a_section_that_hangs_is_ended(tmp_path, monkeypatch):
    script = tmp_path / "pygpukit_benchmarks"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o700)
    with pytest.raises(RuntimeError, match="not done after 0 s"):
        list(scheduling._native_rows([str(script)], 0.2))


def test_a_missing_executable_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="PYGPUKIT_BUILD_BENCHMARKS"):
        scheduling.find_executable(tmp_path / "none")


def test_python_sections():
    rows = measure_pools(quick=True) + measure_copies(quick=True)
    assert [row.name for row in rows[-2:]] == ["pageable from_numpy of 1 MiB", "pageable to_numpy of 1 MiB"]
    for row in rows:
        assert row.value > 0
        assert row.low <= row.value <= row.high
        assert row.error in (0, None)
        assert row.met is None
        if not ON_GPU:
            assert row.ratios == {}


def test_tracing_is_measured_against_the_same_without():
    large, small = measure_tracing(quick=True)
    assert large.goal is not None
    assert small.goal is None  # where the host is the slower one it costs more, as the row says
    for row in (large, small):
        assert row.met is None
        assert row.error < 1e-6
        assert row.figures["untraced us"] == pytest.approx(row.value * row.ratios["as fast as untraced"])
