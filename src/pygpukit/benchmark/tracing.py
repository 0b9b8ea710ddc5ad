"""What a program pays for being traced, where the device is the slower one and where the host is."""

from __future__ import annotations

import numpy as np

import pygpukit as gp

from ._measure import Contender, Row, in_turns, statement

_LEAST = 0.99  # of the speed without a trace
_SIZES = {"of 32 MiB": 1 << 23, "of 64 B": 16}


def _contenders(count: int) -> tuple[dict[str, Contender], float]:
    rng = np.random.default_rng(3)
    x, y = (rng.standard_normal(count, dtype=np.float32) for _ in range(2))
    z = gp.empty(count)
    names = {"add": gp.add, "x": gp.from_numpy(x), "y": gp.from_numpy(y), "z": z}
    plain = statement("add(x, y, out=z)", names, gp.synchronize)

    def run(times: int) -> gp.Trace:
        with gp.Trace() as trace:
            plain.run(times)
            plain.wait()
        return trace

    recorded = len(run(10).entries)
    if recorded != 10:
        raise RuntimeError(f"python-trace: expected a trace of 10 launches, got {recorded}")
    exact = x.astype(np.float64) + y.astype(np.float64)
    error = float(np.linalg.norm(z.to_numpy() - exact) / np.linalg.norm(exact))
    return {"traced": Contender(run, gp.synchronize), "untraced": plain}, error


def measure_tracing(quick: bool = False) -> list[Row]:
    rows = []
    for size, elements in _SIZES.items():
        contenders, error = _contenders(min(elements, 1 << 12) if quick else elements)
        times = in_turns(contenders, count=20 if quick else 2000, rounds=2 if quick else 9)
        median, low, high = times["traced"]
        ratio = times["untraced"][0] / median
        busy = elements >= 1 << 20  # the device is the slower one: what the goal is about
        rows.append(
            Row(
                f"additions {size} while traced",
                median,
                "us",
                low,
                high,
                error=error,
                ratios={"as fast as untraced": ratio},
                goal=f">= {_LEAST} of the speed without a trace" if busy else None,
                met=ratio >= _LEAST if busy and not quick else None,
                figures={"untraced us": times["untraced"][0]},
            )
        )
    return rows
