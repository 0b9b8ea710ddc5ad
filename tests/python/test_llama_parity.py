"""Logits and greedy tokens of the tiny models of tests/data, against transformers and float64."""

import json
import shutil

import numpy as np
import pytest

import pygpukit as gp
from support import DATA, check_decoding, check_greedy_tokens, relative_norm

MODELS = ["gqa_sharded", "tied_headdim", "llama3_rope", "bf16_gqa"]
GGUF = {"tiny_llama": "gqa_sharded", "tiny_tied": "tied_headdim", "tiny_llama3": "llama3_rope"}
# 16-bit weights and activations; the bound is on the whole matrix of logits.
HALF_BOUNDS = {"bfloat16": 0.05, "float16": 0.01}


def source(name):
    return DATA / "gguf" / f"{name}.gguf" if name in GGUF else DATA / "llama" / name


def reference(name):
    with np.load(DATA / "llama" / GGUF.get(name, name) / "reference.npz") as file:
        return dict(file)


@pytest.fixture(scope="module", params=[*MODELS, *GGUF])
def named(request, tmp_path_factory):
    path = source(request.param)
    if path.is_dir():  # without a tokenizer, as transformers chose among all ids
        whole = tmp_path_factory.mktemp("model") / request.param
        path = shutil.copytree(path, whole, ignore=shutil.ignore_patterns("tokenizer*"))
    return request.param, gp.llm.load(path, dtype="float32"), reference(request.param)


def test_logits(named):
    _, model, expected = named
    for i in range(3):
        logits = model.score(expected[f"prompt_{i}"])
        assert logits.dtype == gp.float32
        assert relative_norm(logits.to_numpy(), expected[f"logits64_{i}"]) <= 1e-5


def test_greedy_tokens_are_identical(named):
    _, model, expected = named
    check_greedy_tokens(model, expected)


def test_decoding_gives_the_logits_of_scoring(named):
    _, model, expected = named
    check_decoding(model, expected["prompt_2"].tolist())


@pytest.mark.parametrize("dtype", sorted(HALF_BOUNDS))
@pytest.mark.parametrize("name", MODELS)
def test_16_bit_weights(name, dtype):
    model = gp.llm.load(source(name), dtype=dtype)
    assert model.dtype == dtype
    expected = reference(name)
    for i in range(3):
        logits = model.score(expected[f"prompt_{i}"])
        assert logits.dtype == gp.float32
        assert relative_norm(logits.to_numpy(), expected[f"logits64_{i}"]) <= HALF_BOUNDS[dtype]


def test_stop_tokens_come_from_every_file():
    for name in MODELS:
        folder = source(name)
        model = gp.llm.load(folder, dtype="float32")
        config = json.loads((folder / "config.json").read_text())
        generation = json.loads((folder / "generation_config.json").read_text())
        assert {config["eos_token_id"], *generation["eos_token_id"]} <= set(model.stop_tokens)


def test_configuration():
    model = gp.llm.load(source("gqa_sharded"), dtype="float32", max_length=64)
    config = json.loads((source("gqa_sharded") / "config.json").read_text())
    assert model.config["hidden_size"] == config["hidden_size"]
    assert model.config["num_layers"] == config["num_hidden_layers"]
    assert model.config["num_kv_heads"] == config["num_key_value_heads"]
    assert model.config["rope_theta"] == config["rope_parameters"]["rope_theta"]
    assert model.max_length == 64
    assert model.device == gp.device()
    weights = gp.io.safetensors(source("gqa_sharded"))
    assert model.num_parameters == sum(int(np.prod(weights.info(name).shape)) for name in weights)
