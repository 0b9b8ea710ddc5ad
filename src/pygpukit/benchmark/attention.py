"""Attention: a prompt's, and that of one decoded token over a cache."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pygpukit as gp

from .cases import Case, Function, Goal, op
from .draws import Draw

_CHECKED_ROWS = 16
_TOLERANCE = 8e-3  # of bfloat16, whose probabilities are rounded before the second product


@dataclasses.dataclass(frozen=True)
class Shape:
    batch: int
    heads: int
    kv_heads: int
    tokens: int
    keys: int
    d: int
    causal: bool

    def inputs(self, draw: Draw) -> tuple[gp.Array, ...]:
        q = draw.normal(self.batch, self.heads, self.tokens, self.d)
        return (q, *(draw.normal(self.batch, self.kv_heads, self.keys, self.d) for _ in range(2)))

    @property
    def _rows(self) -> list[int]:
        step = max(1, (self.tokens - 1) // _CHECKED_ROWS)
        return list(range(self.tokens - 1, -1, -step))

    def rows(self, result: Any) -> Any:
        """Some queries of the first and the last head."""
        return result[-1:, :: max(1, self.heads - 1)][:, :, self._rows]

    def reference(self, space: Any, q: Any, k: Any, v: Any) -> Any:
        heads = range(0, self.heads, max(1, self.heads - 1))
        kv = [head * self.kv_heads // self.heads for head in heads]
        k, v = k[-1:, kv], v[-1:, kv]
        found = []
        for row in self._rows:
            seen = self.keys - self.tokens + row + 1 if self.causal else self.keys
            query = q[-1:, list(heads), row : row + 1]
            scores = (query * k[:, :, :seen]).sum(-1) / self.d**0.5
            weights = space.exp(scores - space.amax(scores, -1)[..., None])
            weights = weights / weights.sum(-1)[..., None]
            found.append((weights[..., None] * v[:, :, :seen]).sum(-2))
        return space.stack(found, 2)

    @property
    def flops(self) -> float:
        whole = 4.0 * self.batch * self.heads * self.tokens * self.keys * self.d
        return whole / 2 if self.causal else whole

    @property
    def bytes(self) -> float:
        queries = 2 * self.heads * self.tokens  # read, and as much written
        return 2.0 * self.batch * self.d * (queries + 2 * self.kv_heads * self.keys)


def _torch(backend: str | None, causal: bool, grouped: bool) -> Function:
    """PyTorch's scaled_dot_product_attention, by its own choice or with one of its backends."""

    def prepare(torch: Any, q: Any, k: Any, v: Any) -> Callable[[], Any]:
        attend = functools.partial(
            torch.nn.functional.scaled_dot_product_attention, q, k, v, is_causal=causal, enable_gqa=grouped
        )
        if backend is None:
            return attend
        choice = importlib.import_module("torch.nn.attention")

        def call() -> Any:
            with choice.sdpa_kernel(getattr(choice.SDPBackend, backend)):
                return attend()

        return call

    return prepare


def _case(name: str, shape: Shape, peers: dict[str, Function], goals: tuple[Goal, ...], limit: str) -> Case:
    return Case(
        "attention",
        name,
        "bfloat16",
        shape.inputs,
        functools.partial(op("nn.attention"), causal=shape.causal),
        shape.reference,
        work=shape.flops,
        moved=shape.bytes,
        memory_limit=limit,
        peers=peers,
        goals=goals,
        needs="nn.attention",
        rows_of=shape.rows,
        tolerance=_TOLERANCE,
    )


def forward(seq_lens: Sequence[int], heads: int, tokens: int) -> Iterator[Case]:
    """Prompts of about so many tokens in all."""
    for d in (64, 128):
        for length in seq_lens:
            for causal in (False, True):
                shape = Shape(max(1, tokens // length), heads, heads, length, length, d, causal)
                peers = {
                    "torch cuDNN": _torch("CUDNN_ATTENTION", causal, False),
                    "torch flash": _torch("FLASH_ATTENTION", causal, False),
                }
                kind = "causal" if causal else "full"
                name = f"bfloat16 d{d} {shape.batch}x{heads}x{length} {kind}"
                yield _case(name, shape, peers, (Goal("peers", 0.95),), "copy")


def decode(contexts: Sequence[int]) -> Iterator[Case]:
    """A token of a model with 32 heads over 8 of the cache."""
    for context in contexts:
        shape = Shape(1, 32, 8, 1, context, 128, causal=False)
        goals = (Goal("limit", 0.85),) if context >= 32768 else ()
        name = f"bfloat16 d128 decode 32/8 heads, context {context}"
        yield _case(name, shape, {"torch": _torch(None, False, True)}, goals, "read")
