import gc

import numpy as np
import pytest

import pygpukit as gp


@pytest.fixture
def _no_limit_after():
    yield
    gp.memory.set_limit(0)


def test_stats_follow_arrays():
    gc.collect()
    before = gp.memory.stats()
    x = gp.empty(1_000_000, "uint8")
    during = gp.memory.stats()
    assert during["live_bytes"] == before["live_bytes"] + 1_000_000
    assert during["live_blocks"] == before["live_blocks"] + 1
    assert during["allocations"] == before["allocations"] + 1
    assert during["peak_live_bytes"] >= during["live_bytes"]
    assert during["reserved_bytes"] >= during["live_bytes"]
    view = x[10:]
    del x
    assert gp.memory.stats()["live_bytes"] == during["live_bytes"]
    del view
    assert gp.memory.stats()["live_bytes"] == before["live_bytes"]


def test_memory_is_reused():
    for _ in range(3):
        gp.empty(50_000)
    before = gp.memory.stats()["driver_allocations"]
    for _ in range(1000):
        gp.empty(50_000)
    assert gp.memory.stats()["driver_allocations"] == before


def test_trim_gives_memory_back():
    gp.empty(10_000_000, "uint8")
    assert gp.memory.stats()["cached_bytes"] >= 10_000_000
    assert gp.memory.trim() >= 10_000_000
    assert gp.memory.stats()["cached_bytes"] == 0


@pytest.mark.usefixtures("_no_limit_after")
def test_a_limit_gives_a_memory_error():
    gp.memory.trim()
    kept = gp.arange(1000)
    gp.memory.set_limit(gp.memory.stats()["reserved_bytes"] + (8 << 20))
    with pytest.raises(MemoryError) as caught:
        gp.zeros(1 << 30, "uint8")
    assert isinstance(caught.value, gp.OutOfMemoryError)
    assert isinstance(caught.value, gp.Error)
    assert (
        str(1 << 30) in str(caught.value).replace(",", "")
        or "1 GiB" in str(caught.value)
        or "1.0 GiB" in str(caught.value)
    )
    # What was there works on, and what fits still fits.
    assert int(gp.sum(kept + kept)) == 999_000
    assert gp.zeros(1 << 20, "uint8").size == 1 << 20


@pytest.mark.usefixtures("_no_limit_after")
def test_the_cache_is_given_back_before_giving_up():
    gp.memory.trim()
    gp.memory.set_limit(gp.memory.stats()["reserved_bytes"] + (40 << 20))
    for size in (30 << 20, 20 << 20, 35 << 20):
        assert gp.empty(size, "uint8").size == size


@pytest.mark.usefixtures("_no_limit_after")
def test_nothing_leaks_after_errors():
    gc.collect()
    gp.memory.trim()
    x = gp.ones((64, 64))
    before = gp.memory.stats()["live_blocks"]
    gp.memory.set_limit(gp.memory.stats()["reserved_bytes"] + (4 << 20))
    failures = [
        lambda: x + gp.ones(5),
        lambda: gp.matmul(x, gp.ones(5)),
        lambda: gp.concat([x, gp.ones((3, 3))]),
        lambda: gp.from_numpy(np.ones(10_000_000)),
        lambda: gp.broadcast_to(x, (4000, 64, 64)) + 1,
        lambda: gp.sum(x, axis=7),
        lambda: x.astype("nonsense"),
        lambda: x.reshape(7, 7),
        lambda: gp.take(x, gp.ones(3), 0),
        lambda: gp.add(x, x, out=gp.ones(3)),
    ]
    for _ in range(3):
        for fail in failures:
            with pytest.raises(gp.Error):
                fail()
    gc.collect()
    assert gp.memory.stats()["live_blocks"] == before
    assert float(gp.sum(x)) == 64 * 64


def test_freeing_in_any_order(rng):
    arrays = {}
    for step in range(2000):
        if arrays and rng.random() < 0.5:
            key = list(arrays)[rng.integers(len(arrays))]
            value, x = arrays.pop(key)
            assert int(x[0]) == int(x[-1]) == value
        else:
            size = int(rng.integers(1, 20_000))
            arrays[step] = (step, gp.full(size, step, "int32"))
    assert gp.memory.stats()["live_blocks"] >= len(arrays)


def test_device_memory():
    free, total = gp.device().memory
    assert 0 < free <= total
