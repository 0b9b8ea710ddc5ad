"""How the tokens of a text are chosen: the arguments of generate, stream and batches."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .. import _native
from .._native import InvalidTypeError, InvalidValueError


class TokenLogprobs(NamedTuple):
    """Natural logarithms of the model's own probabilities, before penalties and temperature."""

    token: int
    logprob: float
    best: list[tuple[int, float]]  # the likeliest tokens, as many as were asked for

    @classmethod
    def of(cls, token: int, native: tuple[float, list[tuple[int, float]]]) -> TokenLogprobs:
        """As the native calls give them."""
        return cls(token, *native)


def make(
    call: str,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    seed: int | None = None,
    logprobs: int | None = None,
) -> _native._Choice:
    """The arguments are those of LanguageModel.stream_tokens."""
    real, whole = (float, "a number"), (int, "a whole number")
    return _native._Choice(
        checked(call, "temperature", temperature, *real),
        checked(call, "top_k", top_k, *whole),
        checked(call, "top_p", top_p, *real),
        checked(call, "min_p", min_p, *real),
        secrets.randbits(64) if seed is None else checked(call, "seed", seed, *whole) % 2**64,
        checked(call, "repetition_penalty", repetition_penalty, *real),
        checked(call, "presence_penalty", presence_penalty, *real),
        checked(call, "frequency_penalty", frequency_penalty, *real),
        None if logprobs is None else checked(call, "logprobs", logprobs, *whole),
    )


def checked(call: str, argument: str, value: Any, kind: Callable[[Any], Any], expected: str) -> Any:
    """The value as float or int. InvalidTypeError for what is neither, InvalidValueError beyond 64 bits."""
    try:
        number = kind(value) if kind is float else value.__index__()
    except (TypeError, ValueError, AttributeError):
        number = None
    except OverflowError:
        raise InvalidValueError(
            f"{call}: argument '{argument}': expected {expected}, got {value!r}"
        ) from None
    if number is None or isinstance(value, str | bytes):
        raise InvalidTypeError(
            f"{call}: argument '{argument}': expected {expected}, got {type(value).__name__}"
        )
    most = 2**64 if argument == "seed" else 2**63  # a seed's bits count, with a sign or without
    if kind is int and not -(2**63) <= number < most:
        raise InvalidValueError(
            f"{call}: argument '{argument}': expected {expected} of 64 bits, got {number}"
        )
    return number


def max_tokens_of(call: str, max_tokens: int | None) -> int:
    """As the native calls take it: 0 for no limit."""
    if max_tokens is None:
        return 0
    number: int = checked(call, "max_tokens", max_tokens, int, "a whole number")
    if number < 1:
        raise InvalidValueError(f"{call}: argument 'max_tokens': expected at least 1, got {number}")
    return number


def flag(call: str, argument: str, value: Any) -> bool:
    """Raises InvalidTypeError for what is not True or False."""
    if not isinstance(value, bool):
        raise InvalidTypeError(
            f"{call}: argument '{argument}': expected True or False, got {type(value).__name__}"
        )
    return value


def token_ids(call: str, argument: str, tokens: Sequence[int], expected: str = "token ids") -> list[int]:
    """Several ids of 32 bits. Raises InvalidTypeError for anything else."""
    message = f"{call}: argument '{argument}': expected {expected}, got"
    try:
        if isinstance(tokens, str | bytes | bytearray | memoryview):  # a text, not ids
            raise TypeError
        given = list(tokens)
    except TypeError:
        raise InvalidTypeError(f"{message} {type(tokens).__name__}") from None
    if any(isinstance(token, bool) for token in given):
        raise InvalidTypeError(f"{message} bool")
    ids = [checked(call, argument, token, int, expected) for token in given]
    if bad := [token for token in ids if not -(2**31) <= token < 2**31]:
        raise InvalidValueError(f"{message} {bad[0]}")
    return ids


def slides(call: str, on_full: str) -> bool:
    """Whether a text goes on where the context is full."""
    if not isinstance(on_full, str) or on_full not in ("stop", "slide"):
        raise InvalidValueError(f"{call}: argument 'on_full': expected 'stop' or 'slide', got {on_full!r}")
    return on_full == "slide"
