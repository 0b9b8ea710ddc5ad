import gc
import threading

import numpy as np
import pytest

import pygpukit as gp
from support import DATA

pytest.importorskip("tokenizers", reason="pip install tokenizers jinja2")

FOLDER = DATA / "llama" / "gqa_sharded"


@pytest.fixture(scope="module")
def model():
    return gp.llm.load(FOLDER, dtype="float32")


def test_the_same_seed_gives_the_same_text(model):
    arguments = {"max_tokens": 40, "temperature": 1.0, "stop_tokens": []}
    first = list(model.stream_tokens([5, 6, 7], seed=1, **arguments))
    assert first == list(model.stream_tokens([5, 6, 7], seed=1, **arguments))
    others = [list(model.stream_tokens([5, 6, 7], seed=seed, **arguments)) for seed in range(2, 6)]
    assert all(other != first for other in others)
    for seed in (2**64, 1 - 2**64):  # not those of 0 and 1
        with pytest.raises(gp.InvalidValueError, match=r"'seed': expected a whole number of 64 bits"):
            model.stream_tokens([5, 6, 7], seed=seed, **arguments)
    unseeded = {tuple(model.stream_tokens([5, 6, 7], **arguments)) for _ in range(3)}
    assert len(unseeded) == 3


def test_zero_temperature_is_greedy(model):
    greedy = list(model.stream_tokens([5, 6, 7], max_tokens=20, stop_tokens=[]))
    for seed in (1, 2):
        assert greedy == list(model.stream_tokens([5, 6, 7], max_tokens=20, stop_tokens=[], seed=seed))
    top_1 = model.stream_tokens([5, 6, 7], max_tokens=20, stop_tokens=[], temperature=2.0, top_k=1)
    assert greedy == list(top_1)
    top_p = model.stream_tokens([5, 6, 7], max_tokens=20, stop_tokens=[], temperature=2.0, top_p=1e-9)
    assert greedy == list(top_p)


def test_draws_follow_the_probabilities(model):
    prompt, temperature = [9, 8], 0.7
    logits = model.score(prompt)[-1].to_numpy().astype(np.float64) / temperature
    probability = np.exp(logits - logits.max())
    probability /= probability.sum()
    draws = 1500
    counts = np.zeros(len(logits))
    for seed in range(draws):
        (token,) = model.stream_tokens(
            prompt, max_tokens=1, temperature=temperature, seed=seed, stop_tokens=[]
        )
        counts[token] += 1
    likely = np.argsort(-probability)[:5]
    for token in likely:
        sigma = np.sqrt(draws * probability[token] * (1 - probability[token]))
        assert abs(counts[token] - draws * probability[token]) <= 5 * sigma + 1


def test_top_k_and_top_p_limit_the_draws(model):
    prompt = [9, 8]
    order = np.argsort(-model.score(prompt)[-1].to_numpy())
    drawn = {
        next(iter(model.stream_tokens(prompt, max_tokens=1, temperature=5.0, top_k=3, seed=s)))
        for s in range(200)
    }
    assert drawn == set(order[:3].tolist())


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10_000}, "max_tokens|context"),
    ],
)
def test_bad_arguments(model, arguments, part):
    with pytest.raises(gp.InvalidValueError, match=part):
        model.stream_tokens([1, 2], **arguments)


def test_bad_prompts(model):
    with pytest.raises(gp.InvalidValueError):
        model.stream_tokens([])
    with pytest.raises(gp.InvalidValueError):
        model.stream_tokens([100_000])
    with pytest.raises(gp.InvalidValueError):
        model.stream_tokens([-1])
    for prompt in (None, [1.5], ["1"], [True], {1, 2}, {1: 2}, b"1", np.array(1), np.array([True])):
        with pytest.raises(gp.InvalidTypeError, match="generate: argument 'prompt'"):
            model.stream_tokens(prompt)
    with pytest.raises(gp.InvalidValueError, match="score: argument 'prompt'"):
        model.score([100_000])
    assert list(model.stream_tokens([1], max_tokens=2, stop_tokens=[]))


def test_stop_tokens_end_the_text(model):
    tokens = list(model.stream_tokens([5, 6, 7], max_tokens=30, stop_tokens=[]))
    last = tokens[10]
    stopped = model.stream_tokens([5, 6, 7], max_tokens=30, stop_tokens=[last])
    assert list(stopped) == tokens[: tokens.index(last)]
    assert stopped.finish_reason == "stop"


def test_finish_reasons(model):
    short = model.stream_tokens([5, 6, 7], max_tokens=3, stop_tokens=[])
    assert short.finish_reason == "none"
    assert len(list(short)) == 3
    assert short.finish_reason == "length"
    small = gp.llm.load(FOLDER, dtype="float32", max_length=16)
    full = small.stream_tokens([5, 6, 7], stop_tokens=[])
    tokens = list(full)
    assert full.finish_reason == "context"
    assert 13 <= len(tokens) <= 14
    with pytest.raises(gp.InvalidValueError, match="context"):
        small.stream_tokens(list(range(17)))


def test_stats(model):
    stream = model.stream("Hello there", max_tokens=10)
    assert "".join(stream) == model.decode(stream.tokens)
    stats = stream.stats
    assert stats["prompt_tokens"] == len(model.encode("Hello there"))
    assert stats["generated_tokens"] == len(stream.tokens) <= 10
    assert stats["prefill_seconds"] > 0


def test_streamed_pieces_join_to_the_text(model):
    for seed in range(5):
        arguments = {"max_tokens": 60, "temperature": 1.5, "seed": seed}
        stream = model.stream("Once", **arguments)
        pieces = list(stream)
        assert all(pieces)
        assert "".join(pieces) == model.decode(stream.tokens)
        assert "".join(pieces) == model.generate("Once", **arguments)


def test_stop_strings(model):
    whole = model.generate("Once", max_tokens=60, temperature=1.0, seed=4)
    assert len(whole) > 12
    stop = whole[8:11]
    stream = model.stream("Once", max_tokens=60, temperature=1.0, seed=4, stop=stop)
    assert "".join(stream) == whole[: whole.index(stop)]
    assert stream.finish_reason == "stop"
    assert (
        model.generate("Once", max_tokens=60, temperature=1.0, seed=4, stop=["\0never", stop])
        == whole[: whole.index(stop)]
    )


def test_a_new_text_ends_the_one_before(model):
    first = model.stream_tokens([1, 2], max_tokens=20, stop_tokens=[])
    next(first)
    second = model.stream_tokens([1, 2], max_tokens=20, stop_tokens=[])
    with pytest.raises(gp.InvalidValueError, match="one text at a time"):
        next(first)
    assert len(list(second)) == 20


def test_texts_from_several_threads_do_not_mix(model):
    expected = list(model.stream_tokens([4, 4], max_tokens=15, stop_tokens=[]))
    models = [gp.llm.load(FOLDER, dtype="float32") for _ in range(3)]
    results = {}

    def work(index):
        with gp.Stream():
            results[index] = list(models[index].stream_tokens([4, 4], max_tokens=15, stop_tokens=[]))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(results.values()) == [expected] * 3


def test_chat(model):
    messages = [{"role": "user", "content": "Hi"}]
    ids = model.chat_prompt(messages)
    assert model.decode(ids, skip_special_tokens=False) == "<|begin|>user: Hi<|end|>\nassistant: "
    assert model.chat(messages, max_tokens=5) == model.generate(ids, max_tokens=5)


def test_a_model_without_a_tokenizer():
    model = gp.llm.load(DATA / "llama" / "tied_headdim", dtype="float32")
    assert len(list(model.stream_tokens([1, 2, 3], max_tokens=4, stop_tokens=[]))) == 4
    with pytest.raises(gp.FileFormatError, match="tokenizer.json"):
        model.generate("text")


def test_what_cannot_be_loaded(tmp_path):
    with pytest.raises(gp.InvalidValueError, match="smollm2"):
        gp.llm.load("no-such-model")
    with pytest.raises(gp.FileFormatError, match="config.json"):
        gp.llm.load(tmp_path)
    with pytest.raises(gp.InvalidValueError, match="max_length"):
        gp.llm.load(FOLDER, max_length=0)
    with pytest.raises((gp.InvalidTypeError, gp.InvalidValueError)):
        gp.llm.load(FOLDER, dtype="int8")
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(gp.Error):
        gp.llm.load(tmp_path)


def test_memory_is_given_back():
    gc.collect()  # what earlier tests' errors held
    before = gp.memory.stats()["live_bytes"]
    model = gp.llm.load(FOLDER, dtype="float32")
    list(model.stream_tokens([1, 2, 3], max_tokens=4, stop_tokens=[]))
    assert gp.memory.stats()["live_bytes"] > before
    gp._native._transfer_drain(None)  # its thread lets go of what was loaded
    del model
    assert gp.memory.stats()["live_bytes"] == before


def test_penalties_are_those_of_their_definitions(model):
    prompt = [5, 6, 7, 6]
    repetition, presence, frequency = 1.3, 0.4, 0.25
    text = []
    for _ in range(12):
        logits = model.score([*prompt, *text])[-1].to_numpy().astype(np.float64)
        logits[model.config["num_tokens"] :] = -np.inf
        for token in {*prompt, *text}:
            logits[token] *= 1 / repetition if logits[token] > 0 else repetition
            logits[token] -= frequency * text.count(token) + presence * (token in text)
        text.append(int(logits.argmax()))
    tokens = model.stream_tokens(
        prompt,
        max_tokens=12,
        stop_tokens=[],
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
    )
    assert list(tokens) == text
    for bad in (
        {"repetition_penalty": 0.0},
        {"presence_penalty": float("nan")},
        {"frequency_penalty": float("inf")},
        {"min_p": 1.5},
    ):
        with pytest.raises(gp.InvalidValueError, match=next(iter(bad))):
            model.stream_tokens(prompt, **bad)


def test_logprobs_are_the_log_softmax_of_the_logits(model):
    prompt = [5, 6, 7]
    arguments = {
        "max_tokens": 12,
        "stop_tokens": [],
        "temperature": 1.3,
        "seed": 2,
        "repetition_penalty": 1.2,
    }
    text = model.generate(prompt, logprobs=4, **arguments)
    assert text == model.generate(prompt, **arguments)
    assert [each.token for each in text.logprobs] == text.tokens
    known = model.config["num_tokens"]  # padding has no part in it
    logits = model.score([*prompt, *text.tokens]).to_numpy().astype(np.float64)[len(prompt) - 1 :, :known]
    for row, each in zip(logits, text.logprobs, strict=False):
        expected = row - row.max() - np.log(np.exp(row - row.max()).sum())
        np.testing.assert_allclose(each.logprob, expected[each.token], atol=2e-5)
        assert [token for token, _ in each.best] == np.argsort(-row)[:4].tolist()
        np.testing.assert_allclose([p for _, p in each.best], np.sort(expected)[::-1][:4], atol=2e-5)
    alone = model.generate(prompt, logprobs=0, max_tokens=3, stop_tokens=[])
    assert [each.best for each in alone.logprobs] == [[]] * 3
    assert model.generate(prompt, max_tokens=3).logprobs == []
    for bad in (-1, 21):
        with pytest.raises(gp.InvalidValueError, match="logprobs"):
            model.generate(prompt, logprobs=bad)


def test_a_full_context_stops_the_text_or_slides():
    small = gp.llm.load(FOLDER, dtype="float32", max_length=24)
    prompt = list(range(3, 13))
    stopped = small.generate(prompt, stop_tokens=[])
    assert (stopped.finish_reason, len(stopped.tokens)) == ("context", 15)
    for how in ({}, {"temperature": 1.0, "seed": 5, "frequency_penalty": 0.3}):
        slid = small.generate(prompt, max_tokens=60, stop_tokens=[], on_full="slide", **how)
        assert (slid.finish_reason, len(slid.tokens)) == ("length", 60)
        assert (
            slid.tokens
            == small.generate(prompt, max_tokens=60, stop_tokens=[], on_full="slide", **how).tokens
        )
        batch = small.batch(1)
        batch.add(prompt, max_tokens=60, stop_tokens=[], on_full="slide", **how)
        assert [each.token for _ in range(60) for each in batch.step()] == slid.tokens
    # The context holds the later half of the tokens from then on.
    greedy = small.generate(prompt, max_tokens=60, stop_tokens=[], on_full="slide").tokens
    assert greedy[:15] == stopped.tokens
    assert greedy[15:28] == small.generate([*prompt, *greedy[:15]][-12:], stop_tokens=[]).tokens
    with pytest.raises(gp.InvalidValueError, match="on_full"):
        small.generate(prompt, on_full="wrap")
    with pytest.raises(gp.InvalidValueError, match="context"):
        small.generate(list(range(25)), on_full="slide")


def test_a_text_is_cancelled_from_another_thread(model):
    whole = model.generate([5, 6, 7], max_tokens=200, stop_tokens=[])
    stream = model.stream([5, 6, 7], max_tokens=200, stop_tokens=[])
    pieces = [next(stream)]
    thread = threading.Thread(target=stream.cancel)
    thread.start()
    thread.join()
    pieces += stream
    assert stream.finish_reason == "cancelled"
    assert len(stream.tokens) <= 2
    assert whole.startswith("".join(pieces))
    with pytest.raises(StopIteration):
        next(stream)
    running = model.stream([5, 6, 7], max_tokens=250, stop_tokens=[])
    taken = []
    reader = threading.Thread(target=lambda: taken.extend(running))
    reader.start()
    while not running.tokens:
        pass
    running.close()
    reader.join(30)
    assert not reader.is_alive()
    assert running.finish_reason in ("cancelled", "length")
    assert model.generate([5, 6, 7], max_tokens=200, stop_tokens=[]) == whole


def test_chat_turns_compute_what_is_new_alone(model):
    messages, kept = [{"role": "user", "content": "Hi there"}], []
    for turn in range(3):
        stream = model.stream_chat(messages, max_tokens=8, stop_tokens=[])
        answer = "".join(stream)
        kept.append(stream.stats["reused_tokens"])
        fresh = gp.llm.load(FOLDER, dtype="float32").chat(messages, max_tokens=8, stop_tokens=[])
        assert answer == fresh
        assert fresh.stats["reused_tokens"] == 0
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"and {turn}?"}]
    assert kept[0] == 0
    assert 0 < kept[1] < kept[2]
    # Another beginning, and one that is all there already.
    other = [{"role": "user", "content": "Ho"}]
    first = model.chat(other, max_tokens=5, temperature=1.0, seed=1)
    again = model.chat(other, max_tokens=5, temperature=1.0, seed=1)
    assert again == first
    assert again.stats["reused_tokens"] == again.stats["prompt_tokens"] - 1
    assert model.generate(model.chat_prompt(other), max_tokens=5).stats["reused_tokens"] == 0


def test_weights_that_are_no_numbers_are_named():
    import json

    config = json.loads((DATA / "llama" / "tied_headdim" / "config.json").read_text())
    file = gp.io.safetensors(DATA / "llama" / "tied_headdim")
    arrays = {name: gp.asarray(np.full(file[name].shape, np.nan, np.float32)) for name in file}
    broken = gp.llm.from_arrays(config, arrays, dtype="float32")
    for how in ({}, {"temperature": 1.0}, {"speculate": "jacobi"}):
        with pytest.raises(gp.InvalidValueError, match=r"NaN.*weights"):
            list(broken.stream_tokens([1, 2, 3], max_tokens=4, **how))
    batch = broken.batch(2)
    number = batch.add([1, 2])
    with pytest.raises(gp.InvalidValueError, match=rf"text {number}: .*NaN"):
        batch.step()
    assert batch.cancel(number)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.encode(5),
        lambda m: m.encode(None),
        lambda m: m.decode("12"),
        lambda m: m.decode(5),
        lambda m: m.decode([1, "a"]),
        lambda m: gp.llm.load(None),
        lambda m: gp.llm.load(5),
        lambda m: m.generate("a", max_tokens="5"),
        lambda m: m.generate("a", temperature="hot"),
        lambda m: m.generate("a", top_k=1.5),
        lambda m: m.generate("a", seed="x"),
        lambda m: m.generate("a", stop_tokens=5),
        lambda m: m.generate("a", stop_tokens="ab"),
        lambda m: m.generate("a", logprobs="2"),
        lambda m: m.generate("a", speculate=5),
        lambda m: m.generate("a", speculate="ngram", guesses=1.5),
        lambda m: m.batch("2"),
        lambda m: m.batch(2).cancel("0"),
        lambda m: m.generate_batch(["a"], max_sequences=None),
        lambda m: m.generate_batch(["a"], temperature=None),
        lambda m: m.generate(b"ab"),
        lambda m: m.generate("a", reuse="no"),
        lambda m: m.generate("a", stop=b""),
        lambda m: m.encode("a", add_special_tokens="no"),
        lambda m: m.decode([1], skip_special_tokens=0),
        lambda m: gp.llm.load(FOLDER, max_length="9"),
        lambda m: gp.llm.load(FOLDER, quantize=8),
        lambda m: gp.llm.from_arrays(None, {}),
        lambda m: gp.llm.from_arrays({"vocab_size": np.int64(5)}, {}),
        lambda m: gp.llm.from_arrays({}, ["a"]),
    ],
)
def test_arguments_of_other_kinds(model, call):
    with pytest.raises(gp.InvalidTypeError, match="argument"):
        call(model)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: gp.llm.load(""),
        lambda m: gp.llm.load("a" * 5000),
        lambda m: gp.llm.load("a\0b"),
        lambda m: m.batch(1).cancel(2**70),
        lambda m: m.generate("a", max_tokens=2**63),
        lambda m: m.generate("a", top_k=2**70),
        lambda m: m.generate("a", top_k=-1),
        lambda m: m.decode([2**40]),
        lambda m: m.decode([-1]),
        lambda m: m.generate("a", stop_tokens=[2**40]),
        lambda m: m.generate_batch(["a"], max_sequences=0),
        lambda m: m.generate("a", speculate="guess"),
        lambda m: m.generate("a", speculate="none"),
        lambda m: m.generate("a", speculate="draft_model"),
        lambda m: m.generate("a", speculate=m),
        lambda m: m.generate("a", speculate="ngram", guesses=8),
        lambda m: m.generate("a", speculate="ngram", guesses=0),
        lambda m: m.generate("a", speculate="ngram", guesses=8, max_tokens=1),
        lambda m: m.generate("a", guesses=3),
        lambda m: m.generate("a", speculate="ngram", early_layers=1),
        lambda m: m.generate("a", on_full=np.array(["stop", "slide"])),
        lambda m: m.generate("\ud800"),
        lambda m: gp.llm.load(FOLDER, max_length=2**63),
        lambda m: m.generate("a", speculate="early_layers", early_layers=99),
        lambda m: m.generate("a", speculate="early_layers", early_layers=2**80),
    ],
)
def test_arguments_out_of_range(model, call):
    with pytest.raises(gp.InvalidValueError, match="argument"):
        call(model)


@pytest.mark.parametrize("call", ["generate", "score", "batch"])
def test_nothing_is_written_in_a_capture(model, call):
    argument = {"generate": "a", "score": [1], "batch": 2}[call]
    with gp.Graph(), pytest.raises(gp.UnsupportedError, match=f"{call}: a call during a graph capture"):
        getattr(model, call)(argument)
    assert model.generate("a", max_tokens=2, stop_tokens=[]).tokens


@pytest.mark.parametrize("dtype", ["", 0, []])
def test_what_is_false_is_no_default_dtype(dtype):
    with pytest.raises(gp.InvalidTypeError, match="dtype"):
        gp.llm.load(FOLDER, dtype=dtype)


def test_the_largest_number_of_tokens_is_no_limit():
    model = gp.llm.load(FOLDER, dtype="float32", max_length=12)
    for how in ({}, {"speculate": "ngram"}):
        texts = []
        for most in (None, 2**63 - 1):
            stream = model.stream_tokens([5, 6, 7], max_tokens=most, stop_tokens=[], on_full="slide", **how)
            texts.append([next(stream) for _ in range(30)])
        assert texts[0] == texts[1]


def test_long_lists_of_a_configuration_are_read_once():
    import time

    config = {"model_type": "qwen3_moe", "vocab_size": 9, "hidden_size": 8, "intermediate_size": 8}
    config |= {"num_hidden_layers": 1 << 14, "num_attention_heads": 2, "moe_intermediate_size": 8}
    config |= {"num_experts": 4, "num_experts_per_tok": 2, "mlp_only_layers": [7] * 1_000_000}
    began = time.monotonic()
    with pytest.raises(gp.FileFormatError, match="array"):
        gp.llm.from_arrays(config, {}, dtype="float32")
    assert time.monotonic() - began < 15  # once a layer it took 45 seconds


def test_options_are_those_of_the_call(model):
    for how in ({"top_k": -1}, {"temperature": -1.0}, {"min_p": 2.0}):
        with pytest.raises(gp.InvalidValueError, match=f"generate: argument '{next(iter(how))}'"):
            model.generate([1], **how)


def test_several_threads_take_the_pieces_of_one_text(model):
    whole = model.generate("hello", max_tokens=200, stop_tokens=[])
    stream = model.stream("hello", max_tokens=200, stop_tokens=[])
    pieces, failures = [], []

    def take():
        try:
            pieces.extend(stream)
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert sum(map(len, pieces)) == len(whole)
    assert stream.tokens == whole.tokens


def test_a_text_goes_on_after_a_failure():
    model = gp.llm.load(FOLDER, dtype="float32")
    how = {"max_tokens": 60, "stop_tokens": [], "speculate": "jacobi"}
    whole = model.generate("hello", **how)
    other = gp.llm.load(FOLDER, dtype="float32")
    stream, pieces, failures = other.stream("hello", **how), [], 0
    pieces.append(next(stream))
    for attempt in range(200):
        gp.memory.set_limit(1 if attempt % 2 == 0 else None)
        try:
            pieces.append(next(stream))
        except gp.OutOfMemoryError:
            failures += 1
        except StopIteration:
            break
        finally:
            gp.memory.set_limit(None)
    assert "".join(pieces) == whole
    assert stream.tokens == whole.tokens
    assert failures > 0 or gp.device().is_cuda
    assert stream.finish_reason == "length"


def test_a_bad_eos_token_is_named(tmp_path):
    import json
    import shutil

    folder = shutil.copytree(DATA / "llama" / "tied_headdim", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    for bad in ("2", [1, None], 1.5, True, {"id": 2}):
        (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": bad}))
        with pytest.raises(gp.FileFormatError, match="eos_token_id"):
            gp.llm.load(folder, dtype="float32")
