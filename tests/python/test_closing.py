"""Models and batches that are closed: their memory is there at once, and what is left of them says so."""

import gc
import threading

import pytest

import pygpukit as gp
from support import DATA

pytest.importorskip("tokenizers", reason="pip install tokenizers jinja2")

FOLDER = DATA / "llama" / "gqa_sharded"
CLOSED = r"expected a (model|batch) that is open, got one that was closed; load the model again"


def load():
    return gp.llm.load(FOLDER, dtype="float32")


def live_bytes():
    gc.collect()  # what earlier tests' errors held
    gp._native._transfer_drain(None)  # its thread lets go of what was loaded
    return gp.memory.stats()["live_bytes"]


def test_memory_is_given_back_though_all_is_still_held():
    before = live_bytes()
    model, draft = load(), load()
    stream = model.stream([1, 2, 3], max_tokens=20, stop_tokens=[], speculate=draft)
    next(stream)
    batch = model.batch(3)
    batch.add([4, 5], stop_tokens=[])
    batch.step()
    plain = draft.stream_tokens([1, 2], max_tokens=20, stop_tokens=[])
    next(plain)
    draft.close()
    assert model.cache_bytes > 0
    assert live_bytes() > before
    model.close()
    assert live_bytes() == before
    for use in (
        lambda: next(stream),
        lambda: next(plain),
        batch.step,
        lambda: batch.add([1]),
        lambda: batch.cancel(0),
        lambda: len(batch),
        lambda: model.generate("a"),
        lambda: model.stream("a"),
        lambda: model.chat([{"role": "user", "content": "a"}]),
        lambda: model.score([1]),
        lambda: model.batch(2),
        lambda: model.generate_batch(["a"]),
        lambda: load().generate("a", speculate=draft),
    ):
        with pytest.raises(gp.InvalidValueError, match=CLOSED):
            use()
    model.close()
    batch.close()
    assert model.closed
    assert repr(model).endswith(", closed)")
    assert (model.cache_bytes, batch.max_sequences) == (0, 3)
    assert model.decode(model.encode("text")) == "text"
    assert model.config["vocab_size"] > 0
    assert stream.finish_reason is None
    assert stream.stats["generated_tokens"] == len(stream.tokens)
    assert live_bytes() == before


def test_with_closes_at_the_end():
    before = live_bytes()
    with load() as model, model.batch(2) as batch:
        assert not model.closed
        batch.add([1, 2], max_tokens=2)
        batch.step()
        alone = model.cache_bytes
        with_batch = live_bytes()
        batch.close()
        assert with_batch - live_bytes() >= alone
        assert model.generate([1, 2], max_tokens=2, stop_tokens=[]).tokens
    assert live_bytes() == before
    with pytest.raises(ZeroDivisionError), load() as model:
        1 / 0
    assert model.closed


def test_a_model_is_closed_while_other_threads_write_its_texts():
    before = live_bytes()
    model = load()
    batch = model.batch(2)
    for _ in range(2):
        batch.add([4, 5], stop_tokens=[], on_full="slide")
    stream = model.stream([5, 6, 7], stop_tokens=[], on_full="slide")
    ends, begun = [], threading.Barrier(3)

    def go_on(step):
        step()
        begun.wait(60)
        try:
            while True:
                step()
        except gp.InvalidValueError as failure:
            ends.append(str(failure))

    threads = [threading.Thread(target=go_on, args=(step,)) for step in (lambda: next(stream), batch.step)]
    for thread in threads:
        thread.start()
    begun.wait(60)
    model.close()
    assert live_bytes() == before
    for thread in threads:
        thread.join(60)
    assert sorted(end.split(":")[0] for end in ends) == ["generate", "step"]
    assert all("got one that was closed" in end for end in ends)
