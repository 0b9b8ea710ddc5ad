"""gp.transfer and gp.memory.pinned: values, futures, callbacks, what they refuse."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp

LARGE = (2 << 20) + 3  # bytes that go through the engine from from_numpy, too


def pattern(nbytes: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


@pytest.mark.parametrize("nbytes", [0, 1, 3, 4095, 4097, 300_001, LARGE, 40_000_001])
@pytest.mark.parametrize("pinned", [False, True])
def test_round_trip(nbytes: int, pinned: bool) -> None:
    source = pattern(nbytes)
    if pinned:
        host = gp.memory.pinned(nbytes, "uint8")
        host[:] = source
        out = gp.memory.pinned(nbytes, "uint8")
    else:
        host, out = source, np.empty(nbytes, np.uint8)
    up = gp.transfer.to_device(host)
    array = up.result(60)
    assert isinstance(array, gp.Array)
    assert array.shape == (nbytes,)
    assert array.dtype == "uint8"
    down = gp.transfer.to_host(array, out=out, priority=-1)
    assert down.result() is out
    assert np.array_equal(out, source)
    assert up.state == down.state == "completed"
    assert up.nbytes == up.bytes_done == nbytes
    assert up.done()
    assert up.exception() is None
    assert np.array_equal(array.to_numpy(), source)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.integers(0, 40), max_size=3),
    dtype=st.sampled_from(["float32", "int64", "float16", "bool", "uint8"]),
    order=st.sampled_from("CF"),
    step=st.sampled_from([1, 2, -1]),
    priority=st.integers(-3, 3),
    given_out=st.booleans(),
)
def test_any_array_survives(
    shape: list[int], dtype: str, order: Any, step: int, priority: int, given_out: bool
) -> None:
    size = int(np.prod(shape, dtype=int))
    host = np.asarray(np.arange(size).reshape(shape), dtype, order=order)
    if host.ndim:
        host = host[::step]
    out = gp.empty(host.shape, dtype) if given_out else None
    array = gp.transfer.to_device(host, out=out, priority=priority).result()
    assert out is None or array is out
    back = gp.transfer.to_host(array.T, priority=priority).result()
    assert back.dtype == host.dtype
    assert np.array_equal(back, host.T)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["up", "down", "add", "copy", "cancel"]), st.integers(-2, 2), st.integers(0, 9)
        ),
        max_size=12,
    )
)
def test_interleaved_with_work_it_is_as_if_in_order(steps: list[tuple[str, int, int]]) -> None:
    count = 50_000
    a, b = gp.zeros(count, "int64"), gp.zeros(count, "int64")
    want_a, want_b = 0, 0
    reads: list[tuple[gp.transfer.Transfer, int]] = []
    hosts = []
    for kind, priority, value in steps:
        if kind == "up":
            host = np.full(count, value)
            hosts.append(host)
            gp.transfer.to_device(host, out=a, priority=priority)
            want_a = value
        elif kind == "down":
            reads.append((gp.transfer.to_host(a, priority=priority), want_a))
        elif kind == "add":
            a += value
            want_a += value
        elif kind == "copy":
            gp.transfer.copy(a, b, priority=priority)
            want_b = want_a
        else:  # what is thrown away leaves the order of the rest
            gp.transfer.to_host(a, priority=priority).cancel()
    for transfer, value in reads:
        assert np.all(transfer.result() == value)
    assert np.all(a.to_numpy() == want_a)
    assert np.all(b.to_numpy() == want_b)


def test_sources_may_change_once_from_numpy_returns() -> None:
    source = pattern(3 * LARGE)
    kept = source.copy()
    array = gp.from_numpy(source)
    source[:] = 0
    del source
    assert np.array_equal(array.to_numpy(), kept)
    pinned = gp.memory.pinned(64, "uint8")
    pinned[:] = 7
    small = gp.from_numpy(pinned)
    pinned[:] = 0
    assert np.all(small.to_numpy() == 7)


def test_a_source_that_nobody_holds_lives_until_it_is_read() -> None:
    transfers = [gp.transfer.to_device(pattern(LARGE, seed)) for seed in range(6)]
    gc.collect()
    for seed, transfer in enumerate(transfers):
        assert np.array_equal(transfer.result().to_numpy(), pattern(LARGE, seed))


def test_lists_and_numbers_are_taken_as_by_asarray() -> None:
    assert gp.transfer.to_device([[1, 2], [3, 4]]).result().tolist() == [[1, 2], [3, 4]]
    assert gp.transfer.to_device(2.5).result().dtype == "float32"


def test_await_and_gather() -> None:
    async def run() -> list[Any]:
        ups = [gp.transfer.to_device(pattern(LARGE, seed)) for seed in range(3)]
        arrays = await asyncio.gather(*ups)
        return [await gp.transfer.to_host(array) for array in arrays]

    for seed, host in enumerate(asyncio.run(run())):
        assert np.array_equal(host, pattern(LARGE, seed))


def test_callbacks_and_progress() -> None:
    told, whole = threading.Event(), threading.Event()
    seen: list[tuple[int, int]] = []
    finished: list[gp.transfer.Transfer] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        if done == total:
            whole.set()

    def end(transfer: gp.transfer.Transfer) -> None:
        finished.append(transfer)
        told.set()

    transfer = gp.transfer.to_device(pattern(5 * LARGE), progress=progress)
    transfer.add_done_callback(end)  # at once where it is over already, which its progress may not have told
    transfer.result()
    assert told.wait(60)
    assert whole.wait(60)
    assert finished == [transfer]
    assert seen[-1] == (5 * LARGE, 5 * LARGE)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    late: list[gp.transfer.Transfer] = []
    transfer.add_done_callback(late.append)
    assert late == [transfer]


def test_a_callback_that_raises_is_reported_and_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = threading.Event()
    monkeypatch.setattr(sys, "unraisablehook", lambda *_: reported.set())
    transfer = gp.transfer.to_device(pattern(LARGE), progress=lambda *_: 1 / 0)
    assert transfer.result().shape == (LARGE,)
    assert reported.wait(60)
    assert gp.transfer.to_device([1]).result().tolist() == [1]


def test_cancel() -> None:
    transfers = [gp.transfer.to_device(pattern(4 * LARGE)) for _ in range(8)]
    cancelled = [transfer for transfer in transfers if transfer.cancel()]
    for transfer in cancelled:
        try:
            transfer.result(60)
        except concurrent.futures.CancelledError:
            assert transfer.state == "cancelled"
            assert transfer.bytes_done < transfer.nbytes
    for transfer in transfers:
        if transfer not in cancelled:
            assert transfer.result(60).shape == (4 * LARGE,)
        assert not transfer.cancel()


def test_a_cancelled_await_cancels_the_transfer() -> None:
    async def run() -> gp.transfer.Transfer:
        ups = [gp.transfer.to_device(pattern(4 * LARGE)) for _ in range(6)]
        last = ups[-1]

        async def wait() -> None:
            await last

        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return last

    last = asyncio.run(run())
    try:
        last.result(60)
    except concurrent.futures.CancelledError:
        assert last.state == "cancelled"
    else:
        assert last.state == "completed"  # it was too late


def test_timeouts() -> None:
    transfer = gp.transfer.to_device(pattern(100))
    assert transfer.result(1e300) is not None
    assert transfer.result(-1) is transfer.result(0)
    with pytest.raises(gp.InvalidValueError):
        transfer.result(float("nan"))


def test_copy_between_all_kinds() -> None:
    host = pattern(LARGE)
    a, b, back = gp.empty(LARGE, "uint8"), gp.empty(LARGE, "uint8"), np.empty(LARGE, np.uint8)
    assert gp.transfer.copy(host, a).result() is a
    assert gp.transfer.copy(a, b).result() is b
    assert gp.transfer.copy(b, back).result() is back
    assert np.array_equal(back, host)
    with pytest.raises(gp.InvalidTypeError):
        gp.transfer.copy(host, back)


def test_what_it_refuses() -> None:
    array = gp.zeros((4, 4), "float32")
    host = np.zeros((4, 4), np.float32)
    with pytest.raises(gp.InvalidValueError):
        gp.transfer.to_device(host.astype(np.float64), out=array)
    with pytest.raises(gp.InvalidValueError):
        gp.transfer.to_device(host[:2], out=array)
    with pytest.raises(gp.InvalidValueError):
        gp.transfer.to_device(host, out=array.T)
    with pytest.raises(gp.InvalidValueError):
        gp.transfer.to_device(host, out=gp.broadcast_to(gp.zeros(4), (4, 4)))
    for out in (host[:2], host.T, host.astype(np.int32), [1]):
        with pytest.raises(gp.InvalidValueError):
            gp.transfer.to_host(array[:, :2] if out is host[:2] else array, out=out)  # type: ignore[arg-type]
    with pytest.raises(gp.InvalidValueError):
        gp.transfer.copy(array, array)
    for nonsense in (object(), ["a"], array):
        with pytest.raises(gp.InvalidTypeError):
            gp.transfer.to_device(nonsense)
    with pytest.raises(gp.InvalidTypeError):
        gp.transfer.to_host(host)  # type: ignore[arg-type]


def test_in_a_capture_it_is_refused() -> None:
    x = gp.zeros(8)
    with pytest.raises(gp.UnsupportedError), gp.Graph():
        gp.transfer.to_device(np.zeros(8, np.float32), out=x)
    assert gp.transfer.to_device(np.ones(8, np.float32), out=x).result().tolist() == [1.0] * 8


def test_stats_count_what_was_copied() -> None:
    before = gp.transfer.stats()
    array = gp.from_numpy(pattern(LARGE))
    array.to_numpy()
    after = gp.transfer.stats()
    for direction in ("to_device", "to_host"):
        assert after[direction]["bytes"] - before[direction]["bytes"] == LARGE
        assert after[direction]["staged_bytes"] - before[direction]["staged_bytes"] == LARGE
        assert after[direction]["completed"] - before[direction]["completed"] == 1


def test_threads_at_once() -> None:
    def work(seed: int) -> bool:
        host = pattern(LARGE, seed)
        array = gp.transfer.to_device(host, priority=seed % 3 - 1).result()
        return np.array_equal(gp.transfer.to_host(array, priority=-(seed % 2)).result(), host)

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(18)))


# -- Pinned memory ---------------------------------------------------------------------------------------


def test_pinned_arrays_are_numpy_arrays() -> None:
    host = gp.memory.pinned((3, 5), "float64")
    assert isinstance(host, np.ndarray)
    assert host.shape == (3, 5)
    assert host.dtype == np.float64
    assert host.flags.c_contiguous
    assert host.flags.writeable
    assert gp.memory.pinned(0).size == 0
    assert gp.memory.pinned((2, 0, 3), gp.int8).shape == (2, 0, 3)


def test_pinned_memory_goes_back_with_the_last_view() -> None:
    gc.collect()
    before = gp.memory.pinned_stats()["live_bytes"]
    view = gp.memory.pinned((1000, 100), "uint8")[10:20]
    assert gp.memory.pinned_stats()["live_bytes"] == before + 100_000
    view[:] = 3
    assert np.all(view == 3)
    del view
    gc.collect()
    assert gp.memory.pinned_stats()["live_bytes"] == before


@pytest.mark.parametrize("shape", [-1, (2, -3)])
def test_pinned_refuses_negative_extents(shape: Any) -> None:
    with pytest.raises(gp.InvalidValueError):
        gp.memory.pinned(shape)


@pytest.mark.parametrize("shape", [2**63, (2**62, 2**62), 2**50])
def test_pinned_refuses_what_no_machine_has(shape: Any) -> None:
    with pytest.raises(gp.OutOfMemoryError):
        gp.memory.pinned(shape, "uint8")


def test_pinned_keeps_to_its_limit() -> None:
    script = """
import pygpukit as gp
gp.memory.set_pinned_limit(1 << 20)
held = gp.memory.pinned(1 << 19, "uint8")
try:
    gp.memory.pinned(1 << 20, "uint8")
except MemoryError:
    print("refused")
del held
print(gp.memory.trim_pinned())
"""
    assert run(script) == "refused\n524288\n"


# -- The process -----------------------------------------------------------------------------------------


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_interpreter_may_end_at_any_time() -> None:
    script = """
import numpy as np, pygpukit as gp
gp.set_device("cpu")
kept = [gp.transfer.to_device(np.zeros(3_000_000, np.uint8), progress=lambda *_: None) for _ in range(20)]
kept[-1].add_done_callback(lambda t: None)
print("end")
"""
    for _ in range(3):
        assert run(script) == "end\n"


def test_a_forked_child_gets_an_error_and_blocking_copies_still_work() -> None:
    script = """
import os, numpy as np, pygpukit as gp
gp.set_device("cpu")
host = np.arange(3_000_000, dtype=np.uint8)
old = gp.transfer.to_device(host)
old.result()
pid = os.fork()
if pid == 0:
    code = 1
    try:
        gp.transfer.to_device(host)
    except gp.UnsupportedError as failure:
        if "fork" in str(failure) and old.state == "completed":
            array = gp.from_numpy(host)
            code = 0 if np.array_equal(array.to_numpy(), host) else 2
    os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert run(script) == "0\n"
