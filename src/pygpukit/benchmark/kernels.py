"""The groups of kernels, and what they are measured with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pygpukit as gp

from . import attention, experts, memory_bound, products
from ._measure import Row
from .cases import Bench, Case, Goal, Judge, geometric_mean_row, measure_cases
from .limits import Limits
from .peers import find_peers

GROUPS = {
    "gemm": "products of square matrices, of those of three models, and of mixtures of experts",
    "gemv": "products of one token with a model's weights",
    "attention": "attention of prompts, and of a decoded token over a cache",
    "memory": "copies, reductions, normalisation, gathers, sampling",
}
_HOPPER = (9, 0)


class Suite:
    """Peers and limits of the current device, and the cases of a group at the sizes that were asked for.

    Raises ImportError for peers that were named and are not here.
    """

    def __init__(
        self,
        *,
        sizes: Sequence[int] | None,
        dtypes: Sequence[str],
        seq_lens: Sequence[int] | None,
        quick: bool,
        peers: Sequence[str] | None,
    ) -> None:
        device = gp.device()
        self._on_gpu, self._quick = device.is_cuda, quick
        found, self.missing_peers = find_peers(peers, self._on_gpu)
        self.limits = Limits(found, on_gpu=self._on_gpu, quick=quick)
        self._judged = device.properties["compute_capability"] == _HOPPER and not quick
        self._bench = Bench(
            found,
            self.limits,
            Judge(found),
            quick=quick,
            rounds=3 if quick else 7,
            enough_us=200 if quick else (1500 if self._on_gpu else 20_000),
            cache_bytes=0 if quick else device.properties["l2_bytes"],
            judged=self._judged,
        )
        small, large = ((64, 128), (256, 512)), ((256, 512, 1024), (2048, 4096, 8192))
        self._sizes = sizes or (small if quick else large)[self._on_gpu]
        self._large = self._on_gpu and not quick
        self._dtypes = dtypes
        self._seq_lens = seq_lens or ((2048, 4096, 8192, 16384) if self._large else (64,))

    def _cases(self, group: str) -> Iterator[Case]:
        if group == "gemm":
            yield from products.square(self._sizes, self._dtypes)
            yield from products.of_models(self._quick, self._on_gpu)
            yield from experts.cases(self._large)
        elif group == "gemv":
            yield from products.decode(self._quick, self._on_gpu)
        elif group == "attention":
            yield from attention.forward(self._seq_lens, *((32, 8192) if self._large else (2, 64)))
            yield from attention.decode((512, 4096, 32768) if self._large else (48,))
        else:
            yield from memory_bound.cases(memory_bound.Sizes.of(self._on_gpu, self._quick))

    def measure(self, group: str) -> Iterator[tuple[str, Row | Exception]]:
        """Yields (name, row), or (name, exception) for what fails or what this build does not have."""
        rows: list[Row] = []
        for name, what in measure_cases(self._cases(group), self._bench):
            if isinstance(what, Row):
                rows.append(what)
            yield name, what
        of_models = [row for row in rows if row.group == "shapes"]
        if of_models:
            yield from self._mean("shapes bfloat16, geometric mean", of_models, Goal("peers", 1.0), 0.93)
        decoded = [row for row in rows if row.group == "gemv"]
        if decoded:
            yield from self._mean("gemv bfloat16, geometric mean", decoded, Goal("peers", 1.4), 0.0)

    def _mean(self, name: str, rows: list[Row], goal: Goal, least: float) -> Iterator[tuple[str, Row]]:
        row = geometric_mean_row(name, rows, goal, least, self._judged)
        if row is not None:
            yield name, row
