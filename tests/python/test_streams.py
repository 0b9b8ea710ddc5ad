import threading

import numpy as np
import pytest

import pygpukit as gp
from support import assert_equal


def test_with_makes_a_stream_current():
    outer = gp.current_stream()
    stream = gp.Stream()
    with stream as entered:
        assert entered is stream
        assert gp.current_stream() == stream
        with gp.Stream() as inner:
            assert gp.current_stream() == inner
        with stream:
            assert gp.current_stream() == stream
        assert gp.current_stream() == stream
    assert gp.current_stream() == outer


def test_an_error_inside_restores_the_stream():
    outer = gp.current_stream()
    with pytest.raises(ZeroDivisionError), gp.Stream():
        raise ZeroDivisionError
    assert gp.current_stream() == outer


def test_work_goes_to_the_current_stream():
    stream = gp.Stream()
    with gp.Trace() as trace:
        gp.ones(4)
        with stream:
            gp.ones(4)
    first, second = {entry["stream"] for entry in trace.entries[:1]}, trace.entries[-1]["stream"]
    assert second not in first
    assert hash(stream) == second


def test_arrays_order_themselves_across_streams(rng):
    host = rng.standard_normal(200_000).astype(np.float32)
    streams = [gp.Stream() for _ in range(4)]
    x = gp.from_numpy(host)
    expected = host.copy()
    for round_ in range(24):
        with streams[round_ % 4]:
            x = x * 2 if round_ % 2 else x + 1
        expected = expected * np.float32(2) if round_ % 2 else expected + np.float32(1)
    assert_equal(x, expected)


def test_writes_wait_for_readers_on_other_streams(rng):
    host = rng.standard_normal(500_000).astype(np.float32)
    x = gp.from_numpy(host)
    with gp.Stream():
        kept = gp.tanh(x) * 0 + x
    x[...] = 0
    assert_equal(kept, host)


def test_memory_freed_on_one_stream_and_reused_on_another(rng):
    host = rng.standard_normal(100_000).astype(np.float32)
    streams = [gp.Stream() for _ in range(3)]
    results = []
    for round_ in range(30):
        with streams[round_ % 3]:
            temporary = gp.from_numpy(host) * round_
            results.append(temporary + 1)
            del temporary
    for round_, result in enumerate(results):
        assert_equal(result, host * np.float32(round_) + np.float32(1))


def test_a_destroyed_streams_work_still_counts(rng):
    host = rng.standard_normal(100_000)
    stream = gp.Stream()
    with stream:
        x = gp.from_numpy(host) + 1
    del stream
    assert_equal(x * 2, (host + 1) * 2)


def test_synchronize_and_is_done():
    stream = gp.Stream()
    with stream:
        gp.tanh(gp.ones(100_000))
    stream.synchronize()
    assert stream.is_done
    gp.synchronize()
    assert gp.current_stream().is_done


def test_priorities():
    highest, lowest = gp.device().properties["stream_priorities"]
    for priority in range(highest, lowest + 1):
        assert gp.Stream(priority=priority).priority == priority
    with pytest.raises(gp.InvalidValueError, match="priority"):
        gp.Stream(priority=lowest + 1)
    assert gp.Stream().device == gp.device()
    assert isinstance(gp.Stream().handle, int)


def test_events(rng):
    stream, event = gp.Stream(), gp.Event()
    assert event.is_done  # never recorded
    host = rng.standard_normal(100_000).astype(np.float32)
    with stream:
        x = gp.from_numpy(host) * 3
        event.record()
    gp.current_stream().wait(event)
    event.synchronize()
    assert event.is_done
    assert_equal(x, host * 3)
    other = gp.Stream()
    other.wait(stream)
    other.wait(event)
    event.record(other)
    event.synchronize()


def test_elapsed_time():
    start, end = gp.Event(timing=True), gp.Event(timing=True)
    start.record()
    gp.tanh(gp.ones(1_000_000))
    end.record()
    end.synchronize()
    assert 0 < end.elapsed_ms(start) < 60_000
    with pytest.raises(gp.Error, match="timing"):
        gp.Event().elapsed_ms(start)


def test_streams_compare():
    stream = gp.Stream()
    assert stream == stream
    assert stream != gp.Stream()
    assert stream != None  # noqa: E711
    assert gp.current_stream() == gp.current_stream()


def test_scopes_may_end_in_any_order():
    outer = gp.current_stream()
    first, second = gp.Stream(), gp.Stream()
    for order in ((first, second), (second, first)):
        first.__enter__()
        second.__enter__()
        order[0].__exit__(None, None, None)
        assert gp.current_stream() == order[1]
        order[1].__exit__(None, None, None)
        assert gp.current_stream() == outer


def test_threads_may_enter_one_stream():
    outer, shared = gp.Stream(), gp.Stream()
    entered, left = threading.Event(), threading.Event()
    seen = []

    def enter_too():
        before = gp.current_stream()
        with shared:
            entered.set()
            left.wait(60)
        seen.append(gp.current_stream() == before)

    other = threading.Thread(target=enter_too)
    with outer:
        with shared:
            other.start()
            entered.wait(60)
        assert gp.current_stream() == outer
        left.set()
        other.join()
    assert seen == [True]


def test_the_end_of_a_scope_that_was_not_entered():
    with pytest.raises(gp.InvalidValueError, match="Stream: expected the end of a scope"):
        gp.Stream().__exit__(None, None, None)
