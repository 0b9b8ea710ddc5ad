"""GPU computing that feels like a standard Python library.

    import pygpukit as gp
    c = gp.asarray(a) @ gp.asarray(b)

Arrays follow NumPy and the array API standard. They live on the first GPU, or on a simulated one where
there is none; `gp.set_device`, `device=` and the environment variable PYGPUKIT_DEVICE choose another.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import _log as _log  # sets the logger before anything can need it
from ._convert import asarray, from_numpy
from ._native import (
    Array,
    CompileError,
    Device,
    DriverError,
    DType,
    Error,
    Event,
    FileFormatError,
    Graph,
    InvalidTypeError,
    InvalidValueError,
    OutOfBoundsError,
    OutOfMemoryError,
    Stream,
    Trace,
    UnsupportedError,
    __version__,
    absolute,
    add,
    all,
    any,
    arange,
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctan2,
    arctanh,
    argmax,
    argmin,
    bfloat16,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    bool_,
    broadcast_to,
    cbrt,
    ceil,
    clip,
    concat,
    cos,
    cosh,
    cuda_device_count,
    current_stream,
    device,
    div,
    divide,
    empty,
    empty_like,
    equal,
    erf,
    exp,
    exp2,
    expand_dims,
    expm1,
    eye,
    float8_e4m3,
    float8_e5m2,
    float16,
    float32,
    float64,
    floor,
    floor_divide,
    fmod,
    full,
    full_like,
    gelu,
    gelu_tanh,
    greater,
    greater_equal,
    hypot,
    int8,
    int16,
    int32,
    int64,
    invert,
    is_cuda_available,
    isfinite,
    isinf,
    isnan,
    left_shift,
    less,
    less_equal,
    linspace,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    matmul,
    matmul_precision,
    max,
    maximum,
    mean,
    memory_stats,
    min,
    minimum,
    mul,
    multiply,
    negative,
    not_equal,
    ones,
    ones_like,
    power,
    prod,
    reciprocal,
    relu,
    remainder,
    reshape,
    result_type,
    right_shift,
    rint,
    rsqrt,
    set_device,
    set_matmul_precision,
    set_memory_limit,
    sigmoid,
    sign,
    silu,
    sin,
    sinh,
    sqrt,
    square,
    stack,
    sub,
    subtract,
    sum,
    synchronize,
    take,
    tan,
    tanh,
    transpose,
    trim_memory,
    trunc,
    uint8,
    uint16,
    uint32,
    uint64,
    where,
    why_no_cuda,
    zeros,
    zeros_like,
)

GPUArray = Array
newaxis = None

if TYPE_CHECKING:
    from . import llm as llm

# Loaded at first use, so that `import pygpukit` stays fast.
_SUBMODULES = ("llm",)


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_SUBMODULES])
