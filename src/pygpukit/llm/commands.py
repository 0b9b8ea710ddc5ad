"""The commands `generate` and `chat`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from .._native import Error, InvalidValueError
from .model import LanguageModel, Message, TextStream, load


def _load(arguments: argparse.Namespace) -> LanguageModel:
    return load(arguments.model, dtype=arguments.dtype, device=arguments.device, quantize=arguments.quantize)


_draft: dict[str, LanguageModel] = {}  # by its path: one for all turns of a conversation


def _strategy(arguments: argparse.Namespace) -> str | LanguageModel | None:
    """A strategy's name, or the model of that name."""
    how: str | None = arguments.speculate
    if how in (None, "ngram", "early_layers", "jacobi"):
        return how
    if how not in _draft:
        try:
            _draft[how] = load(how, dtype=arguments.dtype, device=arguments.device)
        except Error as reason:
            raise InvalidValueError(
                f"--speculate: expected ngram, early_layers, jacobi or a smaller model, got {how!r}: {reason}"
            ) from None
    return _draft[how]


def _options(arguments: argparse.Namespace, model: LanguageModel, prompt: list[int]) -> dict[str, Any]:
    room = model.max_length - len(prompt)
    if room < 1:
        raise InvalidValueError(
            f"the prompt has {len(prompt)} tokens, and the model's context holds {model.max_length}"
        )
    slides = arguments.on_full == "slide"
    return {
        "max_tokens": arguments.max_tokens if slides else min(arguments.max_tokens, room),
        "on_full": arguments.on_full,
        "speculate": _strategy(arguments),
        "temperature": arguments.temperature,
        "top_k": arguments.top_k,
        "top_p": arguments.top_p,
        "min_p": arguments.min_p,
        "repetition_penalty": arguments.repetition_penalty,
        "presence_penalty": arguments.presence_penalty,
        "frequency_penalty": arguments.frequency_penalty,
        "seed": arguments.seed,
    }


def _write(stream: TextStream, *, silent: bool) -> str:
    """Prints the pieces as they come; returns the whole text."""
    pieces = []
    for piece in stream:
        pieces.append(piece)
        if not silent:
            sys.stdout.write(piece)
            sys.stdout.flush()
    if not silent:
        sys.stdout.write("\n")
    return "".join(pieces)


def _guesses(stats: dict[str, float]) -> str:
    if "acceptance" not in stats:
        return ""
    return f"{stats['tokens_per_pass']:.2f} tokens a pass, {stats['acceptance']:.0%} of guesses; "


def _report(model: LanguageModel, stream: TextStream) -> None:
    stats = stream.stats
    print(
        f"[{stats['generated_tokens']:.0f} tokens, {stats['tokens_per_second']:.1f} tokens/s; "
        f"prompt of {stats['prompt_tokens']:.0f} in {stats['prefill_seconds']:.2f} s; "
        f"{_guesses(stats)}"
        f"{model.dtype} on {model.device}]",
        file=sys.stderr,
    )


def _as_json(model: LanguageModel, stream: TextStream, text: str) -> str:
    return json.dumps(
        {
            "text": text,
            "tokens": stream.tokens,
            "finish_reason": stream.finish_reason,
            **stream.stats,
            "device": str(model.device),
            "dtype": str(model.dtype),
        }
    )


def _answer(arguments: argparse.Namespace, model: LanguageModel, prompt: list[int]) -> str:
    stream = model.stream(prompt, **_options(arguments, model, prompt))
    text = _write(stream, silent=arguments.json)
    if arguments.json:
        print(_as_json(model, stream, text), flush=True)
    _report(model, stream)
    return text


def generate(arguments: argparse.Namespace) -> int:
    """Goes on with a text."""
    model = _load(arguments)
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    _answer(arguments, model, model.encode(prompt))
    return 0


def chat(arguments: argparse.Namespace) -> int:
    """A conversation, until the input ends."""
    model = _load(arguments)
    interactive = sys.stdin.isatty()
    if interactive:
        print(f"{model}\nEnd with Ctrl-D.", file=sys.stderr)
    messages: list[Message] = []
    if arguments.system is not None:
        messages.append({"role": "system", "content": arguments.system})
    while True:
        if interactive:
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return 0
        if not (text := line.strip()):
            continue
        messages.append({"role": "user", "content": text})
        answer = _answer(arguments, model, model.chat_prompt(messages))
        messages.append({"role": "assistant", "content": answer})
