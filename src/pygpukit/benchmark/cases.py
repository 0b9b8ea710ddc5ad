"""What a figure is: a case, how it is measured beside its peers, and what makes it count."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

import pygpukit as gp

from ._measure import Row
from .draws import Draw
from .limits import Limits
from .peers import Peer
from .timing import Timer, estimate_us, in_turns, own_timer, repetitions

Function = Callable[..., Any]

# The relative norm of a result's error that its dtype allows: a few roundings, over sums of thousands.
TOLERANCES = {
    "float64": 1e-13,
    "float32": 1e-5,
    "tf32": 1e-3,
    "float16": 1e-3,
    "bfloat16": 5e-3,
    "float8_e4m3": 5e-3,  # of the product of what float8 holds
    "int8": 1e-7,  # exact; the reference is a sum of floats
    "int32": 0.0,
    "int64": 0.0,
}
_OF_COPY = "share of the copy rate"


@dataclasses.dataclass(frozen=True)
class Goal:
    """At least `bound` times the rate of the best peer ("peers"), of one ("torch"), of what limits the case
    ("limit"), or of a copy ("copy")."""

    of: str
    bound: float

    def __str__(self) -> str:
        of = {"peers": "the best peer", "limit": "the limit", "copy": "the copy rate"}.get(self.of, self.of)
        return f">= {self.bound:g} of {of}"

    def value(self, row: Row) -> float | None:
        if self.of == "limit":
            return row.share
        if self.of == "copy":
            return row.figures.get(_OF_COPY)
        if self.of == "peers":
            rivals = [ratio for name, ratio in row.ratios.items() if not name.startswith("own ")]
            return min(rivals, default=None)
        return row.ratios.get(self.of)


@dataclasses.dataclass(frozen=True)
class Case:
    """One figure. Functions get one set of inputs, as their library's arrays; those of a peer get its module
    first, and return the call to be timed. A peer's name may say more after a space: "torch flash". `work`
    and `moved` count what must be done: operations, and bytes read and written once."""

    group: str
    name: str
    dtype: str  # decides the tolerance, and which product's rate is the limit
    inputs: Callable[[Draw], tuple[gp.Array, ...]]
    run: Function
    reference: Function  # (numpy or torch, *inputs in float64)
    work: float = 0
    moved: float = 0
    memory_limit: str = "copy"  # or "read", where little is written
    peers: dict[str, Function] = dataclasses.field(default_factory=dict)
    own: dict[str, Function] = dataclasses.field(default_factory=dict)  # other ways to the same result
    goals: tuple[Goal, ...] = ()
    needs: str = ""  # what the package must have: "nn.attention", "matmul(dtype)"
    rows_of: Function | None = None  # the part of a result that the reference computes
    prepare: Function | None = None  # makes what `run` gets of the inputs, before the time
    referred: Function | None = None  # makes what `reference` gets of them, where that is not the inputs
    by_bytes: bool = False  # the rate is that of the bytes moved, though there is work too
    checked: Function | None = None  # ours, where the reference is not of what `run` gives; the peers are not
    tolerance: float | None = None

    def floor_us(self, limits: Limits) -> tuple[str, float] | None:
        """What bounds the time, and that bound."""
        floors = []
        product = limits.rate(f"{self.dtype} product") if self.work else None
        if product:
            floors.append((f"{self.dtype} product", self.work / product * 1e6))
        moving = limits.rate(self.memory_limit)
        if moving:
            floors.append((self.memory_limit, self.moved / moving * 1e6))
        if self.work and not product and self.work > 10 * self.moved:
            return None  # arithmetic bounds it, and nothing here knows that rate
        return max(floors, key=lambda floor: floor[1], default=None)


class Judge:
    """Computes references in float64 where it is fast: with PyTorch on a GPU, else with NumPy."""

    def __init__(self, peers: Sequence[Peer]) -> None:
        torch = next((peer for peer in peers if peer.name == "torch"), None)
        self.on_gpu = torch is not None
        self.space: Any = torch.module if torch is not None else np

    def wide(self, array: Any) -> Any:
        """Any library's array as one of float64."""
        if self.on_gpu:
            if isinstance(array, gp.Array):
                array = self.space.from_dlpack(array.astype("float64"))
            elif not isinstance(array, self.space.Tensor):
                array = self.space.from_dlpack(array)
            return array.double()
        if isinstance(array, gp.Array):
            return array.astype("float64").to_numpy()
        if hasattr(array, "cpu"):
            array = array.double().cpu().numpy()
        elif hasattr(array, "get"):
            array = array.get()
        return np.asarray(array, np.float64)

    def error(self, result: Any, reference: Any) -> float:
        """||result - reference|| / ||reference||; infinite for another shape or a NaN."""
        result = self.wide(result)
        if tuple(result.shape) != tuple(reference.shape):
            return math.inf
        norm = float((reference * reference).sum()) ** 0.5
        difference = float(((result - reference) ** 2).sum()) ** 0.5
        value = difference / norm if norm else difference
        return math.inf if math.isnan(value) else value


@dataclasses.dataclass
class Bench:
    """What a run measures with."""

    peers: list[Peer]
    limits: Limits
    judge: Judge
    quick: bool = False
    rounds: int = 7
    enough_us: float = 1500  # of one replay
    cache_bytes: int = 0  # inputs rotate past it
    judged: bool = False  # whether goals can be met here

    def _sets(self, case: Case, draw: Draw) -> tuple[list[tuple[gp.Array, ...]], list[tuple[Any, ...]]]:
        """Inputs, and what `run` gets of them."""
        prepare = case.prepare or (lambda *arrays: arrays)
        inputs = [case.inputs(draw)]
        prepared = [prepare(*inputs[0])]
        # What one run touches: of a mixture of experts, only the weights of those that have rows.
        size = sum(each.nbytes for each in prepared[0])
        if case.by_bytes:
            size = min(size, round(case.moved))
        for _ in range(min(64, -(-3 * self.cache_bytes // max(size, 1))) - 1):
            inputs.append(case.inputs(draw))
            prepared.append(prepare(*inputs[-1]))
        return inputs, prepared

    def _timer(self, make: Callable[[Sequence[Any], int], Timer], calls: list[Any]) -> Timer:
        count = repetitions(
            estimate_us(make, calls),
            enough_us=self.enough_us,
            at_least=1 if self.quick else len(calls),
            at_most=4 if self.quick else 256,
        )
        return make(calls, count)

    def measure(self, case: Case) -> Row:
        draw = Draw()
        sets, prepared = self._sets(case, draw)
        rows_of = case.rows_of or (lambda result: result)
        referred = case.referred(*sets[0]) if case.referred else sets[0]
        reference = case.reference(self.judge.space, *(self.judge.wide(array) for array in referred))
        first = case.checked or case.run
        error = self.judge.error(rows_of(self.judge.wide(first(*prepared[0]))), reference)
        allowed = TOLERANCES[case.dtype] if case.tolerance is None else case.tolerance
        if not error <= allowed:
            raise ArithmeticError(f"wrong result: error {error:.2e}, at most {allowed:.0e} allowed")
        own = [functools.partial(case.run, *each) for each in prepared]
        timers: dict[str, Timer] = {"pygpukit": self._timer(own_timer, own)}
        for name, function in case.own.items():
            timers[name] = self._timer(own_timer, [functools.partial(function, *each) for each in sets])
        self.release()
        errors, notes = {}, []
        here = {peer.name: peer for peer in self.peers}
        for name, function in case.peers.items():
            peer = here.get(name.split()[0])
            if peer is None:
                continue
            try:
                make = functools.partial(function, peer.module)
                runs = [make(*(peer.view(array) for array in each)) for each in sets]
                result = runs[0]()
                if case.checked is None:
                    errors[name] = self.judge.error(rows_of(self.judge.wide(result)), reference)
                timers[name] = self._timer(peer.timer, runs)
            except Exception as reason:  # what a peer cannot do is no failure of ours
                what = (str(reason).splitlines() or [""])[0][:120]
                notes.append(f"{name}: {type(reason).__name__}: {what}")
        return self._row(case, in_turns(timers, self.rounds), timers, error, errors, notes)

    def release(self) -> None:
        """What one library keeps of the device's memory, the others could not have."""
        gp.memory.trim()
        for peer in self.peers:
            peer.release()

    def _row(
        self,
        case: Case,
        times: dict[str, list[float]],
        timers: dict[str, Timer],
        error: float,
        errors: dict[str, float],
        notes: list[str],
    ) -> Row:
        own = times.pop("pygpukit")
        us = statistics.median(own)
        by_bytes = case.by_bytes or not case.work
        row = Row(
            f"{case.group} {case.name}",
            us,
            "us",
            min(own),
            max(own),
            error,
            {name: statistics.median(each) / us for name, each in times.items()},
            group=case.group,
            rate=case.moved / us / 1e3 if by_bytes else case.work / us / 1e6,
            rate_unit="GB/s" if by_bytes else "TFLOPS",
            peer_errors=errors,
            timing=timers["pygpukit"].how,
            note="; ".join(notes) or None,
        )
        floor = case.floor_us(self.limits)
        if floor is not None:
            row.limit, row.share = floor[0], floor[1] / us
        copy = self.limits.rate("copy") if any(goal.of == "copy" for goal in case.goals) else None
        if copy is not None:
            row.figures[_OF_COPY] = case.moved / copy * 1e6 / us
        if case.goals:
            row.goal = ", ".join(map(str, case.goals))
            values = [(goal.value(row), goal.bound) for goal in case.goals]
            if self.judged and all(value is not None for value, _ in values):
                row.met = all(value >= bound for value, bound in values if value is not None)
        return row


def _find(path: str) -> Any:
    return functools.reduce(getattr, path.split(".") if path else [], gp)


def op(path: str) -> Function:
    """What the package calls "nn.attention", found when it is called: a build may not have it."""
    return lambda *arrays, **options: _find(path)(*arrays, **options)


def has(path: str) -> bool:
    """Whether the package has "nn.attention", or "matmul(dtype)": a function with that argument."""
    name, _, argument = path.rstrip(")").partition("(")
    try:
        found = _find(name)
    except AttributeError:
        return False
    return not argument or re.search(rf"[( ]{argument}:", found.__doc__ or "") is not None


def measure_cases(cases: Iterable[Case], bench: Bench) -> Iterator[tuple[str, Row | Exception]]:
    """Yields (name, row), or (name, exception) for a case that fails or has no op yet."""
    for case in cases:
        name = f"{case.group} {case.name}"
        try:
            if not has(case.needs):
                raise NotImplementedError(f"this build has no gp.{case.needs}")
            yield name, bench.measure(case)
        except Exception as failure:
            yield name, failure
        bench.release()


def geometric_mean_row(name: str, rows: Sequence[Row], goal: Goal, least: float, judged: bool) -> Row | None:
    """The mean of the rows' ratios to what the goal names, and the least of them, in one row."""
    values = [value for row in rows if (value := goal.value(row)) is not None]
    if not values:
        return None
    mean = math.exp(statistics.fmean(map(math.log, values)))
    worst = max((row.error or 0.0) for row in rows)
    text = f"{goal} in the mean, >= {least:g} each"
    met = (mean >= goal.bound and min(values) >= least) if judged else None
    return Row(
        name,
        mean,
        "x",
        min(values),
        max(values),
        worst,
        goal=text,
        met=met,
        group=rows[0].group,
        figures={"rows": len(values), "below": sum(value < least for value in values)},
        timing="of the rows above",
    )
