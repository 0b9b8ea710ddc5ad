"""Logits and greedy tokens of tests/data/models, one of each family, against transformers."""

import json

import numpy as np
import pytest

import pygpukit as gp
from support import DATA, relative_norm

MODELS = sorted(each.name for each in (DATA / "models").iterdir())


def reference(name):
    with np.load(DATA / "models" / name / "reference.npz") as file:
        return dict(file)


def load(name, dtype):
    # A context within which the short factors of longrope hold, as they do for transformers' short prompts.
    max_length = 64 if name == "mistral_longrope" else None
    return gp.llm.load(DATA / "models" / name, dtype=dtype, max_length=max_length)


@pytest.fixture(scope="module", params=MODELS)
def named(request):
    return request.param, load(request.param, "float32"), reference(request.param)


def test_every_family_is_there():
    types = {
        json.loads((DATA / "models" / name / "config.json").read_text())["model_type"] for name in MODELS
    }
    assert types == {"mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gpt2"}


def test_logits(named):
    _, model, expected = named
    for i in range(3):
        logits = model.score(expected[f"prompt_{i}"]).to_numpy()
        assert relative_norm(logits, expected[f"logits_{i}"]) <= 1e-5


def test_greedy_tokens_are_identical(named):
    _, model, expected = named
    for i in range(3):
        greedy = expected[f"greedy_{i}"].tolist()
        tokens = list(model.stream_tokens(expected[f"prompt_{i}"], max_tokens=len(greedy), stop_tokens=[]))
        assert tokens == greedy


def test_decoding_gives_the_logits_of_scoring(named):
    _, model, expected = named
    prompt = expected["prompt_2"].tolist()
    new = list(model.stream_tokens(prompt, max_tokens=8, stop_tokens=[]))
    logits = model.score([*prompt, *new]).to_numpy()
    assert logits[len(prompt) - 1 : -1].argmax(1).tolist() == new


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_is_as_near_as_transformers_own(name):
    model = load(name, "bfloat16")
    expected = reference(name)
    ours = theirs = 0.0
    for i in range(3):
        logits = model.score(expected[f"prompt_{i}"]).to_numpy()
        ours = max(ours, relative_norm(logits, expected[f"logits_{i}"]))
        theirs = max(theirs, relative_norm(expected[f"logits_bf16_{i}"], expected[f"logits_{i}"]))
    assert ours <= 2 * theirs


def test_a_config_says_what_it_is(named):
    name, model, _ = named
    config = json.loads((DATA / "models" / name / "config.json").read_text())
    assert model.config["model_type"] == config["model_type"]
    assert model.config["num_layers"] == 3
    weights = gp.io.safetensors(DATA / "models" / name)
    assert model.num_parameters == sum(int(np.prod(weights.info(each).shape)) for each in weights)
