"""The libraries that figures are held against: whichever are installed.

A peer sees our arrays through DLPack, so it works on the same memory, and times itself with its own graphs
and events, or with ours where its calls go to a stream that it is given.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

import pygpukit as gp

from .timing import Call, EventTimer, HostTimer, Timer, own_timer

_FLOAT8 = {"float8_e4m3": "float8_e4m3fn", "float8_e5m2": "float8_e5m2"}


class Peer(Protocol):
    name: str
    module: Any  # what a case's function for this peer gets first

    def view(self, array: gp.Array) -> Any:
        """The peer's array over the same memory; it may be a copy where the peer cannot share the dtype."""

    def timer(self, calls: Sequence[Call], count: int) -> Timer: ...

    def release(self) -> None:
        """Gives back what the library caches of the device's memory, which the others could not have."""


class TorchPeer:
    name = "torch"

    def __init__(self) -> None:
        self.module = importlib.import_module("torch")
        if not self.module.cuda.is_available():
            raise ImportError("this torch sees no GPU")

    def view(self, array: gp.Array) -> Any:
        if array.dtype.name in _FLOAT8:
            wide = self.module.from_dlpack(array.astype("float32"))
            return wide.to(getattr(self.module, _FLOAT8[array.dtype.name]))
        return self.module.from_dlpack(array)

    def timer(self, calls: Sequence[Call], count: int) -> Timer:
        cuda = self.module.cuda
        stream = cuda.Stream()
        start, end = (cuda.Event(enable_timing=True) for _ in range(2))
        with cuda.stream(stream):  # handles and workspaces are made before a capture
            for call in calls[:2]:
                call()
        cuda.synchronize()

        def capture(work: Callable[[], None]) -> Call:
            graph = cuda.CUDAGraph()
            with cuda.graph(graph, stream=stream):
                work()
            replay: Call = graph.replay
            return replay

        def elapsed_ms(replay: Call) -> float:
            with cuda.stream(stream):
                replay()
                start.record()
                replay()
                end.record()
            end.synchronize()
            return float(start.elapsed_time(end))

        return EventTimer(calls, count, capture, elapsed_ms)

    def release(self) -> None:
        self.module.cuda.empty_cache()


class CupyPeer:
    name = "cupy"

    def __init__(self) -> None:
        self.module = importlib.import_module("cupy")
        if not self.module.cuda.is_available():
            raise ImportError("this cupy sees no GPU")

    def view(self, array: gp.Array) -> Any:
        return self.module.from_dlpack(array)

    def timer(self, calls: Sequence[Call], count: int) -> Timer:
        cuda = self.module.cuda
        stream = cuda.Stream(non_blocking=True)
        start, end = cuda.Event(), cuda.Event()
        with stream:
            for call in calls[:2]:
                call()
        stream.synchronize()

        def capture(work: Callable[[], None]) -> Call:
            with stream:
                stream.begin_capture()
                try:
                    work()
                finally:
                    graph = stream.end_capture()
            return lambda: graph.launch(stream)

        def elapsed_ms(replay: Call) -> float:
            with stream:
                replay()
                start.record(stream)
                replay()
                end.record(stream)
            end.synchronize()
            return float(cuda.get_elapsed_time(start, end))

        return EventTimer(calls, count, capture, elapsed_ms)

    def release(self) -> None:
        self.module.get_default_memory_pool().free_all_blocks()


class CublasLtPeer:
    """The library itself, with the fastest of the algorithms that it proposes."""

    name = "cublaslt"

    def __init__(self) -> None:
        from .cublaslt import CublasLt

        self.module = CublasLt()

    def view(self, array: gp.Array) -> gp.Array:
        return array

    def timer(self, calls: Sequence[Call], count: int) -> Timer:
        return own_timer(calls, count)

    def release(self) -> None:
        """Its workspace stays: 64 MiB."""


class NumpyPeer:
    """For the simulated device. NumPy has no 16-bit arithmetic to speak of: its cases are float32."""

    name = "numpy"

    def __init__(self) -> None:
        self.module: Any = np

    def view(self, array: gp.Array) -> Any:
        return array.to_numpy()

    def timer(self, calls: Sequence[Call], count: int) -> Timer:
        return HostTimer(calls, count)

    def release(self) -> None:
        """It caches nothing."""


_ON_GPU: dict[str, Callable[[], Peer]] = {"cublaslt": CublasLtPeer, "torch": TorchPeer, "cupy": CupyPeer}
_ON_HOST: dict[str, Callable[[], Peer]] = {"numpy": NumpyPeer}
NAMES = (*_ON_GPU, *_ON_HOST)


def find_peers(wanted: Sequence[str] | None, on_gpu: bool) -> tuple[list[Peer], dict[str, str]]:
    """Those that are there, and why the others are not. A peer that was named and is not there raises
    ImportError."""
    found: list[Peer] = []
    missing: dict[str, str] = {}
    for name, make in (_ON_GPU if on_gpu else _ON_HOST).items():
        if wanted is not None and name not in wanted:
            continue
        try:
            found.append(make())
        except (ImportError, OSError) as reason:
            missing[name] = str(reason)
    unmet = [name for name in wanted or () if name not in [peer.name for peer in found]]
    if unmet:
        device = "a GPU" if on_gpu else "the simulated device"
        reasons = ", ".join(f"{name} ({missing.get(name, f'no peer on {device}')})" for name in unmet)
        raise ImportError(f"--peers: not here: {reasons}")
    return found, missing
