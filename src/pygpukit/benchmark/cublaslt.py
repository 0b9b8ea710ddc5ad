"""cuBLASLt through ctypes: what the library does at its best, for products of matrices in any of its types.

Types and layouts are those of cublasLt.h. The library sees matrices by columns, so the product of
row-major a and b is asked for as b^T a^T, and the result is row-major again.
"""

from __future__ import annotations

import ctypes
import functools
import statistics
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, NamedTuple

import pygpukit as gp
from pygpukit import _native

from .timing import own_timer


class _Kind(NamedTuple):
    """Of cudaDataType and cublasComputeType_t: what a product of one dtype needs."""

    operand: int
    result: int
    compute: int
    scale: int
    result_dtype: str


_KINDS = {
    "bfloat16": _Kind(14, 14, 68, 0, "bfloat16"),
    "float16": _Kind(2, 2, 68, 0, "float16"),
    "float32": _Kind(0, 0, 68, 0, "float32"),
    "tf32": _Kind(0, 0, 77, 0, "float32"),
    "float64": _Kind(1, 1, 70, 1, "float64"),
    "float8_e4m3": _Kind(28, 14, 68, 0, "bfloat16"),
    "int8": _Kind(3, 10, 72, 10, "int32"),
}
_SCALES: dict[int, tuple[Any, Any]] = {
    0: (c_float(1), c_float(0)),
    1: (ctypes.c_double(1), ctypes.c_double(0)),
    10: (c_int32(1), c_int32(0)),
}
_Run = Callable[[int, int, int], None]  # the addresses of a, b and the result
_TRANSPOSE_A, _TRANSPOSE_B, _SCALE_A, _SCALE_B, _FAST_ACCUMULATION = 3, 4, 17, 18, 25
_MAX_WORKSPACE = 1
_WORKSPACE_BYTES = 64 << 20
_PROPOSALS = 8


class _Heuristic(ctypes.Structure):
    _fields_ = [
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


class CublasLt:
    """Plans are made once for a shape, and keep the fastest proposal."""

    def __init__(self) -> None:
        statuses = {each["name"]: each for each in _native._library_statuses()}
        path = statuses["cuBLASLt"]["path"]
        if not path.startswith("/"):
            raise ImportError(statuses["cuBLASLt"]["problem"] or "cuBLASLt was not found")
        self._library = ctypes.CDLL(path)
        self._workspace = gp.empty(_WORKSPACE_BYTES, "uint8")
        self._one = gp.ones(1)
        gp.synchronize()  # the device's context is this thread's from here on
        self._handle = c_void_p()
        self._check("Create", byref(self._handle))
        self._plans: dict[tuple[Any, ...], _Run] = {}
        self.version: int = self._library.cublasLtGetVersion()

    def _check(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, f"cublasLt{name}")(*arguments)
        if status != 0:
            raise RuntimeError(f"cublasLt{name}: status {status}")

    def _set(self, name: str, target: c_void_p, attribute: int, value: Any) -> None:
        self._check(f"{name}SetAttribute", target, attribute, byref(value), c_size_t(ctypes.sizeof(value)))

    def _layout(self, kind: int, rows: int, columns: int) -> c_void_p:
        layout = c_void_p()
        self._check(
            "MatrixLayoutCreate", byref(layout), kind, c_uint64(rows), c_uint64(columns), c_int64(rows)
        )
        return layout

    def product(self, a: gp.Array, b: gp.Array, *, kind: str | None = None) -> Callable[[], gp.Array]:
        """What computes a (m, k) times b into an array of its own, which it returns. b is (k, n), row-major,
        or the transpose of a row-major (n, k). kind: "tf32", else a's dtype."""
        kind = kind or a.dtype.name
        m, k = a.shape
        n = b.shape[1]
        by_rows = b.is_contiguous
        out = gp.empty((m, n), _KINDS[kind].result_dtype)
        key = (kind, m, n, k, by_rows)
        if key not in self._plans:
            self._plans[key] = self._fastest(kind, a, b, out, by_rows)
        run = self._plans[key]
        addresses = a.data_ptr, b.data_ptr, out.data_ptr

        def call() -> gp.Array:
            run(*addresses)
            return out

        return call

    def _fastest(self, kind: str, a: gp.Array, b: gp.Array, out: gp.Array, by_rows: bool) -> _Run:
        spec = _KINDS[kind]
        m, k = a.shape
        n = b.shape[1]
        operation = c_void_p()
        self._check("MatmulDescCreate", byref(operation), spec.compute, spec.scale)
        # The library's first operand is our b: n x k by columns is b^T as it lies, else its transpose.
        self._set("MatmulDesc", operation, _TRANSPOSE_A, c_int32(0 if by_rows else 1))
        self._set("MatmulDesc", operation, _TRANSPOSE_B, c_int32(0))
        if kind.startswith("float8"):
            for attribute in (_SCALE_A, _SCALE_B):
                self._set("MatmulDesc", operation, attribute, c_void_p(self._one.data_ptr))
            self._set("MatmulDesc", operation, _FAST_ACCUMULATION, ctypes.c_int8(1))
        first = self._layout(spec.operand, *((n, k) if by_rows else (k, n)))
        second = self._layout(spec.operand, k, m)
        result = self._layout(spec.result, n, m)
        preference = c_void_p()
        self._check("MatmulPreferenceCreate", byref(preference))
        self._set("MatmulPreference", preference, _MAX_WORKSPACE, c_size_t(_WORKSPACE_BYTES))
        proposals = (_Heuristic * _PROPOSALS)()
        found = c_int()
        self._check(
            "MatmulAlgoGetHeuristic",
            self._handle,
            operation,
            first,
            second,
            result,
            result,
            preference,
            _PROPOSALS,
            proposals,
            byref(found),
        )
        alpha, beta = _SCALES[spec.scale]

        def runs(proposal: _Heuristic) -> _Run:
            def run(a: int, b: int, out: int) -> None:
                self._check(
                    "Matmul",
                    self._handle,
                    operation,
                    byref(alpha),
                    c_void_p(b),
                    first,
                    c_void_p(a),
                    second,
                    byref(beta),
                    c_void_p(out),
                    result,
                    c_void_p(out),
                    result,
                    byref(proposal.algorithm),
                    c_void_p(self._workspace.data_ptr),
                    c_size_t(_WORKSPACE_BYTES),
                    c_void_p(gp.current_stream().handle),
                )

            return run

        best: tuple[float, _Run] | None = None
        for proposal in proposals[: found.value]:
            run = runs(proposal)
            call = functools.partial(run, a.data_ptr, b.data_ptr, out.data_ptr)
            call()  # loads its kernel, which a capture forbids
            gp.synchronize()
            timer = own_timer([call], 8)
            us = statistics.median([timer.microseconds() for _ in range(3)])
            if best is None or us < best[0]:
                best = us, run
        if best is None:
            raise RuntimeError(f"cuBLASLt has no algorithm for {kind} {m}x{n}x{k}")
        return best[1]
