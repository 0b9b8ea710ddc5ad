"""Memory: pinned host arrays, which the device copies without a detour.

host = gp.memory.pinned((1024, 1024), "float32")
host[:] = ...
transfer = gp.transfer.to_device(host)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

from . import _native
from ._native import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from ._native import Device, DType


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

    extents = (shape,) if isinstance(shape, int) else tuple(int(extent) for extent in shape)
    if any(extent < 0 for extent in extents):
        raise InvalidValueError(f"pinned: argument 'shape': expected extents from 0, got {extents}")
    element = numpy_dtype("pinned", dtype)
    nbytes = math.prod(extents) * element.itemsize
    if nbytes >= 2**63:
        raise _native.OutOfMemoryError(f"pinned: expected fewer than 2**63 bytes, got {nbytes}")
    flat = cast("np.ndarray[Any, Any]", _native._pinned(nbytes, device))
    return flat.view(element).reshape(extents)


def pinned_stats(device: Device | str | None = None) -> dict[str, int]:
    """What the pool of pinned memory holds, in bytes and blocks."""
    return dict(_native._pinned_stats(device))


def trim_pinned(device: Device | str | None = None) -> int:
    """Give the pool's free pinned memory back to the system; returns its bytes."""
    return int(_native._pinned_trim(device))


def set_pinned_limit(nbytes: int, device: Device | str | None = None) -> None:
    """The most pinned memory that the pool may take, in bytes; half of the machine's memory by default."""
    if not 0 <= nbytes < 2**63:
        raise InvalidValueError(f"set_pinned_limit: expected 0 to 2**63 - 1 bytes, got {nbytes}")
    _native._pinned_limit(nbytes, device)
