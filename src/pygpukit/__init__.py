"""GPU computing that feels like a standard Python library.

    import pygpukit as gp
    c = gp.asarray(a) @ gp.asarray(b)

Arrays follow NumPy and the array API standard. They live on the first GPU, or on a simulated one where
there is none; `gp.set_device`, `device=` and the environment variable PYGPUKIT_DEVICE choose another.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from . import _libraries as _libraries  # tells the core where libraries may be
from . import _log as _log  # sets the logger before anything can need it
from . import _native as _native
from ._convert import asarray as asarray
from ._convert import from_numpy as from_numpy
from ._native import (
    AdmissionController as AdmissionController,
)
from ._native import (
    AdmissionDecision as AdmissionDecision,
)
from ._native import (
    Array as Array,
)
from ._native import (
    CompileError as CompileError,
)
from ._native import (
    Device as Device,
)
from ._native import (
    DeviceLostError as DeviceLostError,
)
from ._native import (
    DriverError as DriverError,
)
from ._native import (
    DType as DType,
)
from ._native import (
    Error as Error,
)
from ._native import (
    Event as Event,
)
from ._native import (
    ExchangeError as ExchangeError,
)
from ._native import (
    FileFormatError as FileFormatError,
)
from ._native import (
    Graph as Graph,
)
from ._native import (
    InvalidTypeError as InvalidTypeError,
)
from ._native import (
    InvalidValueError as InvalidValueError,
)
from ._native import (
    Kernel as Kernel,
)
from ._native import (
    KernelDispatcher as KernelDispatcher,
)
from ._native import (
    KernelPacingEngine as KernelPacingEngine,
)
from ._native import (
    Launch as Launch,
)
from ._native import (
    LaunchConfig as LaunchConfig,
)
from ._native import (
    OutOfBoundsError as OutOfBoundsError,
)
from ._native import (
    OutOfMemoryError as OutOfMemoryError,
)
from ._native import (
    PacingConfig as PacingConfig,
)
from ._native import (
    Partition as Partition,
)
from ._native import (
    PartitionConfig as PartitionConfig,
)
from ._native import (
    PartitionLimits as PartitionLimits,
)
from ._native import (
    PartitionManager as PartitionManager,
)
from ._native import (
    QosClass as QosClass,
)
from ._native import (
    QosEvaluation as QosEvaluation,
)
from ._native import (
    QosPolicyEvaluator as QosPolicyEvaluator,
)
from ._native import (
    QosTaskMeta as QosTaskMeta,
)
from ._native import (
    SliceConfig as SliceConfig,
)
from ._native import (
    Stream as Stream,
)
from ._native import (
    Trace as Trace,
)
from ._native import (
    UnsupportedError as UnsupportedError,
)
from ._native import (
    __version__ as __version__,
)
from ._native import (
    absolute as absolute,
)
from ._native import (
    add as add,
)
from ._native import (
    all as all,
)
from ._native import (
    any as any,
)
from ._native import (
    arange as arange,
)
from ._native import (
    arccos as arccos,
)
from ._native import (
    arccosh as arccosh,
)
from ._native import (
    arcsin as arcsin,
)
from ._native import (
    arcsinh as arcsinh,
)
from ._native import (
    arctan as arctan,
)
from ._native import (
    arctan2 as arctan2,
)
from ._native import (
    arctanh as arctanh,
)
from ._native import (
    argmax as argmax,
)
from ._native import (
    argmin as argmin,
)
from ._native import (
    bfloat16 as bfloat16,
)
from ._native import (
    bitwise_and as bitwise_and,
)
from ._native import (
    bitwise_or as bitwise_or,
)
from ._native import (
    bitwise_xor as bitwise_xor,
)
from ._native import (
    bool_ as bool_,
)
from ._native import (
    broadcast_to as broadcast_to,
)
from ._native import (
    cbrt as cbrt,
)
from ._native import (
    ceil as ceil,
)
from ._native import (
    clip as clip,
)
from ._native import (
    concat as concat,
)
from ._native import (
    cos as cos,
)
from ._native import (
    cosh as cosh,
)
from ._native import (
    cuda_device_count as cuda_device_count,
)
from ._native import (
    current_stream as current_stream,
)
from ._native import (
    device as device,
)
from ._native import (
    div as div,
)
from ._native import (
    divide as divide,
)
from ._native import (
    empty as empty,
)
from ._native import (
    empty_like as empty_like,
)
from ._native import (
    equal as equal,
)
from ._native import (
    erf as erf,
)
from ._native import (
    exp as exp,
)
from ._native import (
    exp2 as exp2,
)
from ._native import (
    expand_dims as expand_dims,
)
from ._native import (
    expm1 as expm1,
)
from ._native import (
    eye as eye,
)
from ._native import (
    float8_e4m3 as float8_e4m3,
)
from ._native import (
    float8_e5m2 as float8_e5m2,
)
from ._native import (
    float16 as float16,
)
from ._native import (
    float32 as float32,
)
from ._native import (
    float64 as float64,
)
from ._native import (
    floor as floor,
)
from ._native import (
    floor_divide as floor_divide,
)
from ._native import (
    fmod as fmod,
)
from ._native import (
    from_dlpack as from_dlpack,
)
from ._native import (
    full as full,
)
from ._native import (
    full_like as full_like,
)
from ._native import (
    gelu as gelu,
)
from ._native import (
    gelu_tanh as gelu_tanh,
)
from ._native import (
    get_nvrtc_path as get_nvrtc_path,
)
from ._native import (
    get_nvrtc_version as get_nvrtc_version,
)
from ._native import (
    greater as greater,
)
from ._native import (
    greater_equal as greater_equal,
)
from ._native import (
    hypot as hypot,
)
from ._native import (
    int8 as int8,
)
from ._native import (
    int16 as int16,
)
from ._native import (
    int32 as int32,
)
from ._native import (
    int64 as int64,
)
from ._native import (
    invert as invert,
)
from ._native import (
    is_cuda_available as is_cuda_available,
)
from ._native import (
    is_nvrtc_available as is_nvrtc_available,
)
from ._native import (
    isfinite as isfinite,
)
from ._native import (
    isinf as isinf,
)
from ._native import (
    isnan as isnan,
)
from ._native import (
    jit as jit,
)
from ._native import (
    left_shift as left_shift,
)
from ._native import (
    less as less,
)
from ._native import (
    less_equal as less_equal,
)
from ._native import (
    linspace as linspace,
)
from ._native import (
    log as log,
)
from ._native import (
    log1p as log1p,
)
from ._native import (
    log2 as log2,
)
from ._native import (
    log10 as log10,
)
from ._native import (
    logaddexp as logaddexp,
)
from ._native import (
    logical_and as logical_and,
)
from ._native import (
    logical_not as logical_not,
)
from ._native import (
    logical_or as logical_or,
)
from ._native import (
    logical_xor as logical_xor,
)
from ._native import (
    matmul as matmul,
)
from ._native import (
    matmul_precision as matmul_precision,
)
from ._native import (
    max as max,
)
from ._native import (
    maximum as maximum,
)
from ._native import (
    mean as mean,
)
from ._native import (
    metrics as metrics,
)
from ._native import (
    min as min,
)
from ._native import (
    minimum as minimum,
)
from ._native import (
    mul as mul,
)
from ._native import (
    multiply as multiply,
)
from ._native import (
    negative as negative,
)
from ._native import (
    not_equal as not_equal,
)
from ._native import (
    ones as ones,
)
from ._native import (
    ones_like as ones_like,
)
from ._native import (
    partition as partition,
)
from ._native import (
    power as power,
)
from ._native import (
    prod as prod,
)
from ._native import (
    reciprocal as reciprocal,
)
from ._native import (
    relu as relu,
)
from ._native import (
    remainder as remainder,
)
from ._native import (
    reshape as reshape,
)
from ._native import (
    result_type as result_type,
)
from ._native import (
    right_shift as right_shift,
)
from ._native import (
    rint as rint,
)
from ._native import (
    rsqrt as rsqrt,
)
from ._native import (
    set_device as set_device,
)
from ._native import (
    set_matmul_precision as set_matmul_precision,
)
from ._native import (
    sigmoid as sigmoid,
)
from ._native import (
    sign as sign,
)
from ._native import (
    silu as silu,
)
from ._native import (
    sin as sin,
)
from ._native import (
    sinh as sinh,
)
from ._native import (
    sqrt as sqrt,
)
from ._native import (
    square as square,
)
from ._native import (
    stack as stack,
)
from ._native import (
    std as std,
)
from ._native import (
    sub as sub,
)
from ._native import (
    subtract as subtract,
)
from ._native import (
    sum as sum,
)
from ._native import (
    synchronize as synchronize,
)
from ._native import (
    take as take,
)
from ._native import (
    tan as tan,
)
from ._native import (
    tanh as tanh,
)
from ._native import (
    transpose as transpose,
)
from ._native import (
    trunc as trunc,
)
from ._native import (
    uint8 as uint8,
)
from ._native import (
    uint16 as uint16,
)
from ._native import (
    uint32 as uint32,
)
from ._native import (
    uint64 as uint64,
)
from ._native import (
    var as var,
)
from ._native import (
    where as where,
)
from ._native import (
    why_no_cuda as why_no_cuda,
)
from ._native import (
    zeros as zeros,
)
from ._native import (
    zeros_like as zeros_like,
)
from ._trace import trace as trace

if os.environ.get("NVTX_INJECTION64_PATH"):
    _native.attach_profiler()

GPUArray = Array
newaxis = None

if TYPE_CHECKING:
    from . import io as io
    from . import llm as llm
    from . import memory as memory
    from . import nn as nn
    from . import scheduler as scheduler
    from . import transfer as transfer
    from ._metrics import publish as publish
    from ._metrics import serve_metrics as serve_metrics
    from .scheduler import Scheduler as Scheduler

# Loaded at first use, so that `import pygpukit` stays fast.
_SUBMODULES = ("io", "llm", "memory", "nn", "scheduler", "transfer")
_LAZY = {"Scheduler": "scheduler", "publish": "_metrics", "serve_metrics": "_metrics"}


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _LAZY:
        return getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(
        {*globals(), *_SUBMODULES, *_LAZY} - {"Any", "TYPE_CHECKING", "annotations", "importlib", "os"}
    )


if os.environ.get("PYGPUKIT_PUBLISH") == "1":
    from ._metrics import publish_at_import

    publish_at_import()
