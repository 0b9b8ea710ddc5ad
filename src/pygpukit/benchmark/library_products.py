"""Products of two matrices as the libraries offer them, by dtype: a (m, k) times b (k, n)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_Product = Callable[[Any, Any, Any], Callable[[], Any]]


def _operator(_module: Any, a: Any, b: Any) -> Callable[[], Any]:
    return lambda: a @ b


def _torch_tf32(torch: Any, a: Any, b: Any) -> Callable[[], Any]:
    def call() -> Any:
        settings = torch.backends.cuda.matmul
        settings.allow_tf32 = True
        try:
            return a @ b
        finally:
            settings.allow_tf32 = False

    return call


def _torch_float8(torch: Any, a: Any, b: Any) -> Callable[[], Any]:
    one = torch.ones((), device=a.device)
    return lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)


def _torch_int8(torch: Any, a: Any, b: Any) -> Callable[[], Any]:
    return lambda: torch._int_mm(a, b)


def _cublaslt(kind: str, library: Any, a: Any, b: Any) -> Callable[[], Any]:
    call: Callable[[], Any] = library.product(a, b, kind=kind)
    return call


_TORCH: dict[str, _Product] = {
    "tf32": _torch_tf32,
    "float8_e4m3": _torch_float8,
    "int8": _torch_int8,
}


def library_products(dtype: str) -> dict[str, _Product]:
    """By the peer's name. float8 and int8 want b as the transpose of a row-major (n, k)."""
    found: dict[str, _Product] = {"cublaslt": functools.partial(_cublaslt, dtype)}
    found["torch"] = _TORCH.get(dtype, _operator)
    if dtype in ("float16", "float32", "float64"):
        found["cupy"] = _operator
    if dtype in ("float32", "float64"):
        found["numpy"] = _operator
    return found
