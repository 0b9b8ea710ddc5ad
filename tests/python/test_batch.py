"""Several texts at once."""

import contextlib
import threading

import pytest

import pygpukit as gp
from support import DATA

PROMPTS = ["The quick brown fox", "a matrix", "def add(a, b):", "Numbers: 0 1 2", "the", "over the lazy dog"]


@pytest.fixture(scope="module")
def model():
    return gp.llm.load(DATA / "llama" / "gqa_sharded", dtype="float32")


def test_texts_are_those_that_the_model_writes_alone(model):
    alone = [model.generate(prompt, max_tokens=12) for prompt in PROMPTS]
    for at_once in (1, 4, 16):
        assert model.generate_batch(PROMPTS, max_tokens=12, max_sequences=at_once) == alone


def test_texts_know_how_they_came_about(model):
    first = model.generate(PROMPTS[0], max_tokens=20)
    for how in (
        {"max_tokens": 5},
        {"max_tokens": 20, "stop": first[5:8]},
        {"stop_tokens": first.tokens[3:4]},
    ):
        texts = model.generate_batch(PROMPTS[:3], logprobs=2, **how)
        for text, prompt in zip(texts, PROMPTS[:3], strict=True):
            alone = model.generate(prompt, logprobs=2, **how)
            assert (text, text.tokens, text.finish_reason) == (alone, alone.tokens, alone.finish_reason)
            assert text.stats["generated_tokens"] == alone.stats["generated_tokens"] == len(text.tokens)
            assert [each.token for each in text.logprobs] == alone.tokens
            for mine, other in zip(text.logprobs, alone.logprobs, strict=True):
                assert mine.logprob == pytest.approx(other.logprob, abs=1e-4)


def test_stop_strings_end_a_text_and_free_its_place(model):
    whole = model.generate(PROMPTS[0], max_tokens=20)
    stop = whole[5:8]
    batch = model.batch(1)
    first, second = batch.add(PROMPTS[0], max_tokens=20, stop=stop), batch.add(PROMPTS[1], max_tokens=3)
    texts, reasons = {first: "", second: ""}, {}
    while len(batch) > 0:
        for each in batch.step():
            texts[each.text] += each.piece
            if each.finish_reason is not None:
                reasons[each.text] = each.finish_reason
    assert texts[first] == model.generate(PROMPTS[0], max_tokens=20, stop=stop) == whole[: whole.find(stop)]
    assert texts[second] == model.generate(PROMPTS[1], max_tokens=3)
    assert reasons == {first: "stop", second: "length"}


def test_texts_come_and_go(model):
    batch = model.batch(2)
    assert (batch.max_sequences, len(batch), batch.step()) == (2, 0, [])
    numbers = [batch.add(prompt, max_tokens=9) for prompt in PROMPTS[:3]]
    assert (batch.active, batch.waiting) == (0, 3)
    assert [each.text for each in batch.step()] == numbers[:2]
    assert batch.cancel(numbers[0])
    assert not batch.cancel(numbers[0])
    tokens = [each.token for _ in range(9) for each in batch.step() if each.text == numbers[2]]
    assert tokens == list(model.stream_tokens(PROMPTS[2], max_tokens=9))


def test_token_ids_and_bad_arguments(model):
    batch = model.batch(1)
    prompt = model.encode(PROMPTS[0])
    batch.add(prompt, max_tokens=4, stop_tokens=[])
    tokens = [each.token for _ in range(4) for each in batch.step()]
    assert tokens == list(model.stream_tokens(prompt, max_tokens=4, stop_tokens=[]))
    for bad in ([], [10**6], [-1], [1] * 10_000):
        with pytest.raises(gp.InvalidValueError):
            batch.add(bad)
    with pytest.raises(gp.InvalidValueError, match="max_tokens"):
        batch.add(prompt, max_tokens=0)
    with pytest.raises(gp.InvalidTypeError):
        model.generate_batch("one string")
    for slots in (0, -1, 2000):
        with pytest.raises(gp.InvalidValueError, match="batch: argument 'max_sequences'"):
            model.batch(slots)
    assert len(batch) == 0


def test_penalties_of_a_text_that_slides_are_its_own():
    small = gp.llm.load(DATA / "llama" / "gqa_sharded", dtype="float32", max_length=8)
    options = {"max_tokens": 30, "on_full": "slide", "stop_tokens": []}
    for first in range(20):
        alone = list(small.stream_tokens([first, 1, 2], presence_penalty=1.0, **options))
        with small.batch(2) as batch:
            number = batch.add([first, 1, 2], presence_penalty=1.0, **options)
            batch.add([9, 8, 7, 6, 5], presence_penalty=0.5, **options)
            tokens = [each.token for _ in range(30) for each in batch.step() if each.text == number]
        assert tokens == alone


def test_a_bad_stop_is_refused_and_harms_no_other(model):
    batch = model.batch(2)
    number = batch.add(PROMPTS[0], max_tokens=6)
    for bad in ([5], b"x", 5, None, ["a", None]):
        with pytest.raises(gp.InvalidTypeError, match="stop"):
            batch.add(PROMPTS[1], stop=bad)
    text = "".join(each.piece for _ in range(6) for each in batch.step() if each.text == number)
    assert text == model.generate(PROMPTS[0], max_tokens=6)
    with pytest.raises(gp.InvalidTypeError, match="stop"):
        model.stream(PROMPTS[0], stop=[5])


def test_texts_may_be_added_and_cancelled_while_others_are_written(model):
    batch, alone = model.batch(4), {prompt: model.generate(prompt, max_tokens=6) for prompt in PROMPTS}
    texts, failed, over = {}, [], threading.Event()

    def step():
        try:
            while not over.is_set() or len(batch) > 0:
                for each in batch.step():
                    texts[each.text] = texts.get(each.text, "") + each.piece
        except Exception as reason:
            failed.append(reason)

    stepper = threading.Thread(target=step)
    stepper.start()
    kept = {}
    for i in range(60):
        number = batch.add(PROMPTS[i % len(PROMPTS)], max_tokens=6)
        if i % 5 == 0:
            batch.cancel(number)
        else:
            kept[number] = PROMPTS[i % len(PROMPTS)]
    over.set()
    stepper.join(60)
    assert not failed
    assert not stepper.is_alive()
    assert {number: texts[number] for number in kept} == {n: alone[prompt] for n, prompt in kept.items()}


def test_running_out_of_memory_loses_no_token(model):
    whole = list(model.stream_tokens([5, 6, 7], max_tokens=8, stop_tokens=[], temperature=1.0, seed=3))
    greedy = list(model.stream_tokens([5, 6, 7], max_tokens=8, stop_tokens=[]))
    batch = gp.llm.load(DATA / "llama" / "gqa_sharded", dtype="float32").batch(2)
    batch.add([5, 6, 7], max_tokens=8, stop_tokens=[])
    sampled = model.stream_tokens([5, 6, 7], max_tokens=8, stop_tokens=[], temperature=1.0, seed=3)
    tokens, pieces = [next(sampled)], batch.step()
    try:
        gp.memory.trim()
        gp.memory.set_limit(1)
        for _ in range(3):
            for take in (lambda: tokens.append(next(sampled)), lambda: pieces.extend(batch.step())):
                with contextlib.suppress(gp.OutOfMemoryError):
                    take()
    finally:
        gp.memory.set_limit(0)
    assert [*tokens, *sampled] == whole
    while len(batch) > 0:
        pieces += batch.step()
    assert [each.token for each in pieces] == greedy


def test_drawn_texts_are_those_that_the_model_draws_alone(model):
    how = [
        {"temperature": 1.0, "seed": 3},
        {},
        {"temperature": 0.7, "top_k": 9, "seed": 4, "logprobs": 2},
        {"repetition_penalty": 1.4, "presence_penalty": 0.2},
        {"temperature": 2.0, "top_p": 0.8, "min_p": 0.01, "seed": 5, "frequency_penalty": 0.5},
    ]
    batch = model.batch(3)
    numbers = [batch.add(PROMPTS[i], max_tokens=10, stop_tokens=[], **how[i]) for i in range(5)]
    tokens, logprobs = {number: [] for number in numbers}, {number: [] for number in numbers}
    while len(batch) > 0:
        for each in batch.step():
            tokens[each.text].append(each.token)
            logprobs[each.text].append(each.logprobs)
    for i, number in enumerate(numbers):
        alone = model.generate(PROMPTS[i], max_tokens=10, stop_tokens=[], **how[i])
        assert tokens[number] == alone.tokens
        assert [each for each in logprobs[number] if each is not None] == alone.logprobs
    with pytest.raises(TypeError, match=r"add\(\) got an unexpected keyword argument 'speculate'"):
        batch.add(PROMPTS[0], speculate="ngram")
    assert model.generate_batch(PROMPTS, max_tokens=5, temperature=1.0, seed=1) == [
        model.generate(prompt, max_tokens=5, temperature=1.0, seed=1) for prompt in PROMPTS
    ]


def test_a_signal_may_cancel_a_text_at_its_own_step(model):
    # A handler runs between two lines of the thread that is at the step: here where it decodes a piece.
    batch = model.batch(2)
    decode, cancelled = model.tokenizer.decode, []

    def interrupted(*arguments, **more):
        if not cancelled:
            cancelled.append(batch.cancel(numbers[1]))
        return decode(*arguments, **more)

    model.tokenizer.decode = interrupted
    try:
        numbers = [batch.add(PROMPTS[0], max_tokens=9, stop_tokens=[]) for _ in range(2)]
    finally:
        del model.tokenizer.decode
    pieces = []
    while len(batch) > 0:
        pieces += batch.step()
    assert cancelled == [True]
    assert [each.text for each in pieces].count(numbers[0]) == 9


def test_counting_texts_holds_up_no_other_thread(model):
    batch = model.batch(4)
    for prompt in PROMPTS * 3:
        batch.add(prompt, max_tokens=20, stop_tokens=[])
    counts = []

    def count():
        while counts == [] or counts[-1] > 0:
            counts.append(len(batch))

    thread = threading.Thread(target=count)
    thread.start()
    while len(batch) > 0:
        batch.step()
    thread.join(60)
    assert not thread.is_alive()
    assert max(counts) > 0
