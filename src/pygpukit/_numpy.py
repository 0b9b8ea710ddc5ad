"""The NumPy side of Array's methods; the native module calls these."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _native
from ._native import Array, DType, InvalidTypeError

# What ml_dtypes calls the dtypes that NumPy does not have.
_ML_DTYPES = {"bfloat16": "bfloat16", "float8_e4m3": "float8_e4m3fn", "float8_e5m2": "float8_e5m2"}


def numpy_dtype(call: str, dtype: DType | str | type) -> np.dtype[Any]:
    """NumPy's dtype for one of ours, or for what names one."""
    name = _native.result_type(dtype, dtype).name
    if name not in _ML_DTYPES:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise InvalidTypeError(
            f"{call}: NumPy has no {name}; install ml_dtypes, or convert with astype('float32') first"
        ) from None
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))
    return found


def to_numpy(array: Array) -> np.ndarray[Any, Any]:
    out = np.empty(array.shape, numpy_dtype("to_numpy", array.dtype))
    array._to_bytes(out.reshape(-1).view(np.uint8))
    return out


def format_array(array: Array) -> str:
    shown = array.astype("float32") if array.dtype.name in _ML_DTYPES else array
    prefix = "Array("
    body = np.array2string(to_numpy(shown), separator=", ", prefix=prefix)
    if array.size == 0 and array.ndim != 1:
        body += f", shape={array.shape}"
    where = "" if array.device == "cuda:0" else f", device='{array.device}'"
    return f"{prefix}{body}, dtype={array.dtype}{where})"
