"""Logits and greedy tokens of tests/data/models, one of each family, against transformers."""

import json

import numpy as np
import pytest

import pygpukit as gp
from support import DATA, check_decoding, check_greedy_tokens, relative_norm

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
    assert types == {
        *("mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "gpt2")
    }


def test_logits(named):
    _, model, expected = named
    for i in range(3):
        logits = model.score(expected[f"prompt_{i}"]).to_numpy()
        assert relative_norm(logits, expected[f"logits_{i}"]) <= 1e-5


def test_greedy_tokens_are_identical(named):
    _, model, expected = named
    check_greedy_tokens(model, expected)


def test_decoding_gives_the_logits_of_scoring(named):
    _, model, expected = named
    check_decoding(model, expected["prompt_2"].tolist())


def median_error(a, b):
    """Of the tokens' relative errors: where experts are chosen, rounding turns a near tie to another one."""
    return np.median(np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1))


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_is_as_near_as_transformers_own(name):
    model = load(name, "bfloat16")
    expected = reference(name)
    distance = median_error if name in ("mixtral", "qwen3_moe") else relative_norm
    ours = theirs = 0.0
    for i in range(3):
        logits = model.score(expected[f"prompt_{i}"]).to_numpy()
        ours = max(ours, distance(logits, expected[f"logits_{i}"]))
        theirs = max(theirs, distance(expected[f"logits_bf16_{i}"], expected[f"logits_{i}"]))
    assert ours <= 2 * theirs


@pytest.mark.parametrize("name", ["gemma2", "gpt2", "mistral_window", "qwen3"])
def test_a_float8_cache_takes_less_and_stays_near(name):
    folder, expected = DATA / "models" / name, reference(name)
    model = gp.llm.load(folder, dtype="bfloat16", cache_dtype="float8_e4m3")
    assert model.cache_dtype is gp.float8_e4m3
    assert 2 * model.cache_bytes == load(name, "bfloat16").cache_bytes
    # Half a step of 3 bits is 6 %; how much of it comes through is the models' own.
    logits = model.score(expected["prompt_2"]).to_numpy()
    assert relative_norm(logits, expected["logits_2"]) <= 0.12
    check_decoding(model, expected["prompt_2"].tolist())


def test_a_cache_of_another_dtype_is_refused():
    folder = DATA / "models" / "qwen3"
    for dtype in ("float16", "float8_e5m2", "int8"):
        with pytest.raises(gp.InvalidTypeError, match="cache_dtype"):
            gp.llm.load(folder, dtype="bfloat16", cache_dtype=dtype)


def test_a_config_says_what_it_is(named):
    name, model, _ = named
    config = json.loads((DATA / "models" / name / "config.json").read_text())
    assert model.config["model_type"] == config["model_type"]
    assert model.config["num_layers"] == 3
    weights = gp.io.safetensors(DATA / "models" / name)
    assert model.num_parameters == sum(int(np.prod(weights.info(each).shape)) for each in weights)


def dequantized(folder, format, head_format):
    """The checkpoint's arrays, its matrices as their codes say them."""
    file = gp.io.safetensors(folder)
    arrays = {}
    for name in file:
        array = arrays[name] = file[name].astype("float32")
        router = name.endswith((".mlp.gate.weight", ".block_sparse_moe.gate.weight"))
        of_layer = name.startswith("model.layers.") and array.ndim == 2 and not router
        if of_layer or name == "lm_head.weight":
            arrays[name] = gp.nn.quantize(array, format if of_layer else head_format).dequantize()
    return json.loads((folder / "config.json").read_text()), arrays


@pytest.mark.parametrize("name", ["qwen3", "mixtral", "qwen3_moe"])
@pytest.mark.parametrize(("format", "head"), [("int8", "int8"), ("int4", "int8"), ("fp8", "fp8")])
def test_quantized_models_are_those_of_their_codes(name, format, head):
    folder = DATA / "models" / name
    prompt = reference(name)["prompt_2"]
    exact = gp.llm.from_arrays(*dequantized(folder, format, head), dtype="float32")
    model = gp.llm.load(folder, dtype="float32", quantize=format)
    logits = model.score(prompt).to_numpy()
    assert relative_norm(logits, exact.score(prompt).to_numpy()) <= 1e-5
    new = list(model.stream_tokens(prompt, max_tokens=20, stop_tokens=[]))
    assert new == list(exact.stream_tokens(prompt, max_tokens=20, stop_tokens=[]))
    # An expert chosen otherwise changes a token's logits as a whole.
    error = median_error(logits, reference(name)["logits_2"])
    assert error <= {"int8": 0.05 if name == "qwen3" else 0.1, "fp8": 0.2, "int4": 0.9}[format]


def test_from_arrays_is_the_model_of_the_file():
    folder = DATA / "models" / "gpt2"
    file = gp.io.safetensors(folder)
    config = json.loads((folder / "config.json").read_text())
    model = gp.llm.from_arrays(config, {name: file[name] for name in file}, dtype="float32")
    prompt = reference("gpt2")["prompt_1"]
    assert np.array_equal(model.score(prompt).to_numpy(), load("gpt2", "float32").score(prompt).to_numpy())
    with pytest.raises(gp.FileFormatError, match="transformer.wte.weight|wte.weight"):
        gp.llm.from_arrays(config, {}, dtype="float32")
    with pytest.raises(gp.InvalidTypeError, match="arrays"):
        gp.llm.from_arrays(config, {"wte.weight": [1.0]})
    with pytest.raises(gp.InvalidValueError, match="int8"):
        gp.llm.load(folder, quantize="int7")


def test_experts_in_one_array_each_are_those_of_single_ones():
    folder = DATA / "models" / "mixtral"
    file = gp.io.safetensors(folder)
    arrays = {name: file[name] for name in file}
    for i in range(3):
        single, whole = f"model.layers.{i}.block_sparse_moe.experts", f"model.layers.{i}.mlp.experts"
        taken = {
            part: [arrays.pop(f"{single}.{e}.{part}.weight") for e in range(5)] for part in ("w1", "w2", "w3")
        }
        both = [gp.concat([gate, up]) for gate, up in zip(taken["w1"], taken["w3"], strict=True)]
        arrays[f"{whole}.gate_up_proj"] = gp.concat([each.reshape(1, *each.shape) for each in both])
        arrays[f"{whole}.down_proj"] = gp.concat([each.reshape(1, *each.shape) for each in taken["w2"]])
    config = json.loads((folder / "config.json").read_text())
    prompt = reference("mixtral")["prompt_2"]
    model = gp.llm.from_arrays(config, arrays, dtype="float32")
    assert np.array_equal(model.score(prompt).to_numpy(), load("mixtral", "float32").score(prompt).to_numpy())
    coarse = gp.llm.from_arrays(config, arrays, dtype="float32", quantize="int8").score(prompt).to_numpy()
    assert np.array_equal(
        coarse, gp.llm.load(folder, dtype="float32", quantize="int8").score(prompt).to_numpy()
    )


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_part_of_gemma3_that_writes_is_taken_from_a_model_that_sees(prefix):
    folder = DATA / "models" / "gemma3"
    file = gp.io.safetensors(folder)
    arrays = {prefix + name.removeprefix("model."): file[name] for name in file}
    beside = prefix.removesuffix("language_model.") if prefix.startswith("model.") else ""
    arrays[f"{beside}vision_tower.vision_model.embeddings.patch_embedding.bias"] = gp.zeros((3,))
    arrays[f"{beside}multi_modal_projector.mm_input_projection_weight"] = gp.zeros((3, 4))
    text = json.loads((folder / "config.json").read_text())
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 3}}
    model = gp.llm.from_arrays(config, arrays, dtype="float32")
    assert model.config["model_type"] == "gemma3_text"
    prompt = reference("gemma3")["prompt_2"]
    assert np.array_equal(model.score(prompt).to_numpy(), load("gemma3", "float32").score(prompt).to_numpy())
    # What is neither the text's nor known to be beside it is not left out silently.
    with pytest.raises(gp.FileFormatError, match="audio_tower"):
        gp.llm.from_arrays(config, arrays | {"audio_tower.weight": gp.zeros((3,))}, dtype="float32")
    for wrong in ([], "text"):
        with pytest.raises(gp.FileFormatError, match="text_config"):
            gp.llm.from_arrays(config | {"text_config": wrong}, arrays, dtype="float32")
    with pytest.raises(gp.UnsupportedError, match="one of llama.*gemma3_text"):
        gp.llm.from_arrays({"model_type": "gemma3"}, arrays, dtype="float32")


@pytest.mark.parametrize(
    ("family", "size"), [("mixtral", "intermediate_size"), ("qwen3_moe", "moe_intermediate_size")]
)
@pytest.mark.parametrize("quantize", [None, "int4"])
def test_no_memory_is_taken_for_experts_that_the_file_does_not_have(family, size, quantize):
    file = gp.io.safetensors(DATA / "models" / family)
    arrays = {name: file[name] for name in file}
    config = json.loads((DATA / "models" / family / "config.json").read_text())
    peak = gp.memory.stats()["peak_live_bytes"]
    with pytest.raises(gp.FileFormatError, match="experts.*expected shape"):
        gp.llm.from_arrays(config | {size: 1 << 24}, arrays, dtype="float32", quantize=quantize)
    assert gp.memory.stats()["peak_live_bytes"] < peak + (1 << 20)


def test_names_of_llama_cpp_are_those_of_families_that_it_is_read_of():
    config = json.loads((DATA / "models" / "mistral_window" / "config.json").read_text())
    with pytest.raises(gp.FileFormatError, match="embed_tokens"):
        gp.llm.from_arrays(config, {"token_embd.weight": gp.zeros((3, 4))}, dtype="float32")
