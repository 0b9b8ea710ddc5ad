"""Tokens a second of language models."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

import pygpukit as gp
from pygpukit.llm import LanguageModel, TokenLogprobs

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
# Of how many of a step's tokens, of how many steps, and of how many texts of a batch an error is taken.
_LIKELIEST, _STEPS, _TEXTS = 20, 32, 8


class _Told(NamedTuple):
    """What a model wrote, and the log-probabilities that the steps being measured gave."""

    prompt: list[int]
    steps: list[TokenLogprobs]


_Rows = list[tuple[Row, list[_Told]]]


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
    with gp.llm.load(model_name, dtype=dtype) as model:
        prompt = model.encode("The history of computing begins with")
        rates, _ = _rates(model, prompt, tokens)
        row = _row(f"decode {model_name} {model.dtype}, batch 1, {tokens} tokens", rates)
        told = [_tell(model, prompt, min(tokens, _STEPS))]
    _judge([(row, told)], lambda: gp.llm.load(model_name, dtype="float32"))
    return row


def _rates(
    model: LanguageModel, prompt: list[int], tokens: int, speculate: str | None = None
) -> tuple[list[float], list[int]]:
    """Tokens a second of each round, and the text, which is the same each time."""
    rates, texts = [], set()
    for _ in range(_ROUNDS + 1):  # the first one warms up
        stream = model.stream_tokens(prompt, max_tokens=tokens, stop_tokens=(), speculate=speculate)
        texts.add(tuple(stream))
        rates.append(stream.stats["tokens_per_second"])
    if len(texts) != 1:
        raise gp.Error(f"decode: greedy decoding of one prompt gave {len(texts)} different texts")
    return rates[1:], list(texts.pop())


def _row(name: str, values: list[float], unit: str = "tokens/s") -> Row:
    return Row(name, statistics.median(values), unit, min(values), max(values), group=_GROUP)


def _tell(model: LanguageModel, prompt: list[int], steps: int) -> _Told:
    stream = model.stream_tokens(prompt, max_tokens=steps, stop_tokens=(), logprobs=_LIKELIEST)
    told = []
    for token in stream:
        assert stream.logprobs is not None  # they were asked for
        told.append(TokenLogprobs.of(token, stream.logprobs))
    return _Told(prompt, told)


def _tell_batch(model: LanguageModel, prompts: list[list[int]], steps: int) -> list[_Told]:
    told: dict[int, _Told] = {}
    with model.batch(len(prompts)) as batch:
        for prompt in prompts:
            number = batch.add(prompt, max_tokens=steps, stop_tokens=(), logprobs=_LIKELIEST)
            told[number] = _Told(prompt, [])
        while len(batch) > 0:
            for each in batch.step():
                if each.logprobs is not None:
                    told[each.text].steps.append(each.logprobs)
    return list(told.values())[:: max(len(prompts) // _TEXTS, 1)]


def _distance(texts: Sequence[_Told], exact: LanguageModel) -> float:
    """Of the likeliest tokens' logits from those that `exact` gives all tokens of the text at once.

    Root mean square, in standard deviations of a step's logits. Log-probabilities differ as logits do, but
    for a sum over the vocabulary, in which errors cancel.
    """
    wrong, variances = [], []
    known = int(exact.config["num_tokens"])
    for prompt, steps in texts:
        tokens = prompt + [step.token for step in steps[:-1]]
        logits = exact.score(tokens)[len(prompt) - 1 :, :known].to_numpy().astype(np.float64)
        for row, step in zip(logits, steps, strict=True):
            largest = row.max()
            log_sum = largest + np.log(np.exp(row - largest).sum())
            wrong += [logprob - (row[token] - log_sum) for token, logprob in step.best]
            variances.append(row.var())
    return float(np.sqrt(np.mean(np.square(wrong)) / np.mean(variances)))


def _judge(rows: _Rows, exact: Callable[[], LanguageModel]) -> None:
    """Gives rows their errors: what the steps told, beside a model of the same weights in float32."""
    try:
        with exact() as model:
            for row, told in rows:
                row.error = _distance(told, model)
                row.note = "error: of logits, in deviations, beside the same weights in float32"
    except gp.OutOfMemoryError:
        for row, _ in rows:
            row.note = row.note or "no error: no room for the weights in float32"


def _measure_shape(name: str, limits: Limits, dtype: str, quick: bool) -> Iterator[Row]:
    rng = np.random.default_rng(0)
    vocab = random_models.CONFIGS[name]["vocab_size"]
    tokens = 8 if quick else 200
    steps = min(tokens, _STEPS)
    prompts = [rng.integers(3, vocab, int(rng.integers(32, 128))).tolist() for _ in range(64)]
    rows: _Rows = []
    with random_models.make(name, dtype, max_length=2304) as model:
        rates, _ = _rates(model, prompts[0], tokens)
        own = _row(f"decode {name} shape {dtype}, batch 1", rates)
        # The embedding is looked up, not read through.
        read = (model.num_parameters - vocab * random_models.CONFIGS[name]["hidden_size"]) * 2
        if dtype != "float32" and (copy := limits.rate("copy")) is not None:
            own.share, own.limit = own.value * read / copy, "copy"
            own.goal, own.met = f">= {_SHARE_GOALS[name]} of the limit", own.share >= _SHARE_GOALS[name]
        rows.append((own, [_tell(model, prompts[0], steps)]))
        prompt = rng.integers(3, vocab, 64 if quick else 2048).tolist()
        rows.append((_prefill(name, model, limits, dtype, prompt), [_tell(model, prompt, 1)]))
        for count, goal in _BATCH_GOALS.items():
            rates = _batch_rates(model, prompts[:count], tokens // 2)
            row = _row(f"decode {name} shape {dtype}, batch {count}", rates)
            row.ratios = {"batch 1": row.value / own.value}
            row.goal, row.met = f">= {goal:g} of batch 1", row.ratios["batch 1"] >= goal
            rows.append((row, _tell_batch(model, prompts[:count], steps)))
    _judge(rows, functools.partial(random_models.make, name, "float32", weights=dtype))
    yield from (row for row, _ in rows)

    for format, goal in _QUANTIZED_GOALS.items():
        with random_models.make(name, dtype, max_length=2304, quantize=format) as model:
            rates, _ = _rates(model, prompts[0], tokens)
            row = _row(f"decode {name} shape {format}, batch 1", rates)
            rows = [(row, [_tell(model, prompts[0], steps)])]
            rates = _batch_rates(model, prompts, tokens // 2)
            many = _row(f"decode {name} shape {format}, batch {len(prompts)}", rates)
            rows.append((many, _tell_batch(model, prompts, steps)))
        row.ratios = {f"own {dtype}": row.value / own.value}
        row.goal, row.met = f">= {goal:g} of own {dtype}", row.value / own.value >= goal
        many.ratios = {"batch 1": many.value / row.value}
        _judge(rows, functools.partial(random_models.make, name, "float32", quantize=format, weights=dtype))
        yield from (row for row, _ in rows)
    yield from _speculate(name, dtype, quick)


def _measure_host(name: str, tokens: int) -> Row:
    device = gp.device()
    gp.set_device("cpu")
    try:
        model = random_models.make(name, "float32", max_length=512, quantize="int4")
        prompt = list(range(3, 23))
        rates, _ = _rates(model, prompt, tokens)
        row = _row(f"decode {name} shape int4, batch 1, host", rates)
        # A prompt's products are of what the codes stand for, a step's of the codes.
        _judge([(row, [_tell(model, prompt, min(tokens, _STEPS))])], lambda: model)
    finally:
        gp.set_device(device)
    row.goal, row.met = f">= {_HOST_GOALS[name]:g} tokens/s", row.value >= _HOST_GOALS[name]
    return row


def _speculate(name: str, dtype: str, quick: bool) -> Iterator[Row]:
    """An edit: the prompt has a text with one token in 40 replaced, which the model puts right.

    Errors are shares of the tokens: the text is known beforehand.
    """
    tokens = 40 if quick else 800
    rng = np.random.default_rng(3)
    vocab = random_models.CONFIGS[name]["vocab_size"]
    right = list(range(vocab // 8, vocab // 8 + tokens))
    prompt = list(right)
    for at in range(39, tokens, 40):
        prompt[at] = int(rng.integers(vocab // 2, vocab))
    prompt.append(vocab // 8 - 1)

    def share_of_wrong(text: list[int]) -> float:
        return sum(a != b for a, b in zip(text, right, strict=True)) / tokens

    others = []
    with random_models.make(name, dtype, max_length=2304, counts=True) as model:
        rates, expected = _rates(model, prompt, tokens)
        plain = _row(f"decode {name} shape {dtype}, an edit, plain", rates)
        plain.error, plain.note = share_of_wrong(expected), "error: share of the tokens"
        yield plain
        for how in _STRATEGIES:
            rates, text = _rates(model, prompt, tokens, how)
            row = _row(f"decode {name} shape {dtype}, an edit, {how}", rates)
            stream = model.stream_tokens(prompt, max_tokens=tokens, stop_tokens=(), speculate=how)
            list(stream)
            row.ratios = {"plain": row.value / plain.value}
            row.figures = {key: stream.stats[key] for key in ("acceptance", "tokens_per_pass")}
            same = text == expected
            others += [] if same else [how]
            row.error = share_of_wrong(text)
            row.note = f"{'the same' if same else 'OTHER'} tokens; error: share of the tokens"
            if how == "ngram":
                row.goal, row.met = ">= 2 of plain", same and row.ratios["plain"] >= 2
            yield row
    if others:
        raise gp.Error(f"decode: {', '.join(others)} wrote another text than plain steps")


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
    rates = []
    with model.batch(len(prompts)) as batch:
        for prompt in prompts:
            batch.add(prompt, max_tokens=4 + _ROUNDS * (steps // _ROUNDS + 1), stop_tokens=())
        for _ in range(4):
            batch.step()
        for _ in range(_ROUNDS):
            start = time.perf_counter()
            count = sum(len(batch.step()) for _ in range(max(steps // _ROUNDS, 1)))
            rates.append(count / (time.perf_counter() - start))
    return rates
