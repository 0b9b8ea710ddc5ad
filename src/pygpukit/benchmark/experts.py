"""Feed-forward layers: gated products, and the products of mixtures of experts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pygpukit as gp

from .cases import Case, Goal, op
from .draws import Draw

_CHECKED_ROWS = 24
# Of two roundings and an activation that a gate of order one bends.
_TOLERANCE = 8e-3


def _silu(space: Any, x: Any) -> Any:
    return x / (1 + space.exp(-x))


@dataclasses.dataclass(frozen=True)
class Layer:
    """`tokens` that go to `top` of `experts` each; `n` is the width of the result, half the weight's where it
    is gated. One expert: a dense layer, without offsets."""

    model: str
    tokens: int
    n: int
    k: int
    experts: int = 1
    top: int = 1
    gated: bool = True

    @property
    def rows(self) -> int:
        return self.tokens * self.top

    @property
    def _weight_rows(self) -> int:
        return self.n * (2 if self.gated else 1)

    def inputs(self, draw: Draw) -> tuple[gp.Array, ...]:
        x, scale = draw.normal(self.rows, self.k), self.k**-0.5
        if self.experts == 1:
            return x, draw.normal(self._weight_rows, self.k, scale=scale)
        weight = draw.normal(self.experts, self._weight_rows, self.k, scale=scale)
        logits = draw.normal(self.tokens, self.experts, dtype="float32")
        _, experts = op("nn.route")(logits, self.top)
        _, _, offsets = op("nn.sort_by_expert")(experts, self.experts)
        return x, weight, offsets

    def run(self, x: gp.Array, weight: gp.Array, offsets: gp.Array | None = None) -> Any:
        if offsets is None:
            return op("nn.gated_linear")(x, weight)
        return op("nn.grouped_linear")(x, weight, offsets, gate="silu" if self.gated else None)

    def checked(self, result: Any) -> Any:
        return result[:: max(1, self.rows // _CHECKED_ROWS)]

    def reference(self, space: Any, x: Any, weight: Any, offsets: Any = None) -> Any:
        found = []
        ends = [self.rows] if offsets is None else [int(end) for end in offsets[1:]]
        for row in range(0, self.rows, max(1, self.rows // _CHECKED_ROWS)):
            expert = sum(end <= row for end in ends)
            both = space.matmul(weight if offsets is None else weight[expert], x[row])
            found.append(_silu(space, both[: self.n]) * both[self.n :] if self.gated else both)
        return space.stack(found)

    @property
    def flops(self) -> float:
        return 2.0 * self.rows * self._weight_rows * self.k

    @property
    def bytes(self) -> float:
        """With a weight of each expert that is expected to have a row."""
        active = self.experts * (1 - (1 - self.top / self.experts) ** self.tokens) if self.experts > 1 else 1
        return 2.0 * (active * self._weight_rows * self.k + self.rows * (self.k + self.n))

    def peers(self) -> dict[str, Callable[..., Any]]:
        if self.experts == 1:
            return {"torch": functools.partial(_torch_gated, self)}
        return {
            "torch": functools.partial(_torch_grouped, self),
            "torch loop": functools.partial(_torch_loop, self),
        }


def _torch_finish(layer: Layer, torch: Any, both: Any) -> Any:
    if not layer.gated:
        return both
    return torch.nn.functional.silu(both[..., : layer.n]) * both[..., layer.n :]


def _torch_gated(layer: Layer, torch: Any, x: Any, weight: Any) -> Callable[[], Any]:
    return lambda: _torch_finish(layer, torch, torch.nn.functional.linear(x, weight))


def _torch_grouped(layer: Layer, torch: Any, x: Any, weight: Any, offsets: Any) -> Callable[[], Any]:
    across, ends = weight.transpose(-2, -1), offsets[1:]
    return lambda: _torch_finish(layer, torch, torch._grouped_mm(x, across, offs=ends))


def _torch_loop(layer: Layer, torch: Any, x: Any, weight: Any, offsets: Any) -> Callable[[], Any]:
    """What knows the offsets on the host: a product for each expert that has rows."""
    ends = [int(end) for end in offsets]
    spans = [(e, *ends[e : e + 2]) for e in range(layer.experts) if ends[e] < ends[e + 1]]

    def call() -> Any:
        out = torch.empty(layer.rows, layer.n, dtype=x.dtype, device=x.device)
        for expert, begin, end in spans:
            both = torch.nn.functional.linear(x[begin:end], weight[expert])
            out[begin:end] = _torch_finish(layer, torch, both)
        return out

    return call


def _case(layer: Layer) -> Case:
    kind = "gated" if layer.gated else "down"
    small = layer.bytes / 4e12 > layer.flops / 7e14  # which of the two takes the time
    return Case(
        "experts",
        f"{layer.model} {kind} {layer.tokens} tokens",
        "bfloat16",
        layer.inputs,
        layer.run,
        layer.reference,
        work=layer.flops,
        moved=layer.bytes,
        memory_limit="read" if small else "copy",
        peers=layer.peers(),
        goals=(Goal("torch", 1.0),),
        needs="nn.grouped_linear",
        rows_of=layer.checked,
        by_bytes=small,
        tolerance=_TOLERANCE,
    )


def cases(large: bool) -> Iterator[Case]:
    """Llama-8B's layer, and those of Mixtral-8x7B and Qwen3-30B-A3B; small ones where all is simulated."""
    if not large:
        yield _case(Layer("tiny", 5, 24, 64))
        yield _case(Layer("tiny of 4", 6, 24, 64, 4, 2))
        yield _case(Layer("tiny of 4", 6, 64, 24, 4, 2, gated=False))
        return
    for tokens in (1, 16, 128, 2048, 8192):
        yield _case(Layer("Llama-8B", tokens, 14336, 4096))
    for tokens in (1, 16, 256, 1024, 4096):
        yield _case(Layer("Mixtral-8x7B", tokens, 14336, 4096, 8, 2))
        yield _case(Layer("Mixtral-8x7B", tokens, 4096, 14336, 8, 2, gated=False))
    for tokens in (1, 16, 256, 2048, 8192):
        yield _case(Layer("Qwen3-30B-A3B", tokens, 768, 2048, 128, 8))
        yield _case(Layer("Qwen3-30B-A3B", tokens, 2048, 768, 128, 8, gated=False))
