"""Tokens a second of language models."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np

import pygpukit as gp
from pygpukit.llm import LanguageModel

from . import random_models
from ._measure import Row
from .limits import Limits

_ROUNDS = 5
_GROUP = "decode"
# Of Qwen2.5-7B's and TinyLlama's shapes: what a step should reach.
_SHARE_GOALS = {"Qwen2.5-7B": 0.88, "TinyLlama-1.1B": 0.80}
_QUANTIZED_GOALS = {"int8": 1.8, "int4": 3.0}
_STRATEGIES = ("ngram", "jacobi", "early_layers")
_BATCH_GOALS = {8: 7.0, 64: 40.0}
# On the simulated device in 4 bits, with the head in 8: tokens a second on two cores.
_HOST_GOALS = {"SmolLM2-135M": 60.0}


def measure(model_name: str, limits: Limits, dtype: str | None = None, quick: bool = False) -> Iterator[Row]:
    """A model's greedy decoding at batch 1; of a shape of random_models also the rest of the table."""
    if model_name in _HOST_GOALS and model_name in random_models.CONFIGS:
        yield _measure_host(model_name, 8 if quick else 128)
    elif model_name in random_models.CONFIGS:
        yield from _measure_shape(model_name, limits, dtype or "bfloat16", quick)
    else:
        yield _measure_text(model_name, dtype, 16 if quick else 256)


def _measure_text(model_name: str, dtype: str | None, tokens: int) -> Row:
    """Decodes greedy tokens after a short prompt, several times; end of text is ignored.

    The rate is that of decoding: the prompt's own time is not in it.
    """
    model = gp.llm.load(model_name, dtype=dtype)
    rates = _rates(model, model.encode("The history of computing begins with"), tokens)
    return _row(f"decode {model_name} {model.dtype}, batch 1, {tokens} tokens", rates)


def _rates(model: LanguageModel, prompt: list[int], tokens: int, speculate: str | None = None) -> list[float]:
    rates, texts = [], set()
    for _ in range(_ROUNDS + 1):  # the first one warms up
        stream = model.stream_tokens(prompt, max_tokens=tokens, stop_tokens=(), speculate=speculate)
        texts.add(tuple(stream))
        rates.append(stream.stats["tokens_per_second"])
    if len(texts) != 1:
        raise gp.Error(f"decode: greedy decoding of one prompt gave {len(texts)} different texts")
    return rates[1:]


def _row(name: str, values: list[float], unit: str = "tokens/s") -> Row:
    return Row(name, statistics.median(values), unit, min(values), max(values), group=_GROUP)


def _measure_shape(name: str, limits: Limits, dtype: str, quick: bool) -> Iterator[Row]:
    rng = np.random.default_rng(0)
    vocab = random_models.CONFIGS[name]["vocab_size"]
    tokens = 8 if quick else 200
    prompts = [rng.integers(3, vocab, int(rng.integers(32, 128))).tolist() for _ in range(64)]
    model = random_models.make(name, dtype, max_length=2304)
    own = _row(f"decode {name} shape {dtype}, batch 1", _rates(model, prompts[0], tokens))
    # The embedding is looked up, not read through.
    read = (model.num_parameters - vocab * random_models.CONFIGS[name]["hidden_size"]) * 2
    if dtype != "float32" and (copy := limits.rate("copy")) is not None:
        own.share, own.limit = own.value * read / copy, "copy"
        own.goal, own.met = f">= {_SHARE_GOALS[name]} of the limit", own.share >= _SHARE_GOALS[name]
    yield own

    yield _prefill(name, model, limits, dtype, rng.integers(3, vocab, 64 if quick else 2048).tolist())
    for count, goal in _BATCH_GOALS.items():
        row = _row(
            f"decode {name} shape {dtype}, batch {count}", _batch_rates(model, prompts[:count], tokens // 2)
        )
        row.ratios = {"batch 1": row.value / own.value}
        row.goal, row.met = f">= {goal:g} of batch 1", row.ratios["batch 1"] >= goal
        yield row
    del model
    yield from _speculate(name, dtype, quick)
    for format, goal in _QUANTIZED_GOALS.items():
        quantized = random_models.make(name, dtype, max_length=2304, quantize=format)
        row = _row(f"decode {name} shape {format}, batch 1", _rates(quantized, prompts[0], tokens))
        row.ratios = {f"own {dtype}": row.value / own.value}
        row.goal, row.met = f">= {goal:g} of own {dtype}", row.value / own.value >= goal
        yield row
        del quantized


def _measure_host(name: str, tokens: int) -> Row:
    device = gp.device()
    gp.set_device("cpu")
    try:
        model = random_models.make(name, "float32", max_length=512, quantize="int4")
        row = _row(f"decode {name} shape int4, batch 1, host", _rates(model, list(range(3, 23)), tokens))
    finally:
        gp.set_device(device)
    row.goal, row.met = f">= {_HOST_GOALS[name]:g} tokens/s", row.value >= _HOST_GOALS[name]
    return row


def _speculate(name: str, dtype: str, quick: bool) -> Iterator[Row]:
    """An edit: the prompt has a text with one token in 40 replaced, which the model puts right."""
    model = random_models.make(name, dtype, max_length=2304, counts=True)
    tokens = 40 if quick else 800
    rng = np.random.default_rng(3)
    vocab = random_models.CONFIGS[name]["vocab_size"]
    prompt = list(range(vocab // 8, vocab // 8 + tokens))
    for at in range(39, tokens, 40):
        prompt[at] = int(rng.integers(vocab // 2, vocab))
    prompt.append(vocab // 8 - 1)
    plain = _row(f"decode {name} shape {dtype}, an edit, plain", _rates(model, prompt, tokens))
    yield plain
    expected = list(model.stream_tokens(prompt, max_tokens=tokens, stop_tokens=()))
    for how in _STRATEGIES:
        row = _row(f"decode {name} shape {dtype}, an edit, {how}", _rates(model, prompt, tokens, how))
        stream = model.stream_tokens(prompt, max_tokens=tokens, stop_tokens=(), speculate=how)
        if list(stream) != expected:
            raise gp.Error(f"decode: {how} wrote another text than plain steps")
        row.ratios = {"plain": row.value / plain.value}
        row.figures = {key: stream.stats[key] for key in ("acceptance", "tokens_per_pass")}
        row.note = "the same tokens"
        if how == "ngram":
            row.goal, row.met = ">= 2 of plain", row.ratios["plain"] >= 2
        yield row


def _prefill(name: str, model: LanguageModel, limits: Limits, dtype: str, prompt: list[int]) -> Row:
    config = random_models.CONFIGS[name]
    seconds = []
    for _ in range(_ROUNDS + 1):
        stream = model.stream_tokens(prompt, max_tokens=1, stop_tokens=())
        list(stream)
        seconds.append(stream.stats["prefill_seconds"])
    row = _row(
        f"prefill {name} shape {dtype}, {len(prompt)} tokens", [each * 1e3 for each in seconds[1:]], "ms"
    )
    weights = model.num_parameters - 2 * config["vocab_size"] * config["hidden_size"]
    row.rate, row.rate_unit = 2 * weights * len(prompt) / row.value / 1e9, "TFLOPS"
    if (product := limits.rate(f"{dtype} product")) is not None:
        row.share, row.limit = row.rate * 1e12 / product, f"{dtype} product"
        row.goal, row.met = ">= 0.6 of the limit", row.share >= 0.6
    return row


def _batch_rates(model: LanguageModel, prompts: list[list[int]], steps: int) -> list[float]:
    batch = model.batch(len(prompts))
    for prompt in prompts:
        batch.add(prompt, max_tokens=4 + _ROUNDS * (steps // _ROUNDS + 1), stop_tokens=())
    run: Callable[[], object] = batch.step
    for _ in range(4):
        run()
    rates = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        count = sum(len(batch.step()) for _ in range(max(steps // _ROUNDS, 1)))
        rates.append(count / (time.perf_counter() - start))
    return rates
