"""Measures the tiles of gemm_wgmma and writes what the chooser knows: native/ops/matmul_wgmma_times.hpp.

    python benchmarks/tune_gemm.py measure times.json   # on an idle GPU of SM 90; about three minutes
    python benchmarks/tune_gemm.py fit times.json       # anywhere; needs SciPy

A launch takes start + (working^3 + memory^3 + traffic^3)^(1/3) microseconds, where working is waves * (tile +
depth * part), and the others are shares of what memory and the L2 cache need at their rates: wgmma_us() has
the same. The five constants of a tile are fitted by least squares of the relative error, over layers of
models that are not among those of pygpukit.benchmark: those would flatter the choice that they are to judge.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import pathlib
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_TARGET = pathlib.Path(__file__).parent.parent / "native" / "ops" / "matmul_wgmma_times.hpp"
_DTYPE = "bfloat16"
_MEMORY_BYTES_PER_US, _TRAFFIC_BYTES_PER_US = 4.3e6, 5.5e6  # as wgmma_us() has them
_UNEVEN = 0.2  # of the part of the last wave that is not there: the others' memory is idle meanwhile
_DEPTH = 64  # of k in a part
# (n, k): Llama 1B and 3B, slices of 70B, Qwen 1.5B and 14B, Gemma 2B, Whisper medium, TinyLlama's vocabulary.
_LAYERS = (
    *((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192), (5120, 3072), (3072, 3072), (16384, 3072)),
    *((3072, 8192), (2560, 8192), (8192, 2048), (14336, 8192), (8192, 7168), (7168, 5120), (5120, 5120)),
    *((27648, 5120), (5120, 13824), (2048, 1536), (1536, 1536), (17920, 1536), (1536, 8960), (4096, 2304)),
    *((2304, 2048), (18432, 2304), (2304, 9216), (3072, 1024), (1024, 1024), (4096, 1024), (1024, 4096)),
    (32000, 2048),
)
_ROWS = (
    8,
    12,
    16,
    24,
    32,
    48,
    64,
    80,
    96,
    128,
    160,
    192,
    256,
    320,
    384,
    512,
    640,
    768,
    1024,
    1536,
    2048,
    4096,
)
_MOST_PRODUCTS = 4.1e11  # m * n * k
# Of the constants: no launch starts sooner, no tile reads faster.
_LEAST = (1, 0, 0, 0.9, 0.3)
_HEAD = """\
// Times of an {device}, fitted by benchmarks/tune_gemm.py, which writes this file anew.
#pragma once

#include "ops/matmul_variants.hpp"

namespace gpk::ops {{

// Start, tile, part of k, shares of the memory's time and of the L2 cache's: see WgmmaTimes.
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


class Features(NamedTuple):
    """What a tile's constants meet in a product."""

    waves: float
    depth: float
    memory_us: float
    traffic_us: float


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def features(tile: Tile, shape: Shape, multiprocessors: int) -> Features:
    """The same arithmetic as wgmma_us()."""
    blocks = tile.below * tile.beside * tile.split
    lost = 0 if blocks <= 2 else multiprocessors // (11 if blocks % 2 == 0 else 9)
    rows, columns = tile.rows * tile.below, tile.columns * tile.beside
    parts = _ceil_div(shape.m, rows) * _ceil_div(shape.n, columns)
    elements = shape.m * shape.k + shape.k * shape.n + shape.m * shape.n
    at_once = max((multiprocessors - lost) * tile.per_sm // blocks, 1)
    waves = _ceil_div(parts, at_once)
    uneven = 1 + _UNEVEN * (waves * at_once / parts - 1) if waves > 1 else 1
    return Features(
        waves=waves,
        depth=_ceil_div(_ceil_div(shape.k, _DEPTH), tile.split),
        memory_us=2 * elements / _MEMORY_BYTES_PER_US * uneven,
        traffic_us=2 * parts * (rows + columns) * shape.k / _TRAFFIC_BYTES_PER_US * uneven,
    )


def predicted(constants: Sequence[float], f: Features | np.ndarray) -> np.ndarray:
    """Microseconds."""
    start, tile, part, memory, traffic = constants
    waves, depth, memory_us, traffic_us = np.asarray(f, dtype=float).T
    working = waves * (tile + depth * part)
    return start + np.cbrt(working**3 + (memory * memory_us) ** 3 + (traffic * traffic_us) ** 3)


def fit(rows: Sequence[Features], times: Sequence[float], least: Sequence[float]) -> np.ndarray:
    """A tile's constants. A product counts for a tile the less, the further another outdoes it there (`least`
    is the quickest one's time)."""
    from scipy.optimize import least_squares

    at, us = np.array(rows), np.array(times)
    weights = (np.array(least) / us) ** 2
    starts = ([3, 1, 0.3, 1.1, 0.6], [1.5, 3, 0.15, 1.2, 0.7])
    found = [
        least_squares(
            lambda c: (predicted(c, at) / us - 1) * weights,
            start,
            bounds=(_LEAST, np.inf),
            loss="soft_l1",  # a run is disturbed now and then
            f_scale=0.05,
        )
        for start in starts
    ]
    return min(found, key=lambda each: each.cost).x


def worth_measuring(tile: Tile, shape: Shape, multiprocessors: int) -> bool:
    """Not what is far from any sensible use."""
    waves = features(tile, shape, multiprocessors).waves
    if waves > (4 if tile.split > 1 or tile.columns <= 64 else 12 if tile.rows == 64 else math.inf):
        return False
    return shape.m <= 800 if tile.rows == 64 else shape.m >= 32


def measure_one(shape: Shape, tiles: Sequence[Tile], multiprocessors: int, rounds: int) -> dict[str, float]:
    """The least time of a product on each tile, as it is and turned."""
    from pygpukit import _native
    from pygpukit.benchmark.draws import Draw
    from pygpukit.benchmark.timing import in_turns, own_timer, repetitions

    m, n, k = shape
    draw = Draw()
    x = draw.normal(m, k, dtype=_DTYPE)
    rotated = max(1, min(16, 1 + 200_000_000 // (2 * n * k)))  # past the L2 cache
    weights = [draw.normal(n, k, dtype=_DTYPE).T for _ in range(rotated)]
    count = repetitions(2 * m * n * k / 600e6 + 5, enough_us=600, at_least=3, at_most=32)
    timers = {}
    for tile, turned in itertools.product(tiles, (False, True)):
        if not worth_measuring(tile, Shape(n, m, k) if turned else shape, multiprocessors):
            continue
        kernel = f"gemm_wgmma_{_DTYPE}_{tile.name}_kk"
        product = functools.partial(_native._matmul_with, kernel, x, turned=turned)
        calls = [functools.partial(product, y=weight) for weight in weights]
        timers[tile.name + (" turned" if turned else "")] = own_timer(calls, count)
    return {name: min(times) for name, times in in_turns(timers, rounds).items()}


def measure(path: pathlib.Path, rounds: int) -> None:
    """Writes the times of the products of _LAYERS and _ROWS."""
    import pygpukit as gp
    from pygpukit import _native

    properties = gp.device().properties
    multiprocessors: int = properties["multiprocessors"]
    tiles = [Tile(*tile) for tile in _native._matmul_tiles()]
    shapes = [Shape(m, n, k) for n, k in _LAYERS for m in _ROWS if m * n * k <= _MOST_PRODUCTS]
    products = [
        shape._asdict() | {"us": measure_one(shape, tiles, multiprocessors, rounds)} for shape in shapes
    ]
    record = {"device": properties["name"], "multiprocessors": multiprocessors, "tiles": tiles}
    path.write_text(json.dumps(record | {"products": products}))


def write(path: pathlib.Path, target: pathlib.Path) -> None:
    """Fits what measure() wrote, and says how far the choice is from the quickest tile."""
    record = json.loads(path.read_text())
    multiprocessors = record["multiprocessors"]
    tiles = {tile[0]: Tile(*tile) for tile in record["tiles"]}
    products = [(Shape(p["m"], p["n"], p["k"]), p["us"]) for p in record["products"]]

    def at(name: str, shape: Shape) -> tuple[str, Features]:
        tile, _, turned = name.partition(" ")
        where = Shape(shape.n, shape.m, shape.k) if turned else shape
        return tile, features(tiles[tile], where, multiprocessors)

    rows: dict[str, list[Features]] = {name: [] for name in tiles}
    times: dict[str, list[float]] = {name: [] for name in tiles}
    least: dict[str, list[float]] = {name: [] for name in tiles}
    for shape, us in products:
        quickest = min(us.values())
        for name, time in us.items():
            tile, f = at(name, shape)
            rows[tile].append(f)
            times[tile].append(time)
            least[tile].append(quickest)
    constants = {name: fit(rows[name], times[name], least[name]) for name in tiles}
    losses = []
    for shape, us in products:
        chosen = min(us, key=lambda name: predicted(constants[at(name, shape)[0]], at(name, shape)[1]))
        losses.append(us[chosen] / min(us.values()))
    text = _HEAD.format(device=record["device"])
    for name, (start, each, part, memory, traffic) in constants.items():
        text += (
            f"inline constexpr WgmmaTimes wgmma_times_{name} = "
            f"{{{start:.2f}f, {each:.2f}f, {part:.4f}f, {memory:.3f}f, {traffic:.3f}f}};\n"
        )
    target.write_text(text + "\n}  // namespace gpk::ops\n")
    print(
        f"{len(products)} products: the choice takes {statistics.geometric_mean(losses):.3f} of the quickest "
        f"tile's time in the mean, {max(losses):.2f} at most"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("measure", "fit"))
    parser.add_argument("times", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, default=_TARGET)
    options = parser.parse_args()
    if options.what == "measure":
        measure(options.times, options.rounds)
    else:
        write(options.times, options.out)


if __name__ == "__main__":
    main()
