"""A text alone takes steps of one launch each, texts of a batch go op by op: they are the same texts."""

import numpy as np
import pytest

import pygpukit as gp

HIDDEN, WIDE, LAYERS, HEADS, KV, VOCAB = 192, 320, 2, 4, 2, 131
PROMPTS = [[5, 17, 99, 3], [64, 2, 81], [7]]


def arrays(seed=3):
    rng = np.random.default_rng(seed)
    head, kv = HEADS * 64, KV * 64
    shapes = {"model.embed_tokens": (VOCAB, HIDDEN), "lm_head": (VOCAB, HIDDEN)}
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        shapes |= {
            at + "self_attn.q_proj": (head, HIDDEN),
            at + "self_attn.k_proj": (kv, HIDDEN),
            at + "self_attn.v_proj": (kv, HIDDEN),
            at + "self_attn.o_proj": (HIDDEN, head),
            at + "mlp.gate_proj": (WIDE, HIDDEN),
            at + "mlp.up_proj": (WIDE, HIDDEN),
            at + "mlp.down_proj": (HIDDEN, WIDE),
        }
    values = {
        name + ".weight": rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[1]))
        for name, shape in shapes.items()
    }
    norms = [f"model.layers.{i}.{name}" for i in range(LAYERS) for name in ("input", "post_attention")]
    for name in [*(each + "_layernorm" for each in norms), "model.norm"]:
        values[name + ".weight"] = 1 + np.float32(0.1) * rng.standard_normal(HIDDEN, np.float32)
    return {name: gp.asarray(value) for name, value in values.items()}


CONFIG = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "head_dim": 64,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize("quantize", [None, "int8", "int4", "fp8"])
def test_texts_are_those_of_a_batch(quantize):
    model = gp.llm.from_arrays(CONFIG, arrays(), "float16", quantize=quantize)
    alone = [list(model.stream_tokens(prompt, max_tokens=16, stop_tokens=[])) for prompt in PROMPTS]
    batch = model.batch(len(PROMPTS))
    numbers = [batch.add(prompt, max_tokens=16, stop_tokens=[]) for prompt in PROMPTS]
    together = {number: [] for number in numbers}
    while len(batch) > 0:
        for each in batch.step():
            together[each.text].append(each.token)
    assert list(together.values()) == alone
    assert all(len(set(tokens)) > 3 for tokens in alone)
