"""Products of matrices: square ones, those of real models, and those of one decoded token."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import pygpukit as gp

from . import shapes
from .cases import Case, Goal
from .draws import Draw
from .library_products import library_products

DTYPES = ("bfloat16", "float16", "tf32", "float32")
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64", "fp8": "float8_e4m3"}
_GOALS = {"bfloat16": 1.0, "float16": 1.0, "tf32": 1.05, "float32": 1.10, "float8_e4m3": 1.0, "int8": 1.3}
_REFERENCE_FLOPS = 4e9  # about what NumPy does in a tenth of a second


def full_name(dtype: str) -> str:
    """bf16, fp8 and so on by the names that arrays use. Raises ValueError for another."""
    name = _SHORT.get(dtype, dtype)
    if name not in (*DTYPES, "float64"):
        raise ValueError(f"--dtypes: expected some of {', '.join([*_SHORT, 'tf32', 'int8'])}; got {dtype!r}")
    return name


def _tf32(a: gp.Array, b: gp.Array) -> gp.Array:
    before = gp.matmul_precision()
    gp.set_matmul_precision("tf32")
    try:
        return gp.matmul(a, b)
    finally:
        gp.set_matmul_precision(before)


_RUN: dict[str, Any] = {"tf32": _tf32}


@dataclasses.dataclass(frozen=True)
class Matrices:
    """a (m, k) and b (k, n), row-major or the transpose of a weight (n, k)."""

    m: int
    n: int
    k: int
    dtype: str
    transposed: bool

    def inputs(self, draw: Draw) -> tuple[gp.Array, gp.Array]:
        storage = "float32" if self.dtype == "tf32" else self.dtype
        a = draw.normal(self.m, self.k, dtype=storage)
        if self.transposed:
            return a, draw.normal(self.n, self.k, dtype=storage).T
        return a, draw.normal(self.k, self.n, dtype=storage)

    def rows(self, result: Any) -> Any:
        """As many rows of the result as the reference can afford, evenly spread."""
        every = max(1, round(2.0 * self.m * self.n * self.k / _REFERENCE_FLOPS))
        return result[:: min(every, max(1, self.m - 1))]

    def reference(self, space: Any, a: Any, b: Any) -> Any:
        return space.matmul(self.rows(a), b)

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    @property
    def bytes(self) -> float:
        size = {"float64": 8, "float32": 4, "tf32": 4, "int8": 1, "float8_e4m3": 1}.get(self.dtype, 2)
        result = {"float8_e4m3": 2, "int8": 4}.get(self.dtype, size)
        return float(size * (self.m * self.k + self.k * self.n) + result * self.m * self.n)


def product(group: str, name: str, of: Matrices, goals: tuple[Goal, ...] = (), limit: str = "copy") -> Case:
    return Case(
        group,
        name,
        of.dtype,
        of.inputs,
        _RUN.get(of.dtype, gp.matmul),
        of.reference,
        work=of.flops,
        moved=of.bytes,
        memory_limit=limit,
        peers=dict(library_products(of.dtype)),
        goals=goals,
        rows_of=of.rows,
    )


def square(sizes: Sequence[int], dtypes: Sequence[str]) -> Iterator[Case]:
    for dtype in dtypes:
        for n in sizes:
            bound = _GOALS.get(dtype)
            asked = n >= (2048 if dtype in ("bfloat16", "float16") else 4096)
            goals = (Goal("peers", bound),) if bound is not None and asked else ()
            # The libraries multiply 8-bit matrices only where b lies by columns.
            matrices = Matrices(n, n, n, dtype, transposed=dtype in ("float8_e4m3", "int8"))
            yield product("gemm", f"{dtype} {n}x{n}x{n}", matrices, goals)


def _affordable(each: shapes.Product, quick: bool, on_gpu: bool) -> bool:
    """A trial run, and the simulated device, take small ones."""
    if quick:
        return each.model == "Whisper-large" and each.layer in ("qkv", "out") and each.m == 1
    return on_gpu or (each.model == "Whisper-large" and each.m <= 8)


def _linear(group: str, each: shapes.Product, goals: tuple[Goal, ...], limit: str) -> Case:
    matrices = Matrices(each.m, each.n, each.k, "bfloat16", transposed=True)
    name = f"bfloat16 {each.model} {each.layer} {each.m}x{each.n}x{each.k}"
    return product(group, name, matrices, goals, limit)


def of_models(quick: bool, on_gpu: bool) -> Iterator[Case]:
    """The frozen list."""
    for each in shapes.PRODUCTS:
        if _affordable(each, quick, on_gpu):
            yield _linear("shapes", each, (Goal("peers", 0.93),), "read" if each.m < each.k else "copy")


def decode(quick: bool, on_gpu: bool) -> Iterator[Case]:
    for each in shapes.DECODE:
        if _affordable(each, quick, on_gpu):
            goals = (Goal("limit", 0.9),) if each.n * each.k * 2 >= 50e6 else ()
            yield _linear("gemv", each, goals, "read")
