"""Random inputs, made on the device: the host would take longer to draw them than the work they are for."""

from __future__ import annotations

import itertools
import math

import pygpukit as gp

_CHUNK = 1 << 24


def _uniform(count: int, seed: int) -> gp.Array:
    """Of (0, 1): the finalizer of MurmurHash3 over a counter."""
    h = gp.arange(count, dtype="uint32") + (seed * 0x9E3779B1 & 0xFFFFFFFF)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h ^= h >> shift
        h *= factor
    h ^= h >> 16
    return (h >> 8).astype("float32") * 2.0**-24 + 2.0**-25


class Draw:
    """Draws that differ from each other, and are the same in every run."""

    def __init__(self, seed: int = 0) -> None:
        self._seeds = itertools.count(seed * 1_000_003)

    def normal(self, *shape: int, dtype: str = "bfloat16", scale: float = 1.0) -> gp.Array:
        """Standard normal numbers times `scale`, by Box and Muller's method. int8: 32 is one sigma."""
        count = math.prod(shape)
        out = gp.empty(count, dtype)
        for begin in range(0, count, _CHUNK):
            half = (min(_CHUNK, count - begin) + 1) // 2
            radius = gp.sqrt(gp.log(_uniform(half, next(self._seeds))) * -2)
            angle = _uniform(half, next(self._seeds)) * (2 * math.pi)
            part = gp.concat([radius * gp.cos(angle), radius * gp.sin(angle)])[: count - begin]
            if dtype == "int8":
                part = gp.clip(gp.rint(part * 32), -127, 127)
            out[begin : begin + part.size] = part * scale
        return out.reshape(*shape)

    def integers(self, *shape: int, below: int, dtype: str = "int32") -> gp.Array:
        """Uniform over [0, below)."""
        count = math.prod(shape)
        return (
            gp.clip(gp.floor(_uniform(count, next(self._seeds)) * below), 0, below - 1)
            .astype(dtype)
            .reshape(*shape)
        )
