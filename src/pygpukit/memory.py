"""Memory: the device's pool, pools with a quota of their own, eviction, and pinned host arrays.

gp.memory.set_limit("8GiB")
gp.memory.set_eviction(True)             # what does not fit waits in pinned host memory
pool = gp.memory.MemoryPool(quota="2GiB", enable_eviction=True)

host = gp.memory.pinned((1024, 1024), "float32")
host[:] = ...
transfer = gp.transfer.to_device(host)
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from . import _native
from ._native import InvalidTypeError, InvalidValueError
from ._native import MemoryBlock as MemoryBlock
from ._native import MemoryPool as MemoryPool

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from ._native import Device, DType


def stats(device: Device | str | None = None) -> dict[str, Any]:
    """What the device's memory pool holds.

    live_bytes: handed out, as asked for; evicted_bytes of them are not on the device. reserved_bytes: taken
    from the driver, of which cached_bytes are free; limit: the most of it, 0 for none. peak_live_bytes,
    live_blocks, allocations, driver_allocations; evictions and reloads; host_bytes: pinned for eviction;
    spilled_bytes: of evicted_bytes, on the disk; disk_bytes: what the spill file takes.
    classes: for each size class in bytes, its live and free blocks.
    """
    return dict(_native._memory_stats(device))


def snapshot(device: Device | str | None = None) -> list[dict[str, Any]]:
    """A dict for each block of the device's pool, for a picture of what holds what.

    address, bytes (asked for; 0 where cached), class_bytes (what it takes), state ('live', 'leaving',
    'evicted', 'cached'), movable, tenant (a name or None), stream (an id), last_use (of movable blocks; a
    greater number is later).
    """
    return list(_native._memory_snapshot(device))


def trim(device: Device | str | None = None) -> int:
    """Give the pool's free memory back to the driver; returns its bytes. Waits for work that uses it."""
    return int(_native._memory_trim(device))


def set_limit(nbytes: int | str | None, device: Device | str | None = None) -> None:
    """The most that the device's pool may take from the driver, in bytes or as "8GiB"; None or 0: no limit.

    Raises InvalidValueError for negative sizes.
    """
    _native._memory_set_limit(nbytes, device)


def set_eviction(
    enabled: bool,
    *,
    host_limit: int | str | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
    disk_limit: int | str | None = None,
    device: Device | str | None = None,
) -> None:
    """Whether arrays made from now on may leave the device when memory is short.

    What was used longest ago is copied to pinned host memory (at most `host_limit`; half of the machine's
    memory unless set) and comes back, at the same address, with its next use. What queued work, a graph, or
    a user of `data_ptr` needs stays; so do arrays smaller than the device's granularity (2 MiB on GPUs). A
    'guaranteed' tenant's memory never leaves for another's; 'best_effort' goes first.

    With `spill_dir`, what was away longest goes on from a full pinned memory to a file there, of at most
    `disk_limit` bytes (half of what the disk has left, unless given), and comes back through pinned memory.
    The file has no name and goes with the process. An array larger than `host_limit` does not move. What is
    None stays as it was; `disk_limit=0` ends spilling, and what is on the disk comes back with its next use.

    Limits are bytes or "8GiB". Raises InvalidValueError for negative ones, for a `spill_dir` that is
    relative, a link, no folder or not writable, and for a `disk_limit` without a `spill_dir`. Later, an
    operation raises OutOfMemoryError where no tier has room, and FileFormatError where the disk gives back
    something else than was written: the array stays away then, and each use tries again.
    """
    if not isinstance(enabled, bool):
        kind = type(enabled).__name__
        raise InvalidTypeError(f"set_eviction: argument 'enabled': expected True or False, got {kind}")
    if spill_dir is not None and not isinstance(spill_dir, (str, os.PathLike)):
        kind = type(spill_dir).__name__
        raise InvalidTypeError(f"set_eviction: argument 'spill_dir': expected a path, got {kind}")
    folder = None if spill_dir is None else os.fsdecode(spill_dir)
    _native._memory_set_eviction(enabled, host_limit, folder, disk_limit, device)


def pinned(
    shape: int | Sequence[int], dtype: DType | str | type = "float32", device: Device | str | None = None
) -> np.ndarray[Any, Any]:
    """An uninitialised NumPy array in pinned host memory.

    Copies between it and the device run at the full rate of the bus and beside the host's work. The memory
    comes from a pool of the device (default: the current one) and goes back to it with the array and the
    last of its views.

    Raises InvalidValueError for negative extents, InvalidTypeError for dtypes that arrays do not have and
    OutOfMemoryError beyond the pool's limit.
    """
    from ._numpy import numpy_dtype

    try:
        extents = tuple(
            operator.index(extent) for extent in (shape if isinstance(shape, Iterable) else (shape,))
        )
    except TypeError:
        raise InvalidTypeError(
            f"pinned: argument 'shape': expected an integer or a sequence of integers, got {shape!r}"
        ) from None
    if any(extent < 0 for extent in extents):
        raise InvalidValueError(f"pinned: argument 'shape': expected extents from 0, got {extents}")
    element = numpy_dtype("pinned", dtype)
    nbytes = math.prod(extents) * element.itemsize
    if nbytes >= 2**63:
        raise _native.OutOfMemoryError(f"pinned: expected fewer than 2**63 bytes, got {nbytes}")
    flat = cast("np.ndarray[Any, Any]", _native._pinned(nbytes, device))
    try:
        return flat.view(element).reshape(extents)
    except ValueError as reason:  # more dimensions than NumPy has, or extents that overflow beside a 0
        raise InvalidValueError(f"pinned: argument 'shape': {reason}") from None


def pinned_stats(device: Device | str | None = None) -> dict[str, int]:
    """What the pool of pinned memory holds, in bytes and blocks."""
    return dict(_native._pinned_stats(device))


def trim_pinned(device: Device | str | None = None) -> int:
    """Give the pool's free pinned memory back to the system; returns its bytes."""
    return int(_native._pinned_trim(device))


def set_pinned_limit(nbytes: int | str, device: Device | str | None = None) -> None:
    """The most pinned memory that the pool may take, in bytes or as '4GiB'; by default half of the machine's.

    Raises InvalidValueError for what is no number of bytes, InvalidTypeError for another kind of object.
    """
    _native._pinned_limit(nbytes, device)
