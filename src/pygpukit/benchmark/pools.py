"""A block of device memory allocated and freed from Python, beside the pools of PyTorch and CuPy."""

from __future__ import annotations

from typing import Any

import numpy as np

import pygpukit as gp

from ._measure import Contender, Row, in_turns, statement

_TEN_TIMES = 10.0


def _torch(count: int) -> dict[str, dict[str, Contender]]:
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    torch.cuda.init()
    names: dict[str, Any] = {
        "empty": torch.empty,
        "count": count,
        "alloc": torch.cuda.caching_allocator_alloc,
        "free": torch.cuda.caching_allocator_delete,
        "bytes_": 4 * count,
    }
    wait = torch.cuda.synchronize
    return {
        "array": {"torch.empty": statement("empty(count, device='cuda')", names, wait)},
        "block": {"torch caching_allocator": statement("free(alloc(bytes_))", names, wait)},
    }


def _cupy(count: int) -> dict[str, dict[str, Contender]]:
    try:
        import cupy
    except ImportError:
        return {}
    if not cupy.cuda.is_available():
        return {}
    names: dict[str, Any] = {
        "empty": cupy.empty,
        "count": count,
        "float32": np.float32,
        "malloc": cupy.cuda.MemoryPool().malloc,
        "bytes_": 4 * count,
    }
    wait = cupy.cuda.get_current_stream().synchronize
    return {
        "array": {"cupy.empty": statement("empty(count, dtype=float32)", names, wait)},
        "block": {"cupy.cuda.MemoryPool": statement("malloc(bytes_)", names, wait)},
    }


def _ours(count: int) -> dict[str, dict[str, Contender]]:
    names: dict[str, Any] = {"empty": gp.empty, "count": count, "bytes_": 4 * count}
    return {"array": {"pygpukit": statement("empty(count)", names, gp.synchronize)}}


def measure_pools(quick: bool = False) -> list[Row]:
    rows = []
    for elements in (1024, 1 << 18):
        cases = _ours(elements)
        for peers in (_torch(elements), _cupy(elements)):
            for case, contenders in peers.items():
                if case in cases:
                    cases[case] |= contenders
        for case, contenders in cases.items():
            times = in_turns(contenders, count=50 if quick else 20_000, rounds=2 if quick else 9)
            median, low, high = times["pygpukit"]
            ratios = {f"as fast as {peer}": t[0] / median for peer, t in times.items() if peer != "pygpukit"}
            rows.append(
                Row(
                    f"{case} of {4 * elements >> 10} KiB made and freed, from Python",
                    median * 1e3,
                    "ns",
                    low * 1e3,
                    high * 1e3,
                    ratios=ratios,
                    goal=f"every peer's time / ours >= {_TEN_TIMES:g}",
                    met=min(ratios.values()) >= _TEN_TIMES if ratios and not quick else None,
                )
            )
    return rows
