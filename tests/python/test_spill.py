"""The disk tier of eviction: values, limits, and what is refused."""

import os
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest

import pygpukit as gp

BLOCK = 2 << 20  # what the device maps at once


@pytest.fixture
def three_tiers(tmp_path):
    """Room for four blocks on the device and two in pinned memory; the rest goes to the disk."""
    gp.memory.trim()
    gp.memory.set_limit(gp.memory.stats()["reserved_bytes"] + 4 * BLOCK)
    gp.memory.set_eviction(True, host_limit=2 * BLOCK, spill_dir=tmp_path, disk_limit=64 * BLOCK)
    yield tmp_path
    gp.memory.set_eviction(False, host_limit="64GiB", disk_limit=0)
    gp.memory.set_limit(None)


def block_of(value):
    return gp.full(BLOCK // 4, value, "int32")


@pytest.mark.usefixtures("three_tiers")
def test_eight_times_the_device():
    arrays = [block_of(i) for i in range(32)]
    stats = gp.memory.stats()
    assert stats["host_bytes"] <= 2 * BLOCK
    assert stats["spilled_bytes"] >= 25 * BLOCK
    assert stats["spilled_bytes"] <= stats["disk_bytes"] <= 64 * BLOCK
    assert stats["evicted_bytes"] >= 28 * BLOCK
    line = next(
        each
        for each in gp.metrics().splitlines()
        if each.startswith("pygpukit_memory_spilled_bytes{") and f'device="{gp.device().name}"' in each
    )
    assert int(line.split()[-1]) == stats["spilled_bytes"]
    for _ in range(2):
        for i, array in enumerate(arrays):
            array += i
    for i, array in enumerate(arrays):
        np.testing.assert_array_equal(array.to_numpy(), np.full(BLOCK // 4, 3 * i, "int32"))
    del array
    arrays.clear()
    gp.memory.trim()
    stats = gp.memory.stats()
    assert stats["spilled_bytes"] == stats["disk_bytes"] == stats["evicted_bytes"] == 0


def test_the_file_has_no_name(three_tiers):
    arrays = [block_of(i) for i in range(10)]
    assert gp.memory.stats()["disk_bytes"] > 0
    assert not list(three_tiers.iterdir())
    assert int(arrays[0][5]) == 0


@pytest.mark.usefixtures("three_tiers")
def test_a_full_disk_tier_says_so():
    gp.memory.set_eviction(True, disk_limit=3 * BLOCK)
    arrays = [block_of(i) for i in range(9)]  # four, two, three
    with pytest.raises(gp.OutOfMemoryError, match=rf"spill file: {3 * BLOCK} of at most {3 * BLOCK} bytes"):
        block_of(9)
    gp.memory.set_eviction(True, disk_limit=16 * BLOCK)
    arrays.append(block_of(9))
    assert [int(each[-1]) for each in arrays] == list(range(10))


@pytest.mark.usefixtures("three_tiers")
def test_threads():
    wrong = []

    def work(mark):
        mine = [block_of(mark) for _ in range(3)]
        for _ in range(4):
            for array in mine:
                array += 1
        wrong.extend(
            mark for array in mine if int(gp.min(array)) != mark + 4 or int(gp.max(array)) != mark + 4
        )

    threads = [threading.Thread(target=work, args=(100 * t,)) for t in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_hostile_folders(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("x")
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    hostile = [
        "",
        "relative",
        pathlib.Path("./here"),
        tmp_path / "missing",
        plain,
        link,
        f"{link}/",
        "/tmp\0",
    ]
    if os.geteuid() != 0:
        hostile.append(closed)
    before = gp.memory.stats()
    for folder in hostile:
        with pytest.raises(gp.InvalidValueError, match="spill_dir"):
            gp.memory.set_eviction(True, host_limit=1, spill_dir=folder)
    for folder in (3, 1.5, b"/tmp", ["/tmp"], True):
        with pytest.raises(gp.InvalidTypeError):
            gp.memory.set_eviction(True, host_limit=1, spill_dir=folder)
    assert gp.memory.stats() == before
    pool = gp.memory.MemoryPool()
    with pytest.raises(gp.UnsupportedError):  # eviction was not turned on by what was refused
        pool.evict(pool.allocate(BLOCK))


def test_hostile_limits(tmp_path):
    for limit in (-1, -(2**70), 2**70, "-1", "many", "", "nan"):
        with pytest.raises(gp.InvalidValueError, match="disk_limit|size|bytes"):
            gp.memory.set_eviction(False, spill_dir=tmp_path, disk_limit=limit)
    for limit in (float("nan"), 1.5, True, [], b"1GiB"):
        with pytest.raises(gp.InvalidTypeError, match="disk_limit"):
            gp.memory.set_eviction(False, spill_dir=tmp_path, disk_limit=limit)


def test_a_limit_needs_a_folder():
    code = """
import pygpukit as gp
try:
    gp.memory.set_eviction(True, disk_limit=5, device="cpu")
except gp.InvalidValueError as failure:
    assert "spill_dir" in str(failure)
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "refused"
