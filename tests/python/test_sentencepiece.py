"""Tokenizers of SentencePiece's kind from GGUF metadata, against the sentencepiece library."""

import json

import pytest

import pygpukit as gp
from pygpukit.llm import tokenizer
from support import DATA

CASES = json.loads((DATA / "sentencepiece.json").read_text())


def metadata(case, **changes):
    entries = CASES[case]["metadata"] | changes
    return {f"tokenizer.ggml.{key}": value for key, value in entries.items() if value is not None}


@pytest.fixture(scope="module", params=list(CASES))
def built(request):
    return request.param, tokenizer.from_gguf(metadata(request.param), "x")


def test_ids_are_sentencepieces(built):
    name, tokens = built
    for text, ids in zip(CASES[name]["texts"], CASES[name]["ids"], strict=True):
        assert tokens.encode(text, add_special_tokens=False) == ids, text


def test_text_comes_back(built):
    name, tokens = built
    for text, ids in zip(CASES[name]["texts"], CASES[name]["ids"], strict=True):
        if (
            "\u2581" in text or name == "no_bytes"
        ):  # these are not to be told from a space, and may be unknown
            continue
        assert tokens.decode(ids) == text


def test_special_tokens(built):
    name, tokens = built
    assert tokens.special == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert tokens.eos_ids == (2,)
    ids = tokens.encode("ab", add_special_tokens=False)
    assert tokens.encode("ab") == [1, *ids]  # where the file says nothing
    assert tokenizer.from_gguf(metadata(name, add_bos_token=False), "x").encode("ab") == ids
    both = tokenizer.from_gguf(metadata(name, add_eos_token=True), "x")
    assert both.encode("ab") == [1, *ids, 2]
    # As llama.cpp does it, a text begins anew after one.
    assert tokens.encode("<s>ab</s>", add_special_tokens=False) == [1, *ids, 2]


@pytest.mark.parametrize(
    ("changes", "kind", "part"),
    [
        ({"scores": None}, gp.FileFormatError, "scores"),
        ({"scores": [0.5]}, gp.FileFormatError, "scores"),
        (
            {"scores": [float("nan")] * len(CASES["prefix"]["metadata"]["tokens"])},
            gp.FileFormatError,
            "finite",
        ),
        ({"token_type": [1]}, gp.FileFormatError, "token_type"),
        ({"tokens": ["a"] * len(CASES["prefix"]["metadata"]["tokens"])}, gp.FileFormatError, "once"),
        ({"precompiled_charsmap": [1]}, gp.UnsupportedError, "normalisation"),
        ({"remove_extra_whitespaces": True}, gp.UnsupportedError, "normalisation"),
        ({"model": "t5"}, gp.UnsupportedError, "'t5'"),
        ({"add_bos_token": 1}, gp.FileFormatError, "add_bos_token: expected true or false, got int"),
        ({"add_space_prefix": "yes"}, gp.FileFormatError, "add_space_prefix"),
        ({"eos_token_id": "2"}, gp.FileFormatError, "eos_token_id: expected an integer, got str"),
        (
            {"token_type": [1.0] * len(CASES["prefix"]["metadata"]["tokens"])},
            gp.FileFormatError,
            "token_type: expected integers",
        ),
    ],
)
def test_bad_metadata(changes, kind, part):
    with pytest.raises(kind, match=part):
        tokenizer.from_gguf(metadata("prefix", **changes), "model.gguf")


def test_own_tokens_with_spaces_want_no_prefix():
    with pytest.raises(gp.UnsupportedError, match="user-defined"):
        tokenizer.from_gguf(metadata("own_tokens", add_space_prefix=True), "model.gguf")


@pytest.mark.parametrize("text", ["$A", "$B:1", "x:1", "bos"])
def test_any_text_may_be_the_first_token(text):
    tokens = list(CASES["prefix"]["metadata"]["tokens"])
    tokens[1] = text
    assert tokenizer.from_gguf(metadata("prefix", tokens=tokens), "x").encode("ab")[0] == 1
    assert tokenizer.from_gguf(metadata("prefix", tokens=tokens), "x").encode("ab").count(1) == 1


def test_a_huge_token_is_no_work():
    tokens = list(CASES["prefix"]["metadata"]["tokens"])
    tokens[-1] = "ab" * 1_000_000  # all its cuts would be 2e12 bytes
    built = tokenizer.from_gguf(metadata("prefix", tokens=tokens), "x")
    assert built.token_id(tokens[-1]) == len(tokens) - 1
