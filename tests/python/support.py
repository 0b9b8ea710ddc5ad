"""Arrays for the tests, made alike in NumPy and on the device, and how results are compared."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import pygpukit as gp

DATA = Path(__file__).parent.parent / "data"
ON_GPU = os.environ["PYGPUKIT_DEVICE"] != "cpu"

BOOL = ["bool"]
SIGNED = ["int8", "int16", "int32", "int64"]
UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]
INTEGERS = SIGNED + UNSIGNED
FLOATS = ["float16", "bfloat16", "float32", "float64"]
FLOAT8 = ["float8_e4m3", "float8_e5m2"]
ARITHMETIC = BOOL + INTEGERS + FLOATS
EVERY = ARITHMETIC + FLOAT8

_ML_DTYPES = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}


def np_dtype(name: str) -> np.dtype:
    return np.dtype(_ML_DTYPES.get(name, name))


def gp_name(dtype: Any) -> str:
    """The name that pygpukit gives a NumPy dtype."""
    name = np.dtype(dtype).name
    return "float8_e4m3" if name == "float8_e4m3fn" else name


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, low=-8, high=8) -> np.ndarray:
    """Small numbers of both signs (of unsigned dtypes: none negative), halves among the floats."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in UNSIGNED:
        return rng.integers(max(low, 0), high + 1, shape).astype(dtype)
    if dtype in SIGNED:
        return rng.integers(low, high + 1, shape).astype(dtype)
    return (rng.integers(low * 16, high * 16 + 1, shape) / 16).astype(np_dtype(dtype))


# name -> what makes the view, of a NumPy array or of one of ours, from an array of shape (6, 8).
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda a: a,
    "transposed": lambda a: a.T,
    "steps": lambda a: a[::2, 1::3],
    "negative": lambda a: a[::-1, -2::-2],
    "column": lambda a: a[:, 3],
    "broadcast": lambda a: (gp if isinstance(a, gp.Array) else np).broadcast_to(a[2:3], (4, 8)),
    "empty": lambda a: a[:0],
    "scalar": lambda a: a[1:2, 2:3].reshape(()),
}


def pair(rng: np.random.Generator, layout: str, dtype: str, **limits: int) -> tuple[np.ndarray, gp.Array]:
    """The same view in NumPy and on the device."""
    base = random_array(rng, (6, 8), dtype, **limits)
    make = LAYOUTS[layout]
    return make(base), make(gp.from_numpy(base))


def assert_equal(actual: gp.Array, expected: Any, dtype: str | None = None) -> None:
    """Dtype, shape and every bit of value; NaN equals NaN."""
    expected = np.asarray(expected)
    assert isinstance(actual, gp.Array)
    assert str(actual.dtype) == (dtype or gp_name(expected.dtype))
    assert actual.shape == expected.shape
    host = actual.to_numpy()
    if host.dtype.kind not in "biu":
        host, expected = host.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(host, expected)


def ulps(actual: np.ndarray, exact: np.ndarray, terms: Any = 0.0) -> np.ndarray:
    """Errors in units of the last place of the exact value, rounded to actual's dtype.

    terms: of a sum whose parts may cancel: the unit is then that of the larger of value and terms.
    """
    dtype = actual.dtype
    exact = np.asarray(exact, np.float64)
    with np.errstate(over="ignore"):
        rounded = exact.astype(dtype).astype(np.float64)
    info = ml_dtypes.finfo(dtype)
    size = np.maximum(np.abs(rounded), np.abs(np.asarray(terms, np.float64)))
    exponent = np.floor(np.log2(np.maximum(size, float(info.smallest_normal))))
    unit = np.exp2(exponent) * float(info.eps)
    wide = actual.astype(np.float64)
    same = (wide == rounded) | (np.isnan(wide) & np.isnan(rounded))
    with np.errstate(invalid="ignore"):
        error = np.abs(wide - exact) / unit
    return np.where(same, np.minimum(np.nan_to_num(error), 0.5), np.nan_to_num(error, nan=np.inf))


def assert_within_ulps(actual: gp.Array, exact: Any, limit: float, terms: Any = 0.0) -> None:
    host = actual.to_numpy()
    assert host.shape == np.shape(exact)
    worst = ulps(host, exact, terms).max(initial=0)
    assert worst <= limit, f"error of {worst} ulps, at most {limit} expected"


def relative_norm(actual: Any, exact: Any) -> float:
    actual, exact = np.asarray(actual, np.float64), np.asarray(exact, np.float64)
    assert actual.shape == exact.shape
    norm = np.linalg.norm(exact)
    return float(np.linalg.norm(actual - exact) / norm) if norm else float(np.linalg.norm(actual))


def run_python(code: str, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process of its own; a variable that is None is not set there."""
    merged = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={key: value for key, value in merged.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def check_greedy_tokens(model, expected):
    """That the model goes on with each prompt of a reference.npz as it says."""
    for i in range(3):
        greedy = expected[f"greedy_{i}"].tolist()
        tokens = model.stream_tokens(expected[f"prompt_{i}"], max_tokens=len(greedy), stop_tokens=[])
        assert list(tokens) == greedy


def check_decoding(model, prompt):
    """That decoding token by token chooses what the logits of the whole text say."""
    new = list(model.stream_tokens(prompt, max_tokens=8, stop_tokens=[]))
    logits = model.score([*prompt, *new]).to_numpy()
    logits = logits[len(prompt) - 1 : -1]
    # Steps round in other places than prompts: of two that are closer either may be chosen.
    margin = {"bfloat16": 0.12, "float16": 0.02}.get(str(model.dtype), 0)
    behind = logits.max(1) - logits[range(len(new)), new]
    assert (behind <= margin * logits.std(1)).all()
