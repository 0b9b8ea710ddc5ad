"""What the machine can do, measured in the same run: figures are shares of these rates."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

import pygpukit as gp

from .draws import Draw
from .library_products import library_products
from .peers import Peer
from .timing import Timer, own_timer

# Streams of 16 bytes a thread, four in flight. The reading one writes only what never is: a sum of normal
# numbers that is exactly 1e30.
_PROBES = """
extern "C" __global__ void __launch_bounds__(512) read_all(const float* from, float* to, long long n) {
    const float4* x = reinterpret_cast<const float4*>(from);
    const long long step = (long long)gridDim.x * blockDim.x;
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (; i + 3 * step < n; i += 4 * step) {
        float4 v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = __ldcs(x + i + j * step);
#pragma unroll
        for (int j = 0; j < 4; ++j) sum += v[j].x + v[j].y + v[j].z + v[j].w;
    }
    for (; i < n; i += step) { const float4 v = x[i]; sum += v.x + v.y + v.z + v.w; }
    if (sum == 1e30f) *to = sum;
}
extern "C" __global__ void __launch_bounds__(512) copy_all(const float* from, float* to, long long n) {
    const float4* x = reinterpret_cast<const float4*>(from);
    float4* y = reinterpret_cast<float4*>(to);
    const long long step = (long long)gridDim.x * blockDim.x;
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        float4 v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = __ldcs(x + i + j * step);
#pragma unroll
        for (int j = 0; j < 4; ++j) __stcs(y + i + j * step, v[j]);
    }
    for (; i < n; i += step) y[i] = x[i];
}"""


class Limits:
    """Rates by name, each measured when it is first asked for: "copy" and "read" in bytes a second,
    "bfloat16 product" in operations a second, the best of the libraries. None where nothing can tell."""

    def __init__(self, peers: Sequence[Peer], *, on_gpu: bool, quick: bool) -> None:
        self._peers, self._on_gpu, self._quick = peers, on_gpu, quick
        self._rates: dict[str, float | None] = {}
        self._how: dict[str, str] = {}

    def rate(self, name: str) -> float | None:
        if name not in self._rates:
            contenders = {"copy": self._copies, "read": self._reads}.get(name)
            work, timers = contenders() if contenders else self._products(name.removesuffix(" product"))
            rates = {who: work / self._best(timer) * 1e6 for who, timer in timers.items()}
            best = max(rates, key=rates.__getitem__, default=None)
            self._rates[name] = rates[best] if best is not None else None
            if best is not None:
                self._how[name] = best
        return self._rates[name]

    def _best(self, timer: Timer) -> float:
        return statistics.median([timer.microseconds() for _ in range(3 if self._quick else 7)])

    def _bytes(self) -> int:
        if self._quick:
            return 1 << 20
        return 1 << 28 if self._on_gpu else 1 << 26  # of the rows of long arrays

    def _probe(self, name: str, x: gp.Array, y: gp.Array) -> dict[str, Timer]:
        if not (self._on_gpu and gp.is_nvrtc_available()):
            return {}
        kernel = gp.jit(_PROBES, func=name)
        grid = 8 * gp.device().properties["multiprocessors"]
        return {"probe": own_timer([lambda: kernel(x, y, x.nbytes // 16, grid=grid, block=512)], 4)}

    def _peer(self, name: str) -> Peer | None:
        return next((peer for peer in self._peers if peer.name == name), None)

    def _copies(self) -> tuple[float, dict[str, Timer]]:
        size = self._bytes()
        x = Draw().normal(size // 4, dtype="float32")
        y = gp.empty_like(x)

        timers = {"pygpukit": own_timer([x.copy], 4), **self._probe("copy_all", x, y)}
        if torch := self._peer("torch"):
            source, target = torch.view(x), torch.view(y)
            timers["torch"] = torch.timer([lambda: target.copy_(source)], 4)
        if numpy := self._peer("numpy"):
            host = x.to_numpy()
            timers["numpy"] = numpy.timer([functools.partial(np.copyto, np.empty_like(host), host)], 4)
        return 2.0 * size, timers

    def _reads(self) -> tuple[float, dict[str, Timer]]:
        size = self._bytes()
        x = Draw().normal(size // 4, dtype="float32")
        timers = {"gp.sum": own_timer([lambda: gp.sum(x)], 4), **self._probe("read_all", x, gp.empty(1))}
        if torch := self._peer("torch"):
            view = torch.view(x)
            timers["torch.sum"] = torch.timer([view.sum], 4)
        if numpy := self._peer("numpy"):
            timers["numpy.max"] = numpy.timer([x.to_numpy().max], 4)
        return float(size), timers

    def _products(self, dtype: str) -> tuple[float, dict[str, Timer]]:
        n = (512 if self._on_gpu else 128) if self._quick else (8192 if self._on_gpu else 1024)
        functions = library_products(dtype)
        timers: dict[str, Timer] = {}
        for peer in self._peers:
            if peer.name not in functions:
                continue
            draw = Draw()
            storage = "float32" if dtype == "tf32" else dtype
            a, b = (draw.normal(n, n, dtype=storage) for _ in range(2))
            try:
                run = functions[peer.name](peer.module, peer.view(a), peer.view(b.T))
                timers[peer.name] = peer.timer([run], 2)
            except Exception:  # this peer has no such product
                continue
        return 2.0 * n**3, timers

    def as_dict(self) -> dict[str, Any]:
        """For the record: the rates in GB/s and TFLOPS, and who reached them."""
        found = {}
        for name, rate in self._rates.items():
            if rate is not None:
                scale, unit = (1e12, "TFLOPS") if name.endswith("product") else (1e9, "GB/s")
                found[name] = {"rate": rate / scale, "unit": unit, "by": self._how[name]}
        return found
