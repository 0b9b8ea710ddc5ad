"""Rotations that GGUF metadata name: tiny models as llama.cpp's converter writes them."""

import json
import struct

import numpy as np
import pytest

import pygpukit as gp
from support import DATA, relative_norm

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def write_gguf(path, metadata, tensors):
    """Version 3, float32 tensors only; metadata of integers, floats and strings."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        out += gguf_string(key)
        if isinstance(value, str):
            out += struct.pack("<I", 8) + gguf_string(value)
        elif isinstance(value, int):
            out += struct.pack("<II", 4, value)
        else:
            out += struct.pack("<If", 6, value)
    data = b""
    for name, array in tensors.items():
        out += gguf_string(name) + struct.pack("<I", array.ndim)
        out += struct.pack(f"<{array.ndim}Q", *reversed(array.shape)) + struct.pack("<IQ", 0, len(data))
        data += array.astype(np.float32).tobytes()
        data += b"\0" * (-len(data) % 32)
    path.write_bytes(out + b"\0" * (-len(out) % 32) + data)
    return path


def gguf_name(name):
    stem, end = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, index, part = stem.split(".", 3)
        return f"blk.{index}.{NAMES[part]}.{end}"
    return f"{NAMES[stem]}.{end}"


def convert(model, path, architecture, rope, tensors=None):
    """A model of tests/data/models as a GGUF file, its rotation given by `rope` and further tensors."""
    folder = DATA / "models" / model
    config = json.loads((folder / "config.json").read_text())
    file = gp.io.safetensors(folder)
    arrays = {}
    for name in file:
        array = file[name].to_numpy()
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
        if architecture == "llama" and heads is not None:  # the rows of interleaved rotations
            parts = array.reshape(config[heads], 2, -1, array.shape[1])
            array = parts.swapaxes(1, 2).reshape(array.shape)
        arrays[gguf_name(name)] = array
    metadata = {
        "general.architecture": architecture,
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "block_count": config["num_hidden_layers"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "context_length": config["max_position_embeddings"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_parameters"]["rope_theta"],
        **{f"rope.scaling.{key}": value for key, value in rope.items()},
    }
    metadata = {
        key if key.startswith("general") else f"{architecture}.{key}": v for key, v in metadata.items()
    }
    return write_gguf(path, metadata, arrays | (tensors or {}))


LONGROPE = json.loads((DATA / "models" / "mistral_longrope" / "config.json").read_text())["rope_parameters"]
FACTORS = {
    f"rope_factors_{kind}.weight": np.array(LONGROPE[f"{kind}_factor"], np.float32)
    for kind in ("short", "long")
}
# What the converter writes: sqrt(1 + log(factor) / log(original context)).
ATTENTION_FACTOR = float(np.sqrt(1 + np.log(2) / np.log(64)))
LONG = {"type": "longrope", "original_context_length": 64, "attn_factor": ATTENTION_FACTOR}
YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 32}


@pytest.mark.parametrize(
    ("name", "architecture", "rope", "tensors", "max_length", "prompts"),
    [
        ("mistral_longrope", "llama", LONG, FACTORS, 64, (0, 1, 2)),
        ("mistral_longrope_long", "llama", LONG, FACTORS, None, (0, 1, 2)),
        ("qwen2_yarn", "qwen2", YARN, None, None, (0, 1)),  # within its window, which GGUF does not know
    ],
)
def test_logits_are_those_of_the_folder(tmp_path, name, architecture, rope, tensors, max_length, prompts):
    path = convert(name, tmp_path / "x.gguf", architecture, rope, tensors)
    model = gp.llm.load(path, dtype="float32", max_length=max_length)
    with np.load(DATA / "models" / name / "reference.npz") as expected:
        for i in prompts:
            logits = model.score(expected[f"prompt_{i}"]).to_numpy()
            assert relative_norm(logits, expected[f"logits_{i}"]) <= 1e-5


@pytest.mark.parametrize(
    ("rope", "tensors", "error", "part"),
    [
        ({"type": "su"}, None, gp.UnsupportedError, "none, linear, yarn or longrope"),
        ({}, FACTORS, gp.UnsupportedError, "rope_factors_short"),
        (YARN, FACTORS, gp.UnsupportedError, "rope_factors_short"),
        (YARN | {"yarn_ext_factor": 0.5}, None, gp.UnsupportedError, "yarn_ext_factor"),
        ({"type": "yarn"}, None, gp.FileFormatError, "factor"),
        (YARN | {"factor": -1.0}, None, gp.FileFormatError, "rope"),
        (YARN | {"factor": float("nan")}, None, gp.FileFormatError, "rope"),
        (LONG, None, gp.FileFormatError, "rope_factors_short"),
        (LONG, {k: v[:3] for k, v in FACTORS.items()}, gp.FileFormatError, "short_factor"),
        (LONG, {k: -v for k, v in FACTORS.items()}, gp.FileFormatError, "short_factor"),
        (LONG | {"attn_factor": float("inf")}, FACTORS, gp.FileFormatError, "attention_factor"),
    ],
)
def test_what_makes_no_rotation_is_an_error(tmp_path, rope, tensors, error, part):
    path = convert("mistral_longrope", tmp_path / "x.gguf", "llama", rope, tensors)
    with pytest.raises(error, match=part):
        gp.llm.load(path, dtype="float32")


def test_a_dynamic_rotation_stretches_past_the_trained_context():
    folder = DATA / "models" / "mistral_longrope"
    config = json.loads((folder / "config.json").read_text())
    file = gp.io.safetensors(folder)
    arrays, trained, theta, d = {name: file[name] for name in file}, 32, 10000.0, config["head_dim"]
    config["max_position_embeddings"] = trained
    prompt = np.random.default_rng(1).integers(3, 131, 50)

    def logits(rope, max_length, tokens=prompt, **more):
        model = gp.llm.from_arrays(
            {**config, **more, "rope_parameters": rope}, arrays, dtype="float32", max_length=max_length
        )
        return model.score(tokens).to_numpy()

    dynamic = {"rope_type": "dynamic", "rope_theta": theta, "factor": 2.0}
    base = theta * (2.0 * 50 / trained - 1.0) ** (d / (d - 2))
    plain = {"rope_type": "default", "rope_theta": base}
    stretched = logits(plain, 50, max_position_embeddings=64)
    assert relative_norm(logits(dynamic, 50), stretched) <= 1e-5
    # Within the trained context it turns as it was trained.
    short = prompt[:30]
    unstretched = logits({"rope_type": "default", "rope_theta": theta}, None, short)
    assert np.array_equal(logits(dynamic, None, short), unstretched)
    with pytest.raises(gp.InvalidValueError, match="1 to 64"):
        logits(dynamic, 65)
    with pytest.raises(gp.InvalidValueError, match="1 to 32"):
        logits(plain, 50)
