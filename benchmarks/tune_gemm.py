"""Measures the tiles of gemm_wgmma and writes what the chooser knows: native/ops/matmul_wgmma_times.hpp.

    python benchmarks/tune_gemm.py            # on an idle GPU of SM 90; a minute or two

A launch takes start + waves * (tile + parts of k * part) microseconds, and tiles of few rows, or whose k is
shared, a share of the time that memory needs as well. The four are fitted by least squares of the relative
error, none below 0, over the products of three models and squares. wgmma_us() bounds what comes out by what a
multiprocessor and memory can do.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

import pygpukit as gp
from pygpukit import _native
from pygpukit.benchmark.draws import Draw
from pygpukit.benchmark.shapes import PRODUCTS
from pygpukit.benchmark.timing import in_turns, own_timer, repetitions

_TARGET = pathlib.Path(__file__).parent.parent / "native" / "ops" / "matmul_wgmma_times.hpp"
_DTYPE, _LAYOUT = "bfloat16", "kk"
_BYTES_PER_US = 4.3e6  # as wgmma_us() has it
_DEPTH = 64  # of k in a part
_FAR = 1.2  # times the quickest tile's time: a wrong choice
_HEAD = """\
// Times of an {device}, fitted by benchmarks/tune_gemm.py, which writes this file anew.
#pragma once

#include "ops/matmul_variants.hpp"

namespace gpk::ops {{

// Start, tile, part of k, share of the memory's time: see WgmmaTimes.
"""


class Tile(NamedTuple):
    """As kernels/gemm/gemm_wgmma.hpp has it."""

    name: str
    rows: int
    columns: int
    below: int
    beside: int
    split: int
    per_sm: int


class Shape(NamedTuple):
    m: int
    n: int
    k: int


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def features(tile: Tile, shape: Shape, multiprocessors: int) -> list[float]:
    """What the four constants are multiplied by; the same arithmetic as wgmma_us()."""
    blocks = tile.below * tile.beside * tile.split
    usable = multiprocessors - multiprocessors // 32 if blocks > 2 else multiprocessors
    parts = _ceil_div(shape.m, tile.rows * tile.below) * _ceil_div(shape.n, tile.columns * tile.beside)
    waves = _ceil_div(parts, max(usable * tile.per_sm // blocks, 1))
    depth = _ceil_div(_ceil_div(shape.k, _DEPTH), tile.split)
    elements = shape.m * shape.k + shape.k * shape.n + shape.m * shape.n
    memory_us = 2 * elements / _BYTES_PER_US if tile.rows == 64 or tile.split > 1 else 0.0
    return [1.0, waves, waves * depth, memory_us]


def fit(rows: Sequence[Sequence[float]], times: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Least squares of the relative error with no constant below 0: the best over all sets of constants."""
    weight = np.array(weights)
    scaled = np.array(rows) * (weight / np.array(times))[:, None]
    used = [i for i in range(scaled.shape[1]) if scaled[:, i].any()]
    best, least = [0.0] * scaled.shape[1], np.inf
    for count in range(1, len(used) + 1):
        for chosen in itertools.combinations(used, count):
            constants = np.zeros(scaled.shape[1])
            constants[list(chosen)] = np.linalg.lstsq(scaled[:, chosen], weight, rcond=None)[0]
            error = float(((scaled @ constants - weight) ** 2).sum())
            if (constants >= 0).all() and error < least:
                best, least = constants.tolist(), error
    return best


def fit_for_choice(
    rows: Sequence[Sequence[float]], times: Sequence[float], least: Sequence[float]
) -> list[float]:
    """As fit(); but a product counts for a tile the less, the further another tile outdoes it there (`least`
    is the quickest one's time), and the more, the longer the tile would be chosen for it wrongly."""
    weights = [(quickest / us) ** 3 for us, quickest in zip(times, least, strict=True)]
    for _ in range(10):
        constants = fit(rows, times, weights)
        wrong = [
            i for i, us in enumerate(times) if np.dot(rows[i], constants) < least[i] and us > _FAR * least[i]
        ]
        for i in wrong:
            weights[i] *= 2
    return constants


def measure(shape: Shape, tiles: Sequence[Tile], rounds: int) -> dict[str, float]:
    """The least time of a product on each tile, in microseconds; weights rotate past the L2 cache."""
    count = max(1, min(16, 1 + 200_000_000 // (2 * shape.n * shape.k)))
    draw = Draw()
    x = draw.normal(shape.m, shape.k, dtype=_DTYPE)
    weights = [draw.normal(shape.n, shape.k, dtype=_DTYPE).T for _ in range(count)]
    timers = {}
    for tile in tiles:
        name = f"gemm_wgmma_{_DTYPE}_{tile.name}_{_LAYOUT}"
        calls = [lambda w=w, name=name: _native._matmul_with(name, x, w) for w in weights]
        about_us = 2 * shape.m * shape.n * shape.k / 600e6 + 5
        timers[tile.name] = own_timer(calls, repetitions(about_us, enough_us=1000, at_least=3, at_most=64))
    return {name: min(times) for name, times in in_turns(timers, rounds).items()}


def worth_measuring(tile: Tile, shape: Shape, multiprocessors: int) -> bool:
    """Not what is far from any sensible use."""
    waves = features(tile, shape, multiprocessors)[1]
    if (tile.split > 1 or tile.columns <= 64) and waves > 2:
        return False
    return shape.m <= 600 if tile.rows == 64 else shape.m > 64


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, default=_TARGET)
    options = parser.parse_args()
    device = gp.device()
    multiprocessors: int = device.properties["multiprocessors"]
    tiles = [Tile(*tile) for tile in _native._matmul_tiles()]
    shapes = [Shape(p.m, p.n, p.k) for p in PRODUCTS if p.m >= 8] + [
        Shape(n, n, n) for n in (2048, 4096, 8192)
    ]
    rows: dict[str, list[list[float]]] = {tile.name: [] for tile in tiles}
    times: dict[str, list[float]] = {tile.name: [] for tile in tiles}
    least: dict[str, list[float]] = {tile.name: [] for tile in tiles}
    for shape in shapes:
        candidates = [tile for tile in tiles if worth_measuring(tile, shape, multiprocessors)]
        measured = measure(shape, candidates, options.rounds)
        for name, us in measured.items():
            least[name].append(min(measured.values()))
            tile = next(tile for tile in tiles if tile.name == name)
            rows[name].append(features(tile, shape, multiprocessors))
            times[name].append(us)
    text = _HEAD.format(device=device.properties["name"])
    for tile in tiles:
        start, each, part, share = fit_for_choice(rows[tile.name], times[tile.name], least[tile.name])
        text += (
            f"inline constexpr WgmmaTimes wgmma_times_{tile.name} = "
            f"{{{start:.2f}f, {each:.2f}f, {part:.4f}f, {share:.3f}f}};\n"
        )
    options.out.write_text(text + "\n}  // namespace gpk::ops\n")


if __name__ == "__main__":
    main()
