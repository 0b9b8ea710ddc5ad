"""From host objects to arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _native
from ._native import Array, DType, InvalidTypeError

if TYPE_CHECKING:
    import numpy as np


def from_numpy(array: np.ndarray[Any, Any], device: _native.Device | str | None = None) -> Array:
    """Copy a NumPy array to a device.

    array: any shape and strides; its dtype is kept (ml_dtypes' bfloat16 and float8 included).
    device: where to; the current device by default.

    Raises InvalidTypeError for another kind of object and for dtypes that arrays do not have.
    """
    import numpy as np

    if not isinstance(array, np.ndarray | np.generic):
        raise InvalidTypeError(
            f"from_numpy: argument 'array': expected a NumPy array, "
            f"got {type(array).__name__}; use gp.asarray"
        )
    if array.dtype.hasobject:
        raise InvalidTypeError("from_numpy: argument 'array': expected numbers, got Python objects")
    host = _plain(array)
    return _native._from_bytes(host.reshape(-1).view(np.uint8), host.shape, host.dtype.name, device)


def _plain(array: np.ndarray[Any, Any] | np.generic) -> np.ndarray[Any, Any]:
    """The array itself, or a copy in row-major order and native byte order."""
    import numpy as np

    host = np.asarray(array, order="C")
    return host if host.dtype.isnative else host.astype(host.dtype.newbyteorder("="))


def host_array(call: str, obj: object, dtype: object = None) -> np.ndarray[Any, Any]:
    """A NumPy array, a number or nested sequences as the array that arrays are made of.

    dtype: what it is to become later; Python floats are float32 where it is None.
    """
    import numpy as np

    from_python = not isinstance(obj, np.ndarray | np.generic)
    if isinstance(obj, Array):
        raise InvalidTypeError(f"{call}: argument 'obj': expected host data, got an array on {obj.device}")
    try:
        host = np.asarray(obj)
    except ValueError as reason:
        raise _native.InvalidValueError(f"{call}: argument 'obj': {reason}") from None
    if host.dtype.hasobject:
        raise InvalidTypeError(
            f"{call}: argument 'obj': expected numbers in sequences of equal length, got {type(obj).__name__}"
        )
    if from_python and host.dtype == np.float64 and dtype is None:
        host = host.astype(np.float32)
    return _plain(host)


def asarray(
    obj: object,
    dtype: DType | str | type | None = None,
    device: _native.Device | str | None = None,
    *,
    copy: bool | None = None,
) -> Array:
    """Make an array of a NumPy array, a number, nested sequences of numbers, or another array.

    dtype: of the result. Default: the object's own; int64 of Python integers, float32 of Python floats.
    device: where to. Default: an array's own device, otherwise the current one.
    copy: True copies always, None only where needed; False raises InvalidValueError where a copy is needed.

    Python's numbers must fit an integer dtype (InvalidValueError); those of arrays wrap, as in astype.
    """
    if isinstance(obj, Array):
        moved = obj if device is None else obj.to_device(device)
        result = moved if dtype is None else moved.astype(dtype, copy=False)
        shared = result.device == obj.device and result.dtype == obj.dtype
        if copy is False and not shared:
            raise _native.InvalidValueError("asarray: a copy is needed, but copy=False forbids it")
        return result.copy() if copy and shared else result
    if copy is False:
        raise _native.InvalidValueError(
            "asarray: a host object must be copied to the device, but copy=False forbids it"
        )
    host = host_array("asarray", obj, dtype)
    result = from_numpy(host, device)
    if dtype is None:
        return result
    result = result.astype(dtype, copy=False)
    if not hasattr(obj, "dtype"):
        _check_fits(host, str(result.dtype))
    return result


def _check_fits(numbers: np.ndarray[Any, Any], dtype: str) -> None:
    """Python's numbers in an integer dtype: those of arrays wrap, as NumPy's do."""
    import numpy as np

    if numbers.size == 0 or numbers.dtype.kind == "b" or not dtype.startswith(("int", "uint")):
        return
    least, most, bounds = numbers.min(), numbers.max(), np.iinfo(dtype)
    if not (int(bounds.min) <= least and most <= int(bounds.max)):  # also where one is NaN
        raise _native.InvalidValueError(
            f"asarray: argument 'obj': expected numbers from {bounds.min} to {bounds.max} for {dtype}, got "
            f"{least if not least >= int(bounds.min) else most}"
        )
