"""Times of work that is queued from Python, without the time that Python takes.

On a GPU the calls are captured into a graph and replayed; a first replay hides the host's launch of the
second, which events enclose. What cannot be captured is queued call by call between events, and says so.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pygpukit as gp

Call = Callable[[], Any]


class Timer(Protocol):
    """Times so many calls, in turns over the given ones; each of them has other inputs."""

    how: str

    def microseconds(self) -> float:
        """A call, over one replay."""


def _cycled(calls: Sequence[Call], count: int) -> None:
    for i in range(count):
        calls[i % len(calls)]()


class HostTimer:
    """The simulated device, and NumPy: a call returns when its work is done."""

    def __init__(self, calls: Sequence[Call], count: int) -> None:
        self._calls, self._count = calls, count
        self.how = f"host clock over {count} calls"

    def microseconds(self) -> float:
        start = time.perf_counter()
        _cycled(self._calls, self._count)
        gp.synchronize()
        return (time.perf_counter() - start) / self._count * 1e6


class EventTimer:
    """Calls or replays between two events of one library."""

    def __init__(
        self,
        calls: Sequence[Call],
        count: int,
        capture: Callable[[Callable[[], None]], Call],
        elapsed_ms: Callable[[Call], float],
    ) -> None:
        self._count, self._elapsed_ms = count, elapsed_ms
        try:
            self._replay = capture(lambda: _cycled(calls, count))
            self.how = f"graph of {count}"
        except Exception as reason:  # each library has its own for what cannot be captured
            self._replay = lambda: _cycled(calls, count)
            self.how = f"{count} queued calls ({type(reason).__name__} in a capture)"

    def microseconds(self) -> float:
        return self._elapsed_ms(self._replay) * 1e3 / self._count


def own_timer(calls: Sequence[Call], count: int) -> Timer:
    """Of this package, on the current device."""
    if not gp.device().is_cuda:
        return HostTimer(calls, count)
    start, end = gp.Event(timing=True), gp.Event(timing=True)

    def capture(work: Callable[[], None]) -> Call:
        graph = gp.Graph()
        with graph:
            work()
        return graph.launch

    def elapsed_ms(replay: Call) -> float:
        replay()
        start.record()
        replay()
        end.record()
        end.synchronize()
        return end.elapsed_ms(start)

    return EventTimer(calls, count, capture, elapsed_ms)


def repetitions(one_call_us: float, *, enough_us: float, at_least: int, at_most: int = 256) -> int:
    """How many calls fill `enough_us`."""
    return max(at_least, min(at_most, int(enough_us / max(one_call_us, 0.1)) + 1))


def in_turns(timers: dict[str, Timer], rounds: int) -> dict[str, list[float]]:
    """Microseconds a call of each timer in each round; the rounds go in turns."""
    times: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            times[name].append(timer.microseconds())
    return times


def estimate_us(make: Callable[[Sequence[Call], int], Timer], calls: Sequence[Call]) -> float:
    """About what a call takes, to choose the repetitions."""
    timer = make(calls[:1], 2)
    return statistics.median([timer.microseconds() for _ in range(2)])
