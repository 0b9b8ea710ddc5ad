"""Language models of real shapes with random weights: what decoding costs does not depend on them."""

from __future__ import annotations

import math
from typing import Any

import pygpukit as gp
from pygpukit.llm import LanguageModel, from_arrays

from .draws import Draw

CONFIGS: dict[str, dict[str, Any]] = {
    "TinyLlama-1.1B": {
        "model_type": "llama",
        "vocab_size": 32000,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "max_position_embeddings": 4096,
    },
    "SmolLM2-135M": {
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 4096,
    },
    "Qwen2.5-7B": {
        "model_type": "qwen2",
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 4096,
        "rope_theta": 1e6,
    },
}


def make(
    name: str,
    dtype: str = "bfloat16",
    max_length: int | None = None,
    quantize: str | None = None,
    counts: bool = False,
    weights: str | None = None,
) -> LanguageModel:
    """A model of that shape, the same in every run.

    weights: the dtype that its weights are rounded to, where that is not its own.
    counts: after token v it chooses v + 1, by far: its layers do all their work, and change little.
    """
    config, weights = CONFIGS[name], weights or dtype
    draw = Draw(seed=1)
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    d = hidden // config["num_attention_heads"]
    kv, wide = d * config["num_key_value_heads"], config["intermediate_size"]
    biased = config["model_type"] == "qwen2"
    arrays: dict[str, gp.Array] = {}
    added = 1e-3 if counts else 1.0  # beside an embedding of 1 / sqrt(hidden) an element

    def matrix(key: str, rows: int, columns: int, bias: bool = False, scale: float = 1.0) -> None:
        arrays[f"{key}.weight"] = draw.normal(rows, columns, dtype=weights, scale=scale / math.sqrt(columns))
        if bias:
            arrays[f"{key}.bias"] = draw.normal(rows, dtype=weights, scale=0.1)

    matrix("model.embed_tokens", config["vocab_size"], hidden)
    for i in range(layers):
        layer = f"model.layers.{i}"
        matrix(f"{layer}.self_attn.q_proj", hidden, hidden, biased)
        matrix(f"{layer}.self_attn.k_proj", kv, hidden, biased)
        matrix(f"{layer}.self_attn.v_proj", kv, hidden, biased)
        matrix(f"{layer}.self_attn.o_proj", hidden, hidden, scale=added)
        matrix(f"{layer}.mlp.gate_proj", wide, hidden)
        matrix(f"{layer}.mlp.up_proj", wide, hidden)
        matrix(f"{layer}.mlp.down_proj", hidden, wide, scale=added)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            arrays[f"{layer}.{norm}.weight"] = gp.ones(hidden, weights)
    arrays["model.norm.weight"] = gp.ones(hidden, weights)
    if counts:
        embedding = arrays["model.embed_tokens.weight"]
        arrays["lm_head.weight"] = gp.concat([embedding[-1:], embedding[:-1]])
    else:
        matrix("lm_head", config["vocab_size"], hidden)
    return from_arrays(config, arrays, dtype, max_length=max_length, quantize=quantize)
