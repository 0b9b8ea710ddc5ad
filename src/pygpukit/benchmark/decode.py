"""Tokens a second of a language model at batch 1."""

from __future__ import annotations

import statistics
import time

import pygpukit as gp

from ._measure import Row


def measure(model_name: str, dtype: str | None = None, tokens: int = 256, rounds: int = 5) -> list[Row]:
    """Decodes `tokens` greedy tokens after a short prompt, `rounds` times; end of text is ignored."""
    model = gp.llm.load(model_name, dtype=dtype)
    prompt = "The history of computing begins with"
    rates, texts = [], set()
    for _ in range(rounds + 1):  # the first one warms up
        start = time.perf_counter()
        result = model.generate(prompt, max_tokens=tokens, temperature=0.0, stop_tokens=())
        rates.append(tokens / (time.perf_counter() - start))
        texts.add(result)
    if len(texts) != 1:
        raise gp.Error(f"decode: greedy decoding of one prompt gave {len(texts)} different texts")
    rates = rates[1:]
    name = f"decode {model_name} {model.dtype} batch 1, {tokens} tokens with prefill"
    return [Row(name, statistics.median(rates), "tokens/s", min(rates), max(rates))]
