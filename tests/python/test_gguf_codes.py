"""GGUF models keep their blocks: the same logits as of the dequantised weights, in less memory."""

import numpy as np
import pytest

import gguf_writer
import pygpukit as gp
from support import relative_norm

HIDDEN, WIDE, LAYERS, HEADS, KV, VOCAB = 256, 512, 2, 4, 2, 300
CONFIG = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
# Of q, k, v, out, gate, up, down, the embedding and the head (None: the embedding), as llama.cpp mixes them.
MIXES = {
    "Q4_0": ("Q4_0",) * 7 + ("Q8_0", None),
    "Q4_K_M": ("Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q6_K"),
    "Q5_K_M": ("Q5_K", "Q5_K", "Q6_K", "Q5_K", "Q5_K", "Q5_K", "Q6_K", "Q5_K", "Q6_K"),
    "all": ("Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q5_0", "Q4_1"),
}


def model_file(path, mix):
    rng = np.random.default_rng(1)
    tensors = []

    def matrix(name, kind, rows, columns):
        blocks = gguf_writer.random_blocks(kind, rows, columns, rng)
        tensors.append((f"{name}.weight", (rows, columns), kind, blocks))

    def norm(name):
        tensors.append((f"{name}.weight", (HIDDEN,), "F32", 1 + 0.2 * rng.standard_normal(HIDDEN)))

    d = HIDDEN // HEADS
    q, k, v, out, gate, up, down, embedding, head = mix
    matrix("token_embd", embedding, VOCAB, HIDDEN)
    for i in range(LAYERS):
        norm(f"blk.{i}.attn_norm")
        matrix(f"blk.{i}.attn_q", q, HIDDEN, HIDDEN)
        matrix(f"blk.{i}.attn_k", k, KV * d, HIDDEN)
        matrix(f"blk.{i}.attn_v", v, KV * d, HIDDEN)
        matrix(f"blk.{i}.attn_output", out, HIDDEN, HIDDEN)
        norm(f"blk.{i}.ffn_norm")
        matrix(f"blk.{i}.ffn_gate", gate, WIDE, HIDDEN)
        matrix(f"blk.{i}.ffn_up", up, WIDE, HIDDEN)
        matrix(f"blk.{i}.ffn_down", down, HIDDEN, WIDE)
    norm("output_norm")
    if head is not None:
        matrix("output", head, VOCAB, HIDDEN)
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": LAYERS,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": WIDE,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV,
        "llama.context_length": 128,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
    }
    gguf_writer.write(path, metadata, tensors)


@pytest.fixture(scope="module", params=list(MIXES))
def pair(request, tmp_path_factory):
    """The model of a file, and that of its dequantised weights; the second reads them as float32."""
    path = tmp_path_factory.mktemp("gguf") / f"{request.param}.gguf"
    model_file(path, MIXES[request.param])
    file = gp.io.gguf(path)
    config = CONFIG | {"tie_word_embeddings": "output.weight" not in file}
    arrays = {name: file.load(name, "float32") for name in file}
    return path, gp.llm.load(path, "float32"), gp.llm.from_arrays(config, arrays, "float32")


PROMPTS = ([5], list(range(40, 52)), list(range(100, 140)))


def test_logits_are_those_of_the_dequantised_weights(pair):
    _, model, dense = pair
    assert model.num_parameters == dense.num_parameters
    for prompt in PROMPTS:  # of one row, of few that read codes, of many that do not
        expected = dense.score(prompt).to_numpy()
        assert np.isfinite(expected).all()
        assert expected.std() > 0.1
        assert relative_norm(model.score(prompt).to_numpy(), expected) <= 1e-5


def test_tokens_are_those_of_the_dequantised_weights(pair):
    _, model, dense = pair
    for prompt in PROMPTS:
        new, expected = (
            list(each.stream_tokens(prompt, max_tokens=24, stop_tokens=[])) for each in (model, dense)
        )
        assert new == expected


@pytest.mark.parametrize(("dtype", "bound"), [("float16", 1e-2), ("bfloat16", 6e-2)])
def test_other_dtypes(pair, dtype, bound):
    path, _, dense = pair
    model = gp.llm.load(path, dtype)
    for prompt in PROMPTS:
        assert relative_norm(model.score(prompt).to_numpy(), dense.score(prompt).to_numpy()) <= bound


def test_quantize_takes_the_place_of_blocks(pair):
    path, model, _ = pair
    coarse = gp.llm.load(path, "float32", quantize="int4").score(PROMPTS[1]).to_numpy()
    error = relative_norm(coarse, model.score(PROMPTS[1]).to_numpy())
    assert 1e-3 < error < 0.9
