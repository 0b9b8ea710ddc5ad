"""Tokens a second of a language model at batch 1."""

from __future__ import annotations

import statistics

import pygpukit as gp

from ._measure import Row


def measure(model_name: str, dtype: str | None = None, tokens: int = 256, rounds: int = 5) -> list[Row]:
    """Decodes `tokens` greedy tokens after a short prompt, `rounds` times; end of text is ignored.

    The rate is that of decoding: the prompt's own time is not in it.
    """
    model = gp.llm.load(model_name, dtype=dtype)
    prompt = "The history of computing begins with"
    rates, texts = [], set()
    for _ in range(rounds + 1):  # the first one warms up
        stream = model.stream_tokens(prompt, max_tokens=tokens, stop_tokens=())
        texts.add(tuple(stream))
        rates.append(stream.stats["tokens_per_second"])
    if len(texts) != 1:
        raise gp.Error(f"decode: greedy decoding of one prompt gave {len(texts)} different texts")
    rates = rates[1:]
    name = f"decode {model_name} {model.dtype}, batch 1, {tokens} tokens"
    return [Row(name, statistics.median(rates), "tokens/s", min(rates), max(rates))]
