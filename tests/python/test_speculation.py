"""Several tokens a pass, where they can be guessed; the text is that of plain steps."""

import pytest

import pygpukit as gp
from support import DATA

MODELS = sorted(path for path in (DATA / "models").iterdir() if (path / "config.json").is_file())


@pytest.mark.parametrize("folder", MODELS, ids=lambda path: path.name)
def test_every_family_writes_the_plain_text(folder):
    model, draft = (gp.llm.load(folder, dtype="float32", max_length=60) for _ in range(2))
    vocab = int(model.config["vocab_size"])
    accepted = 0
    for prompt in ([1, 2, 3] * 6, [7], [i * 37 % vocab for i in range(25)]):
        plain = list(model.stream_tokens(prompt, stop_tokens=[]))
        for how in (
            {"speculate": "ngram"},
            {"speculate": "ngram", "guesses": 2},
            {"speculate": "jacobi"},
            {"speculate": "early_layers", "early_layers": 1},
            {"speculate": draft},
        ):
            stream = model.stream_tokens(prompt, stop_tokens=[], **how)
            assert list(stream) == plain, how
            assert stream.finish_reason == "context"
            accepted += stream.stats["accepted_tokens"]
    assert accepted > 0


def test_stats_tell_what_came_of_the_guesses():
    model = gp.llm.load(DATA / "llama" / "gqa_sharded", dtype="float32")
    draft = gp.llm.load(DATA / "llama" / "gqa_sharded", dtype="float32")
    text = model.generate([1, 2, 3], max_tokens=61, stop_tokens=[], speculate=draft, guesses=4)
    stats = text.stats
    assert stats["acceptance"] == stats["accepted_tokens"] / stats["guessed_tokens"] > 0.9
    assert stats["tokens_per_pass"] == 60 / (stats["passes"] + stats["plain_steps"]) > 3
    assert "acceptance" not in model.generate([1, 2, 3], max_tokens=4, stop_tokens=[]).stats
    assert text.tokens == model.generate([1, 2, 3], max_tokens=61, stop_tokens=[]).tokens


def test_a_draft_forgets_how_it_chose_before():
    model, draft = (gp.llm.load(DATA / "llama" / "gqa_sharded", dtype="float32") for _ in range(2))
    for how in ({"temperature": 5.0}, {"presence_penalty": 50.0}):
        draft.generate([1, 2], max_tokens=8, stop_tokens=[], **how)
        stats = model.generate([1, 2, 3], max_tokens=41, stop_tokens=[], speculate=draft).stats
        assert stats["acceptance"] > 0.9


def test_numbers_out_of_range_are_named_at_once():
    model = gp.llm.load(DATA / "llama" / "gqa_sharded", dtype="float32")
    with pytest.raises(gp.InvalidValueError, match="generate: argument 'guesses': expected 1 to 7, got 8"):
        model.stream_tokens([1], speculate="ngram", guesses=8)
    with pytest.raises(gp.InvalidValueError, match="argument 'early_layers': expected 1 to 3, got 4"):
        model.stream_tokens([1], speculate="early_layers", early_layers=4)


def test_what_excludes_speculation():
    model = gp.llm.load(DATA / "llama" / "gqa_sharded", dtype="float32")
    for how in ({"temperature": 1.0}, {"repetition_penalty": 1.1}, {"logprobs": 1}):
        with pytest.raises(gp.UnsupportedError, match="speculate"):
            model.generate([1, 2], speculate="ngram", **how)
    draft = gp.llm.load(DATA / "llama" / "gqa_sharded", dtype="float32")
    stream = model.stream_tokens([1, 2, 3], max_tokens=20, stop_tokens=[], speculate=draft)
    next(stream)
    draft.generate([1], max_tokens=1)
    with pytest.raises(gp.InvalidValueError, match="replaced"):
        next(stream)
    assert model.generate([1, 2], max_tokens=1, speculate="ngram", stop_tokens=[]).finish_reason == "length"
