"""Copies between host and device in the background.

    transfer = gp.transfer.to_device(batch)       # returns at once
    ...                                           # the device computes meanwhile
    x = transfer.result()                         # or: x = await transfer

Copies of one direction share the bus: the most urgent goes first, chunk by chunk, so a small urgent copy
passes a large one that is under way. Arrays order themselves: work that uses an array waits for the transfers
that were started on it before. Sources in pinned memory (gp.memory.pinned) are copied directly, others by way
of a pinned ring.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import operator
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from . import _native
from ._native import Array, InvalidTypeError, InvalidValueError

if TYPE_CHECKING:
    import numpy as np

    from ._native import Device

Progress = Callable[[int, int], object]


class Transfer:
    """A copy that runs in the background. Made by to_device, to_host and copy; can be awaited."""

    def __init__(self, native: _native._Transfer, value: Any) -> None:
        self._native = native
        self._value = value

    @property
    def state(self) -> str:
        """'queued', 'in_progress', 'completed', 'failed' or 'cancelled'."""
        return self._native.state

    @property
    def nbytes(self) -> int:
        """The bytes to copy."""
        return self._native.nbytes

    @property
    def bytes_done(self) -> int:
        """The bytes copied so far."""
        return self._native.bytes_done

    @property
    def priority(self) -> int:
        """As given: 0 is normal, smaller is more urgent."""
        return self._native.priority

    def done(self) -> bool:
        """Whether it is over: completed, failed or cancelled."""
        return self._native.over

    def result(self, timeout: float | None = None) -> Any:
        """What was copied to: the device array of to_device, the NumPy array of to_host.

        timeout: seconds; None waits for ever.

        Raises TimeoutError, concurrent.futures.CancelledError, or the error that the transfer failed with.
        """
        self._wait(timeout)
        self._native.get()
        return self._value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error it failed with, or None. Waits and raises (TimeoutError, CancelledError) as result()."""
        self._wait(timeout)
        try:
            self._native.get()
        except _native.Error as failure:
            found: BaseException = failure
            return found
        return None

    def cancel(self) -> bool:
        """Stop it: at once where it is queued, after the chunks under way where it is in progress.

        Returns False where it is over or nothing is left to be stopped. After a cancel the target holds part
        of the data.
        """
        return self._native.cancel()

    def add_done_callback(self, call: Callable[[Transfer], object]) -> None:
        """Call call(transfer) once it is over, on a thread of the engine; at once where it is over."""
        self._native.on_done(lambda: call(self))

    def __await__(self) -> Generator[Any, None, Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def resolve() -> None:
            if not future.done():
                future.set_result(None)

        def tell(_: Transfer) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(resolve)

        self.add_done_callback(tell)
        try:
            yield from future
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self.state == "cancelled":
            raise asyncio.CancelledError("the transfer was cancelled")
        return self.result()

    def __repr__(self) -> str:
        return f"<Transfer {self.state}, {self.bytes_done} of {self.nbytes} bytes>"

    def _wait(self, timeout: float | None) -> None:
        if not self._native.wait(timeout):
            raise TimeoutError(f"transfer: {self.state} after {timeout} seconds")
        if self._native.state == "cancelled":
            raise concurrent.futures.CancelledError("the transfer was cancelled")


def to_device(
    obj: object,
    *,
    out: Array | None = None,
    device: Device | str | None = None,
    priority: int = 0,
    progress: Progress | None = None,
) -> Transfer:
    """Start a copy of host data to a device. The result is the device array.

    obj: host data as gp.asarray takes it. A contiguous NumPy array is read in the background and must not
        change until the transfer is over; anything else is copied first.
    out: a contiguous array of the same shape and dtype to copy into. Default: a new one.
    device: where to; out's, or the current one, by default.
    priority: as of a stream: 0 is normal, smaller is more urgent. Below 0 it passes what is under way.
    progress: called now and then, on a thread of the engine, with the bytes done and all bytes.

    Raises InvalidValueError for an `out` that does not fit, InvalidTypeError for what is no data, and
    UnsupportedError during a graph capture and in a process forked after transfers began.
    """
    from ._convert import host_array

    if out is not None and device is not None and out.device != device:
        raise InvalidValueError(f"to_device: argument 'out': expected an array on {device}, got {out.device}")
    host = host_array("to_device", obj)
    native, target = _native._transfer_to_device(
        _flat(host), host.shape, host.dtype.name, out, device, _priority(priority), progress
    )
    return Transfer(native, target if out is None else out)


def to_host(
    array: Array,
    *,
    out: np.ndarray[Any, Any] | None = None,
    priority: int = 0,
    progress: Progress | None = None,
) -> Transfer:
    """Start a copy of an array to the host. The result is a NumPy array.

    array: one that is not contiguous is first copied on the device.
    out: a C-contiguous NumPy array of the same shape and dtype, of gp.memory.pinned for the highest rate.
        Default: a new one. It must not be used until the transfer is over.
    priority, progress: as for to_device.

    Raises InvalidValueError for an `out` that does not fit, and UnsupportedError as to_device.
    """
    import numpy as np

    from ._numpy import numpy_dtype

    if not isinstance(array, Array):
        raise InvalidTypeError(f"to_host: argument 'array': expected an array, got {type(array).__name__}")
    dtype = numpy_dtype("to_host", array.dtype)
    if out is None:
        out = np.empty(array.shape, dtype)
    elif (
        not isinstance(out, np.ndarray)
        or out.shape != array.shape
        or out.dtype != dtype
        or not out.flags.c_contiguous
        or not out.flags.writeable
    ):
        raise InvalidValueError(
            f"to_host: argument 'out': expected a writable, C-contiguous NumPy array of shape {array.shape} "
            f"and dtype {dtype}, got {_shown(out)}"
        )
    source = array if array.is_contiguous else array.copy()
    return Transfer(_native._transfer_to_host(source, _flat(out), _priority(priority), progress), out)


def copy(
    source: Array | np.ndarray[Any, Any],
    target: Array | np.ndarray[Any, Any],
    *,
    priority: int = 0,
    progress: Progress | None = None,
) -> Transfer:
    """Start a copy between two arrays of one shape and dtype. The result is `target`.

    Each is an array or a NumPy array; at least one is an array. Arrays are contiguous, and where both are
    arrays they are on one device and share no elements.

    Raises InvalidValueError for arrays that do not fit and InvalidTypeError for other kinds of objects.
    """
    if isinstance(source, Array) and isinstance(target, Array):
        native = _native._transfer_on_device(source, target, _priority(priority), progress)
        return Transfer(native, target)
    if isinstance(target, Array):
        return to_device(source, out=target, priority=priority, progress=progress)
    if isinstance(source, Array):
        return to_host(source, out=target, priority=priority, progress=progress)
    raise InvalidTypeError("copy: expected an array as source or target, got two host objects")


def stats(device: Device | str | None = None) -> dict[str, Any]:
    """What the device's engine has done: transfers and bytes by direction; those queued and in progress."""
    return dict(_native._transfer_stats(device))


def _flat(host: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    return host.reshape(-1).view(np.uint8)


def _priority(priority: int) -> int:
    try:
        return max(-1000, min(1000, operator.index(priority)))
    except TypeError:
        raise InvalidTypeError(f"transfer: argument 'priority': expected an int, got {priority!r}") from None


def _shown(out: object) -> str:
    shape, dtype = getattr(out, "shape", None), getattr(out, "dtype", None)
    return f"{type(out).__name__} of shape {shape} and dtype {dtype}" if dtype else type(out).__name__
