"""Products of matrices: square ones, those of real models, and those of one decoded token."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import pygpukit as gp

from . import shapes
from .cases import Case, Goal, op
from .draws import Draw
from .library_products import library_products

DTYPES = ("bfloat16", "float16", "tf32", "float32", "float8_e4m3", "int8")
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64", "fp8": "float8_e4m3"}
_GOALS = {"bfloat16": 1.0, "float16": 1.0, "tf32": 1.05, "float32": 1.10, "float8_e4m3": 1.0, "int8": 1.3}
_REFERENCE_FLOPS = 4e9  # about what NumPy does in a tenth of a second


def full_name(dtype: str) -> str:
    """bf16, fp8 and so on by the names that arrays use. Raises ValueError for another."""
    name = _SHORT.get(dtype, dtype)
    if name not in (*DTYPES, "float64"):
        raise ValueError(f"expected some of {', '.join([*_SHORT, 'tf32', 'int8'])}; got {dtype!r}")
    return name


def _tf32(a: gp.Array, b: gp.Array) -> gp.Array:
    before = gp.matmul_precision()
    gp.set_matmul_precision("tf32")
    try:
        return gp.matmul(a, b)
    finally:
        gp.set_matmul_precision(before)


@functools.cache
def _one() -> gp.Array:
    return gp.ones(())


def _float8(a: gp.Array, b: gp.Array) -> gp.Array:
    product: gp.Array = op("nn.scaled_matmul")(a, b, _one(), _one(), dtype="bfloat16")
    return product


# Where it is not gp.matmul: how a dtype is multiplied, and what that needs.
_RUN: dict[str, tuple[Any, str]] = {
    "tf32": (_tf32, ""),
    "float8_e4m3": (_float8, "nn.scaled_matmul"),
    "int8": (functools.partial(op("matmul"), dtype="int32"), "matmul(dtype)"),
}


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
    run, needs = _RUN.get(of.dtype, (gp.matmul, ""))
    return Case(
        group,
        name,
        of.dtype,
        of.inputs,
        run,
        of.reference,
        work=of.flops,
        moved=of.bytes,
        memory_limit=limit,
        peers=dict(library_products(of.dtype)),
        goals=goals,
        needs=needs,
        rows_of=of.rows,
        by_bytes=limit == "read" and group == "gemv",
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


@dataclasses.dataclass(frozen=True)
class Quantized:
    """A weight that gp.nn.quantize makes of a bfloat16 one, and how many bits of it are read."""

    format: str
    bits: float
    bound: float | None  # how many times as fast as our own product in bfloat16 it is to be

    def prepare(self, x: gp.Array, weight: gp.Array) -> tuple[gp.Array, Any]:
        return x, op("nn.quantize")(weight, self.format)

    def referred(self, x: gp.Array, weight: gp.Array) -> tuple[gp.Array, gp.Array]:
        """The error is that of the product; that of the format is another matter."""
        return x, op("nn.quantize")(weight, self.format).dequantize("float32")


QUANTIZED = (
    Quantized("int8", 8, 1.8),
    Quantized("int4", 4 + 16 / 128, 3.2),  # a bfloat16 scale for 128 weights
    Quantized("fp8", 8, None),
    Quantized("nvfp4", 4 + 8 / 16, None),
)


def _weight_only(each: shapes.Product, weight: Quantized) -> Case:
    matrices = Matrices(each.m, each.n, each.k, "bfloat16", transposed=True)

    def inputs(draw: Draw) -> tuple[gp.Array, gp.Array]:
        x, transposed = matrices.inputs(draw)
        return x, transposed.T

    return Case(
        "gemv",
        f"{weight.format} weight {each.model} {each.layer} {each.m}x{each.n}x{each.k}",
        "bfloat16",
        inputs,
        op("nn.linear"),
        lambda space, x, w: space.matmul(x, w.T),
        work=matrices.flops,
        moved=each.n * each.k * weight.bits / 8 + 2.0 * each.m * (each.k + each.n),
        memory_limit="read",
        own={"own bfloat16": lambda x, w: gp.matmul(x, w.T)},
        goals=(Goal("own bfloat16", weight.bound),) if weight.bound is not None and each.m == 1 else (),
        needs="nn.quantize",
        prepare=weight.prepare,
        referred=weight.referred,
        by_bytes=True,
    )


def decode(quick: bool, on_gpu: bool) -> Iterator[Case]:
    for each in shapes.DECODE:
        if _affordable(each, quick, on_gpu):
            goals = (Goal("limit", 0.9),) if each.n * each.k * 2 >= 50e6 else ()
            yield _linear("gemv", each, goals, "read")
    for each in shapes.DECODE[:1] if on_gpu and not quick else shapes.DECODE[-4:-3]:
        for rows in (1, 64):
            for weight in QUANTIZED:
                yield _weight_only(each._replace(m=rows), weight)
