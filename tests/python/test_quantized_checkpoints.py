"""Models of checkpoints whose matrices are codes, against those of the dequantised weights."""

import json

import numpy as np
import pytest

import pygpukit as gp
import quantized_checkpoints as layouts
from support import relative_norm

HIDDEN, WIDE, LAYERS, HEADS, KV, VOCAB = 128, 192, 2, 4, 2, 131
CONFIG = {
    "model_type": "qwen2",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
MATRICES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.v_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (WIDE, HIDDEN),
    "mlp.up_proj": (WIDE, HIDDEN),
    "mlp.down_proj": (HIDDEN, WIDE),
}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}


def compressed(format, **weights):
    weights = {
        "num_bits": 4,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "actorder": None,
    } | weights
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    }


def shuffled(weight, seed=5):
    return np.random.default_rng(seed).permutation(weight.shape[1])


# name -> (quantization_config, what writes a matrix)
CHECKPOINTS = {
    "awq": (AWQ, layouts.awq),
    "gptq": (GPTQ, layouts.gptq),
    "gptq_zeros": (GPTQ | {"sym": False}, lambda w: layouts.gptq(w, symmetric=False)),
    "gptq_v2": (
        GPTQ | {"checkpoint_format": "gptq_v2"},
        lambda w: layouts.gptq(w, symmetric=False, version=2),
    ),
    "gptq_8": (GPTQ | {"bits": 8, "group_size": 64}, lambda w: layouts.gptq(w, 8, 64)),
    "gptq_8_zeros": (GPTQ | {"bits": 8}, lambda w: layouts.gptq(w, 8, symmetric=False)),
    "gptq_row": (GPTQ | {"group_size": -1}, lambda w: layouts.gptq(w, group=w.shape[1])),
    "gptq_act_order": (GPTQ | {"desc_act": True}, lambda w: layouts.gptq(w, order=shuffled(w))),
    "gptq_act_orders": (  # q, k and v in orders of their own
        GPTQ | {"desc_act": True},
        lambda w: layouts.gptq(w, order=shuffled(w, w.shape[0]), symmetric=False),
    ),
    "packed": (compressed("pack-quantized"), layouts.compressed_packed),
    "packed_zeros": (compressed("pack-quantized"), lambda w: layouts.compressed_packed(w, symmetric=False)),
    "packed_8": (
        compressed("pack-quantized", num_bits=8, strategy="channel"),
        lambda w: layouts.compressed_packed(w, 8, None),
    ),
    "packed_row": (
        compressed("pack-quantized", strategy="channel"),
        lambda w: layouts.compressed_packed(w, 4, None),
    ),
    "int8": (compressed("int-quantized", num_bits=8, strategy="channel"), layouts.compressed_int8),
    "int8_zeros": (
        compressed("int-quantized", num_bits=8, strategy="channel"),
        lambda w: layouts.compressed_int8(w, symmetric=False),
    ),
    "float8": (
        compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
        layouts.compressed_float8,
    ),
    "float8_tensor": (
        compressed("float-quantized", num_bits=8, type="float", strategy="tensor"),
        lambda w: layouts.compressed_float8(w, per_tensor=True),
    ),
    "float8_blocks": (
        compressed("float-quantized", num_bits=8, type="float", strategy="block", block_structure=[64, 64]),
        lambda w: layouts.float8_blocks(w, "weight_scale"),
    ),
    "fp8": (
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [64, 64]},
        lambda w: layouts.float8_blocks(w, "weight_scale_inv"),
    ),
}


def weights():
    """The parts of a model that stay as they are, and its matrices."""
    rng = np.random.default_rng(2)

    def normal(*shape, scale=1.0):
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    plain = {
        "model.embed_tokens.weight": normal(VOCAB, HIDDEN),
        "model.norm.weight": 1 + normal(HIDDEN, scale=0.2),
        "lm_head.weight": normal(VOCAB, HIDDEN, scale=HIDDEN**-0.5),
    }
    matrices = {}
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            plain[f"{layer}.{name}.weight"] = 1 + normal(HIDDEN, scale=0.2)
        for name, (n, k) in MATRICES.items():
            matrices[f"{layer}.{name}"] = normal(n, k, scale=k**-0.5)
            if name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
                plain[f"{layer}.{name}.bias"] = normal(n, scale=0.1)
    return plain, matrices


def write(folder, quantization, tensors):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": quantization}))
    layouts.save_safetensors(folder / "model.safetensors", tensors)
    return folder


def checkpoint(folder, quantization, layout):
    plain, matrices = weights()
    stored, exact = dict(plain), dict(plain)
    for module, weight in matrices.items():
        tensors, exact[f"{module}.weight"] = layout(weight)
        stored |= {f"{module}.{name}": each for name, each in tensors.items()}
    return write(folder, quantization, stored), exact


PROMPTS = ([5], list(range(40, 49)), list(range(60, 100)))


@pytest.mark.parametrize("name", list(CHECKPOINTS))
def test_models_are_those_of_the_dequantised_weights(name, tmp_path):
    folder, exact = checkpoint(tmp_path, *CHECKPOINTS[name])
    dense = gp.llm.from_arrays(CONFIG, {key: gp.asarray(each) for key, each in exact.items()}, "float32")
    model = gp.llm.load(folder, "float32")
    assert model.num_parameters == dense.num_parameters
    half = gp.llm.load(folder, "float16")
    for prompt in PROMPTS:
        expected = dense.score(prompt).to_numpy()
        assert expected.std() > 0.1
        assert relative_norm(model.score(prompt).to_numpy(), expected) <= 1e-5
        assert relative_norm(half.score(prompt).to_numpy(), expected) <= 1e-2
    new, known = (
        list(each.stream_tokens(PROMPTS[1], max_tokens=20, stop_tokens=[])) for each in (model, dense)
    )
    assert new == known


def test_quantize_takes_the_place_of_codes(tmp_path):
    folder, exact = checkpoint(tmp_path, *CHECKPOINTS["gptq_act_order"])
    arrays = {key: gp.asarray(each) for key, each in exact.items()}
    again = gp.llm.load(folder, "float32", quantize="int8").score(PROMPTS[1]).to_numpy()
    expected = gp.llm.from_arrays(CONFIG, arrays, "float32", quantize="int8").score(PROMPTS[1]).to_numpy()
    assert relative_norm(again, expected) <= 1e-5


def test_biases_of_zeros_are_left_out(tmp_path):
    quantization, layout = CHECKPOINTS["gptq"]

    def with_bias(fill):
        def write_one(weight):
            tensors, exact = layout(weight)
            return tensors | {"bias": np.full(weight.shape[0], fill, np.float16)}, exact

        return write_one

    folder, _ = checkpoint(tmp_path / "zeros", quantization, with_bias(0))
    gp.llm.load(folder, "float32")
    folder, _ = checkpoint(tmp_path / "ones", quantization, with_bias(1))
    with pytest.raises(gp.FileFormatError, match="bias"):
        gp.llm.load(folder, "float32")


@pytest.mark.parametrize(
    ("quantization", "part"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method"),
        ({}, "quant_method"),
        (AWQ | {"bits": 3}, "bits"),
        (AWQ | {"version": "gemv"}, "version"),
        (AWQ | {"group_size": None}, "group_size"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format"),
        (GPTQ | {"bits": "4"}, "bits"),
        (GPTQ | {"dynamic": {"-:lm_head": {}}}, "dynamic"),
        (compressed("marlin-24"), "format"),
        (compressed("pack-quantized", num_bits=2), "num_bits"),
        (compressed("pack-quantized", actorder="group"), "actorder"),
        (compressed("pack-quantized") | {"config_groups": None}, "config_groups"),
        (compressed("pack-quantized") | {"sparsity_config": {"format": "sparse-24"}}, "sparsity_config"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt"),
    ],
)
def test_what_is_not_known_is_an_error(quantization, part, tmp_path):
    folder, _ = checkpoint(tmp_path, quantization, layouts.awq)
    with pytest.raises(gp.UnsupportedError, match=part):
        gp.llm.load(folder, "float32")


DAMAGES = {
    "scales": lambda t: t | {"scales": t["scales"][:, :-8]},
    "qzeros": lambda t: t | {"qzeros": t["qzeros"].astype(np.int64)},
    "qweight": lambda t: t | {"qweight": t["qweight"][:-4]},
    "g_idx": lambda t: t | {"g_idx": t["g_idx"] * 0},
    "groups": lambda t: t | {"g_idx": t["g_idx"] + 100},
    "missing": lambda t: {key: each for key, each in t.items() if key != "qzeros"},
    "order": lambda t: {key: each for key, each in t.items() if key != "g_idx"},
}


@pytest.mark.parametrize("name", list(DAMAGES))
def test_tensors_that_do_not_fit_are_an_error(name, tmp_path):
    def damaged(weight):
        tensors, exact = layouts.gptq(weight)
        return {key: np.ascontiguousarray(each) for key, each in DAMAGES[name](tensors).items()}, exact

    folder, _ = checkpoint(tmp_path, GPTQ | {"desc_act": True}, damaged)
    with pytest.raises(gp.FileFormatError):
        gp.llm.load(folder, "float32")


@pytest.mark.parametrize("block", [[2**63 - 1, 64], [64, 2**63 - 1], [2**63 - 1, 2**63 - 1]])
def test_blocks_of_any_size_want_a_scale(block, tmp_path):
    def damaged(weight):
        tensors, exact = layouts.float8_blocks(weight, "weight_scale_inv")
        # What sizes that overflow would have made of the scales' shape.
        shape = [0 if size > 64 else 2 for size in block]
        return tensors | {"weight_scale_inv": np.zeros(shape, np.float32)}, exact

    folder, _ = checkpoint(tmp_path, CHECKPOINTS["fp8"][0] | {"weight_block_size": block}, damaged)
    with pytest.raises(gp.FileFormatError, match="weight_scale_inv"):
        gp.llm.load(folder, "float32")


def test_numbers_that_are_none_are_an_error(tmp_path):
    def damaged(weight):
        tensors, exact = layouts.compressed_float8(weight)
        tensors["weight"].view(np.uint8)[3, 5] = 0xFF
        return tensors, exact

    folder, _ = checkpoint(tmp_path, CHECKPOINTS["float8"][0], damaged)
    with pytest.raises(gp.FileFormatError, match="NaN"):
        gp.llm.load(folder, "float32")
