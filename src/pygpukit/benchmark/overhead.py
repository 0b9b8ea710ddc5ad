"""What a call costs beside the driver's own launch: tiny arrays, so that only overhead is left."""

from __future__ import annotations

from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit import _native

from ._measure import Contender, Row, in_turns, statement

_SCALE = """extern "C" __global__ void scale(float* x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
}"""


def _torch_contenders(host: np.ndarray[Any, Any]) -> dict[str, dict[str, Contender]]:
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    names = {"a": torch.from_numpy(host).cuda(), "b": torch.from_numpy(host).cuda(), "empty": torch.empty}
    wait = torch.cuda.synchronize
    return {
        "a + b": {"torch": statement("a + b", names, wait)},
        "empty(1024)": {"torch": statement("empty(1024, device='cuda')", names, wait)},
    }


def _cupy_contenders(host: np.ndarray[Any, Any]) -> dict[str, dict[str, Contender]]:
    try:
        import cupy
    except ImportError:
        return {}
    if not cupy.cuda.is_available():
        return {}
    names = {
        "a": cupy.asarray(host),
        "b": cupy.asarray(host),
        "empty": cupy.empty,
        "float32": np.float32,
        "kernel": cupy.RawKernel(_SCALE, "scale"),
        "grid": (1,),
        "block": (256,),
        "arguments": (cupy.asarray(host), np.float32(1.0), np.int32(host.size)),
    }
    wait = cupy.cuda.get_current_stream().synchronize
    return {
        "a + b": {"cupy": statement("a + b", names, wait)},
        "empty(1024)": {"cupy": statement("empty(1024, dtype=float32)", names, wait)},
        "jit kernel(...)": {"cupy": statement("kernel(grid, block, arguments)", names, wait)},
    }


def _relative_error(result: np.ndarray[Any, Any], reference: np.ndarray[Any, Any]) -> float:
    return float(np.linalg.norm(result.astype(np.float64) - reference) / np.linalg.norm(reference))


def measure(count: int = 4000) -> list[Row]:
    """Rows of microseconds a call. On a GPU the ratios include the raw driver loop and each peer."""
    host = np.random.default_rng(0).standard_normal(16, dtype=np.float32)
    a, b = gp.from_numpy(host), gp.from_numpy(host)
    names: dict[str, Any] = {"a": a, "b": b, "empty": gp.empty}
    doubled = host.astype(np.float64) * 2
    cases: dict[str, dict[str, Contender]] = {
        "a + b": {"pygpukit": statement("a + b", names, gp.synchronize)},
        "empty(1024)": {"pygpukit": statement("empty(1024)", names, gp.synchronize)},
    }
    errors: dict[str, float | None] = {"a + b": _relative_error((a + b).to_numpy(), doubled)}
    if gp.is_nvrtc_available():
        kernel, x = gp.jit(_SCALE, func="scale"), gp.from_numpy(host)
        kernel(x, factor=2.0, n=x.size)
        errors["jit kernel(...)"] = _relative_error(x.to_numpy(), doubled)
        names |= {"kernel": kernel, "x": x}
        cases["jit kernel(...)"] = {
            "pygpukit": statement("kernel(x, factor=1.0, n=16)", names, gp.synchronize)
        }
    for peers in (_torch_contenders(host), _cupy_contenders(host)):
        for name, contenders in peers.items():
            if name in cases:
                cases[name] |= contenders
    if gp.device().is_cuda:
        for name in cases.keys() - {"empty(1024)"}:
            cases[name]["raw cuLaunchKernel"] = Contender(_native._raw_launches, gp.synchronize)
    rows = []
    for name, contenders in cases.items():
        times = in_turns(contenders, count=count)
        median, low, high = times["pygpukit"]
        ratios = {f"as fast as {peer}": t[0] / median for peer, t in times.items() if peer != "pygpukit"}
        rows.append(Row(name, median, "us", low, high, errors.get(name), ratios))
    return rows
