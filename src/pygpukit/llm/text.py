"""From a stream of tokens to pieces of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .._native import InvalidTypeError

_INCOMPLETE = "\ufffd"  # what the bytes of half a character decode to


# A character has at most 4 bytes, and a token at least one: what so many tokens have not made whole never
# will be.
_MOST_HELD = 8


class TextDecoder:
    """Pieces that are whole characters; together they are the text of all tokens."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        # Tokens before `_start` are done with; the text of those from there to `_shown` was given away.
        # Decoding from an earlier token keeps what depends on the one before (a leading space).
        self._start = 0
        self._shown = 0

    def push(self, token: int) -> str:
        """The text that is complete with this token; may be empty."""
        self._ids.append(token)
        known, text = self._texts()
        if text.endswith(_INCOMPLETE) or len(text) <= len(known):
            return self._give_up(known, text)
        self._start, self._shown = self._shown, len(self._ids)
        return text[len(known) :]

    def _give_up(self, known: str, text: str) -> str:
        """What can be given of a long run that makes no text; held, it would be decoded again and again."""
        if len(self._ids) - self._shown <= _MOST_HELD:
            return ""
        last = len(self._ids) - 3
        for end in range(last, max(self._shown, last - _MOST_HELD), -1):
            part = self._decode(self._ids[self._start : end])
            # Later tokens must not change it, nor does what it ends with begin what they make whole.
            rest = self._decode(self._ids[end:])
            if text == part + rest and len(part) >= len(known):
                self._start, self._shown = end, end
                return part[len(known) :]
        return ""

    def finish(self) -> str:
        """What is left at the end, complete or not."""
        known, text = self._texts()
        self._start = self._shown = len(self._ids)
        return text[len(known) :]

    def _texts(self) -> tuple[str, str]:
        return self._decode(self._ids[self._start : self._shown]), self._decode(self._ids[self._start :])


def stop_strings(call: str, stop: str | Sequence[str]) -> list[str]:
    """One string or several, as a list. Raises InvalidTypeError for anything else."""
    stops = [stop] if isinstance(stop, str) else stop
    if (
        isinstance(stops, bytes)
        or not isinstance(stops, Sequence)
        or not all(isinstance(each, str) for each in stops)
    ):
        raise InvalidTypeError(f"{call}: argument 'stop': expected a string or several, got {stop!r}")
    return list(stops)


class StopFilter:
    """Ends a text before the first of some strings, also where it comes in several pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped = False

    def push(self, piece: str) -> str:
        """What can be given away: no part of it may begin one of the strings."""
        if self.stopped:
            return ""
        text = self._held + piece
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back at the end."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
