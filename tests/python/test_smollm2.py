"""SmolLM2-135M-Instruct: the first 64 greedy tokens of five prompts are transformers'."""

import json

import pytest

import pygpukit as gp
from support import DATA
from test_tokenizer import smollm2

REFERENCE = json.loads((DATA / "smollm2_greedy.json").read_text())["prompts"]


@pytest.fixture(scope="module")
def model():
    return gp.llm.load(smollm2(), dtype="float32", max_length=512)


@pytest.mark.parametrize("index", range(len(REFERENCE)))
def test_greedy_tokens(model, index):
    expected = REFERENCE[index]
    ids = expected["prompt_ids"]
    assert model.encode(expected["text"], add_special_tokens=False) == ids
    assert list(model.stream_tokens(ids, max_tokens=64, stop_tokens=[])) == expected["greedy_ids"]


def test_first_logits(model):
    for expected in REFERENCE:
        last = model.score(expected["prompt_ids"])[-1].to_numpy()
        for token, logit in expected["first_top5"]:
            assert last[token] == pytest.approx(logit, abs=2e-3)


def test_the_name_finds_the_model():
    smollm2()
    model = gp.llm.load("smollm2", dtype="float32", max_length=256)  # 16-bit logits tie here
    answer = model.chat([{"role": "user", "content": "What is the capital of France?"}], max_tokens=40)
    assert "Paris" in answer


def test_bfloat16_writes_sense(model):
    other = gp.llm.load(smollm2(), dtype="bfloat16", max_length=256)
    prompt = "The United States Declaration of Independence was signed in"
    assert "1776" in other.generate(prompt, max_tokens=12)
    assert model.num_parameters == other.num_parameters == 134_515_008
