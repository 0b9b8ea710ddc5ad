"""Batch: several texts of a model at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .. import _native
from . import choice
from .choice import TokenLogprobs
from .text import StopFilter, TextDecoder, stop_strings
from .tokenizer import Tokenizer


class BatchPiece(NamedTuple):
    """What a step gave one text."""

    text: int  # as add() numbered it
    token: int | None  # None where a stop token ended it
    piece: str  # whole characters, or "" while there are none; always "" for a model without a tokenizer
    finish_reason: str | None  # "stop", "length" or "context" with the last piece
    logprobs: TokenLogprobs | None = None  # where they were asked for


class Batch:
    """Texts of any lengths that a model writes at the same time; they may be added and cancelled at any time.

    A step costs little more than that of one text, up to some dozens: the weights are read once for all.
    Each text is what the model would write alone with the same arguments, but for rounding.
    Used in a with statement it is closed at the end; it is also closed with its model.
    """

    def __init__(
        self,
        native: _native._Batch,
        tokenizer: Tokenizer | None,
        encode: Callable[[str | Sequence[int], str], list[int]],  # of a prompt, for a call
        stop_tokens: Sequence[int],
    ) -> None:
        self._native = native
        self._tokenizer = tokenizer
        self._encode = encode
        self._stop_tokens = list(stop_tokens)
        self._texts: dict[int, tuple[TextDecoder, StopFilter]] = {}
        # Over what belongs together: a text's tokens and its pieces. A signal's handler may cancel a text in
        # the midst of its own thread's step.
        self._lock = threading.RLock()

    @property
    def max_sequences(self) -> int:
        """How many texts are written at once; others wait."""
        return self._native.slots

    @property
    def active(self) -> int:
        """Texts under way."""
        return self._native.active

    @property
    def waiting(self) -> int:
        """Texts that have not begun."""
        return self._native.waiting

    def __len__(self) -> int:
        """Texts under way and waiting."""
        return self.active + self.waiting

    def add(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        stop_tokens: Sequence[int] | None = None,
        on_full: str = "stop",
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        seed: int | None = None,
        logprobs: int | None = None,
    ) -> int:
        """Queues a text and gives its number. Arguments as in LanguageModel.stream.

        Each text has its own; reuse and speculate are not among them.

        Raises InvalidValueError for a prompt that has no room, and for stop strings without a tokenizer.
        """
        stops = stop_strings("add", stop)
        limit, slides = choice.max_tokens_of("add", max_tokens), choice.slides("add", on_full)
        how = choice.make(
            "add",
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            seed=seed,
            logprobs=logprobs,
        )
        if stops and self._tokenizer is None:
            raise _native.InvalidValueError(
                "add: argument 'stop': expected none without a tokenizer, got some"
            )
        ends = (
            self._stop_tokens if stop_tokens is None else choice.token_ids("add", "stop_tokens", stop_tokens)
        )
        tokens = self._encode(prompt, "add")
        with self._lock:
            text = self._native.add(tokens, limit, ends, how, slides)
            if self._tokenizer is not None:
                self._texts[text] = TextDecoder(self._tokenizer.decode), StopFilter(stops)
        return text

    def cancel(self, text: int) -> bool:
        """Ends a text; False where it is over already."""
        text = choice.checked("cancel", "text", text, int, "a text's number")
        with self._lock:
            self._texts.pop(text, None)
            return self._native.cancel(text)

    def step(self) -> list[BatchPiece]:
        """One token for each text under way; empty where there is none. Texts that wait begin first."""
        with self._lock:
            return [self._piece(*each) for each in self._native.step()]

    def close(self) -> None:
        """Gives the device memory of its contexts back to the device's pool at once, as LanguageModel.close.

        Afterwards its other calls raise InvalidValueError.
        """
        self._native.close()

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _piece(
        self,
        text: int,
        token: int | None,
        reason: str,
        native: tuple[float, list[tuple[int, float]]] | None,
    ) -> BatchPiece:
        finish = None if reason == "none" else reason
        logprobs = None if native is None or token is None else TokenLogprobs.of(token, native)
        known = self._texts.get(text)
        if known is None:
            return BatchPiece(text, token, "", finish, logprobs)
        decoder, stop = known
        piece = "" if token is None else stop.push(decoder.push(token))
        if finish is not None and not stop.stopped:
            piece += stop.push(decoder.finish())
            piece += "" if stop.stopped else stop.finish()
        if stop.stopped and finish is None:
            self._native.cancel(text)
        if stop.stopped:
            finish = "stop"
        if finish is not None:
            self._texts.pop(text, None)
        return BatchPiece(text, token, piece, finish, logprobs)
