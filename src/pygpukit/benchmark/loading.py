"""A safetensors file from the page cache to the device, beside the rate of a copy from pinned memory."""

from __future__ import annotations

import json
import os
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pygpukit as gp

from ._measure import Row

_ROUNDS = 5


def _seconds(work: Callable[[], object]) -> list[float]:
    times = []
    for _ in range(_ROUNDS + 1):  # the first one warms up
        start = time.perf_counter()
        kept = work()
        gp.synchronize()
        times.append(time.perf_counter() - start)
        del kept
    return times[1:]


def _write(path: Path, names: list[str], values: np.ndarray[Any, Any]) -> None:
    """A safetensors file in which each tensor has the same values."""
    size = values.nbytes
    header = {
        name: {"dtype": "U16", "shape": [values.size], "data_offsets": [i * size, (i + 1) * size]}
        for i, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _ in names:
            values.tofile(out)


def measure(quick: bool = False) -> Row:
    """4 GB in 32 tensors of 16-bit numbers, written just before."""
    tensors, nbytes = 32, (1 << 16 if quick else 1 << 27)
    values = np.random.default_rng(0).integers(0, 1 << 15, nbytes // 2, dtype=np.uint16)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        _write(path, [f"tensor{i}" for i in range(tensors)], values)
        size = os.path.getsize(path)
        file = gp.io.safetensors(path)
        seconds = _seconds(file.load_all)
        singly = _seconds(lambda: [file[name] for name in file])
        loaded = file.load_all(["tensor3"])["tensor3"]
        error = float(np.mean(loaded.to_numpy() != values))
        rivals = {}
        try:
            import torch
            from safetensors.torch import load_file

            if torch.cuda.is_available():
                rivals["safetensors"] = _seconds(lambda: load_file(path, device="cuda"))
        except ImportError:
            pass
    host = gp.memory.pinned((nbytes,), "uint8")
    host[:] = values.view(np.uint8)
    copies = 8  # that follow one another, as the tensors do

    def copy() -> list[gp.Array]:
        under_way = [gp.transfer.to_device(host) for _ in range(copies)]
        return [each.result() for each in under_way]

    pinned = copies * nbytes / statistics.median(_seconds(copy))
    rates = [size / each / 1e9 for each in seconds]
    row = Row("load 4 GB safetensors", statistics.median(rates), "GB/s", min(rates), max(rates), error=error)
    row.figures = {
        "pinned copy GB/s": pinned / 1e9,
        "one by one GB/s": size / statistics.median(singly) / 1e9,
    }
    row.share, row.limit = row.value * 1e9 / pinned, "copy from pinned memory"
    row.goal, row.met = ">= 0.9 of the limit", row.share >= 0.9
    row.ratios = {name: statistics.median(each) / statistics.median(seconds) for name, each in rivals.items()}
    return row
