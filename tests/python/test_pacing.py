import threading
import time

import numpy as np
import pytest

import pygpukit as gp
from support import assert_equal


def test_paced_work_takes_its_time(rng):
    engine = gp.KernelPacingEngine(gp.PacingConfig(bandwidth_share=0.5, device_bandwidth=1e9))
    x = gp.ones(250_000)  # 1 MB read, 1 MB written: 4 ms at 0.5 GB/s
    gp.synchronize()
    started = time.perf_counter()
    with engine.stream():
        for _ in range(26):
            y = x + 1
    took = time.perf_counter() - started
    assert_equal(y, np.full(250_000, 2, np.float32))
    stats = engine.stats()
    assert took >= 0.09
    assert stats["bytes"] >= 26 * 2e6
    assert stats["waits"] >= 20
    assert stats["waited_seconds"] <= took
    assert stats["measured"] >= 2


def test_a_waiting_launch_leaves_the_interpreter_to_others():
    engine = gp.KernelPacingEngine(gp.PacingConfig(bandwidth_share=0.5, device_bandwidth=1e8))
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    x = gp.ones(250_000)
    with engine.stream():
        x + 1
        before = counted[0]
        thread.start()
        x + 1  # waits 40 ms
        assert counted[0] - before > 100
    stop.set()
    thread.join()


def test_bad_settings():
    for bad in (
        {"time_share": -1.0},
        {"bandwidth_share": 2.0},
        {"time_share": float("nan")},
        {"queue_ahead": 0.0},
    ):
        with pytest.raises(gp.InvalidValueError, match="PacingConfig"):
            gp.PacingConfig(**bad)
    for bad in ({"max_outstanding": 0}, {"max_outstanding_time": -1.0}, {"watchdog": float("nan")}):
        with pytest.raises(gp.InvalidValueError, match="LaunchConfig"):
            gp.LaunchConfig(**bad)


def test_a_dispatcher_tells_what_becomes_of_its_launches():
    dispatcher = gp.KernelDispatcher(gp.LaunchConfig(max_outstanding=2))
    results = []
    launches = [
        dispatcher.submit(lambda i=i: results.append((i, gp.full(1000, i) * 2)), name=f"k{i}")
        for i in range(8)
    ]
    assert launches[7].wait(60)
    assert [i for i, _ in results] == list(range(8))
    for i, array in results:
        assert_equal(array, gp.full(1000, i).to_numpy() * 2)
    assert {each.state for each in launches} == {"completed"}
    assert all(each.device_seconds >= 0 for each in launches)
    assert launches[3].name == "k3"
    assert not launches[3].cancel()
    assert dispatcher.stats()["completed"] == 8


def test_a_callables_exception_is_its_launches():
    dispatcher = gp.KernelDispatcher()
    bad = dispatcher.submit(lambda: 1 / 0)
    wrong = dispatcher.submit(lambda: gp.ones(3) + gp.ones(4))
    good = dispatcher.submit(lambda: gp.ones(3))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            bad.wait()
        with pytest.raises(gp.InvalidValueError):
            wrong.wait()
    assert bad.state == wrong.state == "failed"
    assert good.wait()
    dispatcher.synchronize()
    dispatcher.poll()
    assert dispatcher.stats()["failed"] == 2


def test_a_queued_launch_can_be_cancelled():
    dispatcher = gp.KernelDispatcher()
    inner = []

    def work():
        inner.append(dispatcher.submit(lambda: inner.append("ran")))
        assert inner[0].state == "queued"
        assert inner[0].cancel()

    assert dispatcher.submit(work).wait()
    assert inner[0].state == "cancelled"
    assert len(inner) == 1
    assert inner[0].device_seconds is None


def test_lost_is_a_driver_error():
    assert issubclass(gp.DeviceLostError, gp.DriverError)
    assert issubclass(gp.DeviceLostError, RuntimeError)
