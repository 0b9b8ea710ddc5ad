"""What moves memory: copies, reductions, normalisation, gathers."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import pygpukit as gp

from .cases import Case, Function, Goal, op
from .draws import Draw


def _assigned(target: gp.Array, x: gp.Array) -> gp.Array:
    target[...] = x
    return target


def _call(function: Function) -> Function:
    """A peer's function of (module, *arrays) as one that makes the call."""
    return lambda module, *arrays: lambda: function(module, *arrays)


def _everywhere(function: Function, *names: str) -> dict[str, Function]:
    return {name: _call(function) for name in names or ("torch", "cupy", "numpy")}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Elements of long arrays, the side of square ones, and rows and columns of activations."""

    long: int
    side: int
    rows: int
    columns: int
    vocabulary: int

    @staticmethod
    def of(on_gpu: bool, quick: bool) -> Sizes:
        if quick:
            return Sizes(1 << 14, 64, 32, 128, 1000)
        return Sizes(1 << 26, 8192, 16384, 4096, 152064) if on_gpu else Sizes(1 << 22, 1024, 512, 1024, 32000)


def cases(sizes: Sizes) -> Iterator[Case]:
    long, side = sizes.long, sizes.side

    def vectors(count: int) -> Function:
        return lambda draw: tuple(draw.normal(long, dtype="float32") for _ in range(count))

    def matrix(draw: Draw) -> tuple[gp.Array, ...]:
        return (draw.normal(side, side, dtype="float32"),)

    def case(
        name: str, dtype: str, inputs: Function, run: Function, reference: Function, **more: Any
    ) -> Case:
        return Case("memory", name, dtype, inputs, run, reference, **more)

    yield case(
        f"copy of {long} float32",
        "float32",
        vectors(1),
        lambda x: x.copy(),
        lambda _, x: x,
        moved=8.0 * long,
        peers={"torch": _call(lambda _, x: x.clone()), **_everywhere(lambda _, x: x.copy(), "cupy", "numpy")},
    )
    yield case(
        f"add of {long} float32",
        "float32",
        vectors(2),
        gp.add,
        lambda _, x, y: x + y,
        moved=12.0 * long,
        peers=_everywhere(lambda _, x, y: x + y),
    )
    yield case(
        f"gelu of {long} bfloat16",
        "bfloat16",
        lambda draw: (draw.normal(long),),
        gp.gelu,
        lambda space, x: x * 0.5 * (1 + _erf(space, x / 2**0.5)),
        moved=4.0 * long,
        peers={"torch": _call(lambda torch, x: torch.nn.functional.gelu(x))},
    )
    yield case(
        f"broadcast add of a row, {side}x{side} float32",
        "float32",
        lambda draw: (*matrix(draw), draw.normal(side, dtype="float32")),
        gp.add,
        lambda _, x, row: x + row,
        moved=8.0 * side * side,
        peers=_everywhere(lambda _, x, row: x + row),
        goals=(Goal("limit", 0.97),),
    )
    yield case(
        f"transpose copy of {side}x{side} float32",
        "float32",
        matrix,
        lambda x: x.T.copy(),
        lambda _, x: x.T,
        moved=8.0 * side * side,
        peers={
            "torch": _call(lambda _, x: x.t().contiguous()),
            **_everywhere(lambda module, x: module.ascontiguousarray(x.T), "cupy", "numpy"),
        },
        goals=(Goal("limit", 0.90),),
    )
    yield case(
        f"gather of {side} rows of {side} float32",
        "float32",
        lambda draw: (*matrix(draw), draw.integers(side, below=side, dtype="int64")),
        lambda x, rows: gp.take(x, rows, axis=0),
        lambda space, x, rows: x[rows.astype("int64") if hasattr(rows, "astype") else rows.long()],
        moved=8.0 * side * side,
        peers=_everywhere(lambda _, x, rows: x[rows]),
        goals=(Goal("limit", 0.90),),
    )
    for axis, what in ((1, "row"), (0, "column")):
        yield case(
            f"{what} sums of {side}x{side} float32",
            "float32",
            matrix,
            lambda x, axis=axis: gp.sum(x, axis=axis),
            lambda _, x, axis=axis: x.sum(axis),
            moved=4.0 * side * side,
            memory_limit="read",
            peers=_everywhere(lambda _, x, axis=axis: x.sum(axis)),
            goals=(Goal("copy", 0.95),),
        )
    yield case(
        f"sum of {long} float32",
        "float32",
        vectors(1),
        gp.sum,
        lambda _, x: x.sum(),
        moved=4.0 * long,
        memory_limit="read",
        peers=_everywhere(lambda _, x: x.sum()),
        goals=(Goal("copy", 0.97),),
        tolerance=1e-3,  # of a sum whose terms cancel
    )
    yield case(
        f"argmax of {long} float32",
        "int64",
        vectors(1),
        gp.argmax,
        lambda _, x: x.argmax() * 1.0,
        moved=4.0 * long,
        memory_limit="read",
        peers=_everywhere(lambda _, x: x.argmax()),
        goals=(Goal("copy", 0.97),),
    )
    for axes, what in (((0, 1, 2), "all"), ((0, 2), "the outer and inner"), ((1,), "the middle")):
        blocks = (long // (side * 64), side, 64)
        yield case(
            f"variance over {what} of {'x'.join(map(str, blocks))} float32",
            "float32",
            lambda draw, blocks=blocks: (draw.normal(*blocks, dtype="float32"),),
            lambda x, axes=axes: op("var")(x, axis=axes),
            lambda _, x, axes=axes: ((x - x.mean(axes, **_kept(x))) ** 2).mean(axes),
            moved=4.0 * long,
            memory_limit="read",
            peers={
                "torch": _call(lambda _, x, axes=axes: x.var(axes, correction=0)),
                **_everywhere(lambda _, x, axes=axes: x.var(axes), "cupy", "numpy"),
            },
            needs="var",
        )
    yield from _normalisation(sizes)
    yield from _sampling(sizes.vocabulary)


def _kept(x: Any) -> dict[str, bool]:
    """What keeps reduced axes, of a mean."""
    return {"keepdim" if hasattr(x, "double") else "keepdims": True}


def _erf(space: Any, x: Any) -> Any:
    return space.erf(x) if hasattr(space, "erf") else space.vectorize(math.erf, otypes=[float])(x)


def _layer_norm(space: Any, x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(-1)[..., None]
    return centred / ((centred * centred).mean(-1)[..., None] + 1e-5) ** 0.5 * weight + bias


def _softmax(space: Any, x: Any) -> Any:
    exponentials = space.exp(x - space.amax(x, -1)[..., None])
    return exponentials / exponentials.sum(-1)[..., None]


def _normalisation(sizes: Sizes) -> Iterator[Case]:
    rows, columns = sizes.rows, sizes.columns

    def case(
        name: str, needs: str, weights: int, run: Function, reference: Function, torch: Function
    ) -> Case:
        def inputs(draw: Draw) -> tuple[gp.Array, ...]:
            return (draw.normal(rows, columns), *(draw.normal(columns) for _ in range(weights)))

        return Case(
            "memory",
            f"{name} of {rows}x{columns} bfloat16",
            "bfloat16",
            inputs,
            run,
            reference,
            moved=4.0 * rows * columns,
            peers={"torch": _call(torch)},
            goals=(Goal("limit", 0.95),),
            needs=needs,
        )

    yield case(
        "softmax",
        "nn.softmax",
        0,
        op("nn.softmax"),
        _softmax,
        lambda torch, x: torch.softmax(x, -1),
    )
    yield case(
        "layer norm",
        "nn.layer_norm",
        2,
        op("nn.layer_norm"),
        _layer_norm,
        lambda torch, x, *weights: torch.nn.functional.layer_norm(x, (columns,), *weights, eps=1e-5),
    )
    yield case(
        "rms norm",
        "nn.rms_norm",
        1,
        functools.partial(op("nn.rms_norm"), eps=1e-5),
        lambda _, x, weight: x / ((x * x).mean(-1)[..., None] + 1e-5) ** 0.5 * weight,
        lambda torch, x, weight: torch.nn.functional.rms_norm(x, (columns,), weight, eps=1e-5),
    )


def _sampling(vocabulary: int) -> Iterator[Case]:
    def logits(draw: Draw) -> tuple[gp.Array, ...]:
        return (draw.normal(1, vocabulary, dtype="float32"),)

    def largest(space: Any, x: Any) -> Any:
        return space.topk(x, 50)[0] if hasattr(space, "topk") else -space.sort(-x, -1)[..., :50]

    def mean_of_draws(x: gp.Array) -> gp.Array:
        """Of the logits that 2048 draws take: a sample's error is in how often it takes what."""
        tokens = op("nn.sample")(gp.broadcast_to(x, (2048, vocabulary)).copy(), seed=7)
        return gp.mean(gp.take(x, tokens))

    yield Case(
        "memory",
        f"top-k 50 of {vocabulary} float32",
        "float32",
        logits,
        lambda x: op("nn.top_k")(x, 50)[0],
        largest,
        moved=4.0 * vocabulary,
        memory_limit="read",
        peers={"torch": _call(lambda torch, x: torch.topk(x, 50)[0])},
        goals=(Goal("torch", 5.0),),
        needs="nn.top_k",
    )
    yield Case(
        "memory",
        f"softmax and sample of {vocabulary} float32",
        "float32",
        logits,
        functools.partial(op("nn.sample"), seed=7),
        lambda space, x: (_softmax(space, x) * x).sum(),
        moved=4.0 * vocabulary,
        memory_limit="read",
        peers={"torch": _call(lambda torch, x: torch.multinomial(torch.softmax(x, -1), 1))},
        goals=(Goal("torch", 5.0),),
        needs="nn.sample",
        checked=mean_of_draws,
        tolerance=0.1,  # 4.5 standard deviations
    )
