"""Pageable host memory to the device and back, beside PyTorch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import pygpukit as gp

from ._measure import Row

_THREE_TIMES = 3.0


def _torch_copies(host: np.ndarray[Any, Any]) -> dict[str, Callable[[], object]]:
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    source = torch.from_numpy(host)
    on_device = source.cuda()

    def up() -> None:
        source.cuda()
        torch.cuda.synchronize()

    return {"from_numpy": up, "to_numpy": lambda: on_device.cpu()}


def _timed(copy: Callable[[], object]) -> float:
    start = time.perf_counter()
    result = copy()
    seconds = time.perf_counter() - start
    del result
    return seconds


def measure_copies(quick: bool = False) -> list[Row]:
    """Rows of GB/s, 1 GiB of random floats each way; each copy gives a fresh array."""
    nbytes = 1 << 20 if quick else 1 << 30
    host = np.random.default_rng(3).standard_normal(nbytes // 4, dtype=np.float32)
    on_device = gp.from_numpy(host)
    error = float(np.mean(on_device.to_numpy() != host))

    def up() -> None:
        gp.from_numpy(host)
        gp.synchronize()

    ours: dict[str, Callable[[], object]] = {"from_numpy": up, "to_numpy": on_device.to_numpy}
    peers = _torch_copies(host)
    times: dict[str, list[float]] = {}
    for round_ in range(2 if quick else 8):
        for name, copy in ours.items():
            seconds = _timed(copy)
            beside = _timed(peers[name]) if name in peers else None
            if round_ == 0:
                continue  # warms up
            times.setdefault(name, []).append(seconds)
            if beside is not None:
                times.setdefault(f"torch {name}", []).append(beside)
    rows = []
    for name in ours:
        rates = [nbytes / seconds * 1e-9 for seconds in times[name]]
        ratios = {}
        if f"torch {name}" in times:
            ratios["as fast as torch"] = statistics.median(times[f"torch {name}"]) / statistics.median(
                times[name]
            )
        rows.append(
            Row(
                f"pageable {name} of {nbytes >> 20} MiB",
                statistics.median(rates),
                "GB/s",
                min(rates),
                max(rates),
                error=error,
                ratios=ratios,
                goal=f"as fast as torch >= {_THREE_TIMES:g}",
                met=ratios["as fast as torch"] >= _THREE_TIMES if ratios and not quick else None,
            )
        )
    return rows
