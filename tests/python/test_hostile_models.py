"""Model files changed at random: each loads and writes, or gives a typed error, and nothing is lost."""

import gc
import json
import random
import shutil

import pytest

import pygpukit as gp
from support import DATA

pytest.importorskip("tokenizers", reason="pip install tokenizers jinja2")

FOLDERS = [
    path.parent for group in ("llama", "models") for path in sorted((DATA / group).glob("*/config.json"))
]
GGUFS = sorted((DATA / "gguf").glob("tiny*.gguf"))
VALUES = [
    *(None, True, False, 0, 1, -1, 2, 7, 255, 1 << 14, 1 << 28, 2**31, 2**63 - 1, 2**63, -(2**63)),
    *(1e308, 1e-320, float("nan"), float("inf"), -1.5, "", "x", "silu", "\ud800", "a" * 10_000),
    *([], [1], [None], ["full_attention"], [[[[]]]], {}, {"rope_type": "yarn", "factor": 1e30}),
    *({"rope_type": "longrope", "short_factor": [1], "long_factor": []}, {"quant_method": "gptq"}),
    *({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4},),
]
KEYS = [
    *("rope_scaling", "rope_parameters", "quantization_config", "layer_types", "sliding_window", "head_dim"),
    *("num_experts", "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step", "text_config"),
    *("mlp_only_layers", "partial_rotary_factor", "eos_token_id", "vocab_size", "rope_local_base_freq"),
]


def changed_json(value, rng, top=True):
    """The same with one thing in it changed, left out, doubled or put in."""
    if isinstance(value, dict) and value:
        value, key = dict(value), rng.choice(list(value))
        kind = rng.randrange(4)
        if kind == 0:
            value[key] = changed_json(value[key], rng, top=False)
        elif kind == 1:
            value[key] = rng.choice(VALUES)
        elif kind == 2:
            del value[key]
        else:
            value[rng.choice(KEYS if top else ["id", "content"])] = rng.choice(VALUES)
        return value
    if isinstance(value, list) and value:
        value, at = list(value), rng.randrange(len(value))
        value[at : at + 1] = rng.choice(
            [[], [value[at]] * 2, [rng.choice(VALUES)], [changed_json(value[at], rng, top=False)]]
        )
        return value
    return rng.choice(VALUES)


def changed_bytes(data, rng):
    """Some bytes others, a part twice, or cut short."""
    data, at = bytearray(data), rng.randrange(min(len(data), 4000))
    kind = rng.randrange(4)
    if kind == 0:
        del data[at:]
    elif kind == 1:
        data[at:at] = data[at : at + rng.randrange(1, 40)]
    else:
        for _ in range(kind):
            data[rng.randrange(min(len(data), 4000))] = rng.choice([0, 127, 128, 255])
    return bytes(data)


def changed_model(folder, rng):
    """A model of the test data in `folder`, one of its files changed."""
    if rng.random() < 0.25:
        path = folder / "model.gguf"
        path.write_bytes(changed_bytes(rng.choice(GGUFS).read_bytes(), rng))
        return path
    model = shutil.copytree(rng.choice(FOLDERS), folder / "model", ignore=shutil.ignore_patterns("*.npz"))
    path = rng.choice([model / "config.json", *sorted(model.iterdir())])
    if path.suffix == ".json" and rng.random() < 0.8:
        path.write_text(json.dumps(changed_json(json.loads(path.read_text()), rng)))
    else:
        path.write_bytes(changed_bytes(path.read_bytes(), rng))
    return model


def write_texts(model):
    prompt = [token % model.config["vocab_size"] for token in (1, 2, 3)]
    assert len(list(model.stream_tokens(prompt, max_tokens=2, stop_tokens=[]))) == 2
    list(model.stream_tokens(prompt, max_tokens=2, temperature=1.0, seed=1, logprobs=2))
    list(model.stream_tokens(prompt, max_tokens=3, speculate="jacobi"))
    with model.batch(2) as batch:
        batch.add(prompt, max_tokens=2)
        batch.step()
    if model._tokenizer is not None:
        model.generate("Hello \u00e9", max_tokens=2)
        model.chat([{"role": "user", "content": "Hi"}], max_tokens=2)


@pytest.mark.parametrize("seed", range(8))
def test_files_that_were_changed(tmp_path, seed):
    rng = random.Random(seed)
    gc.collect()
    gp._native._transfer_drain(None)
    live, outcomes = gp.memory.stats()["live_bytes"], set()
    for attempt in range(60):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        path = changed_model(folder, rng)
        how = {"dtype": rng.choice(["float32", "bfloat16"]), "quantize": rng.choice([None, None, "int8"])}
        try:
            with gp.llm.load(path, max_length=rng.choice([None, 16]), **how) as model:
                write_texts(model)
                outcomes.add(None)
        except (gp.FileFormatError, gp.UnsupportedError, gp.InvalidValueError, gp.InvalidTypeError) as reason:
            outcomes.add(type(reason))
        shutil.rmtree(folder)
    gc.collect()
    gp._native._transfer_drain(None)
    assert gp.memory.stats()["live_bytes"] == live
    assert {None, gp.FileFormatError} <= outcomes
