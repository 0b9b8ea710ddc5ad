"""`gp.trace`: a recording that ends in a file."""

from __future__ import annotations

import atexit
import os
from types import TracebackType

from ._native import Device, Trace


class TraceFile:
    """A recording under way: what `gp.trace` gives. `with` or `stop()` ends it and writes the file."""

    def __init__(self, path: str, device: Device | str | None, max_events: int, device_times: bool) -> None:
        self.path = path
        self._trace = Trace(device=device, max_events=max_events, device_times=device_times)
        self._process = os.getpid()
        self._written = False
        # An empty trace now: a path that cannot be written is told before the work, not after it.
        self._trace.write(path)
        atexit.register(self.stop)

    def stop(self) -> None:
        """Ends the recording and writes the file; a second time does nothing.

        Raises FileFormatError where the file cannot be written; what was recorded is kept, and stop() may be
        tried again.
        """
        if self._written or os.getpid() != self._process:  # a forked child leaves its parent's file alone
            return
        self._trace.stop()
        self._trace.write(self.path)
        self._written = True
        atexit.unregister(self.stop)

    @property
    def dropped(self) -> int:
        """Events beyond max_events, which are not in the file."""
        return self._trace.dropped

    def __len__(self) -> int:
        return len(self._trace)

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def trace(
    path: str | os.PathLike[str],
    *,
    device: Device | str | None = "all",
    max_events: int = 1 << 20,
    device_times: bool = False,
) -> TraceFile:
    """Records what devices do into a file for Perfetto (ui.perfetto.dev) or chrome://tracing.

        with gp.trace("run.json"):
            c = a @ b

    The recording begins at once and ends with the block, with stop(), or with the interpreter. The file has
    a process for each device and tenant, with a track for each stream and for waits, memory, transfers,
    admission, pacing and tasks. Times are the host's, around each call, unless device_times is set.

    path: a file to write; it is replaced at the end as a whole.
    device: "all", also those opened later, or one of them; None is the current one.
    max_events: what is kept in memory meanwhile, some 150 bytes each. Later events are counted: `dropped`,
        and `otherData.dropped_events` in the file.
    device_times: also measure when the device ran each piece of work, by events around it. Work is then on
        its stream's track as the device ran it, and an arrow leads there from the host's thread. It costs a
        microsecond or two a launch, keeps kernels from overlapping, and stop() waits for the device.

    Raises FileFormatError, at once, for a path that cannot be written.
    """
    return TraceFile(os.fspath(path), device, max_events, device_times)
