"""The benchmark of language models: trial runs, and whether its errors tell right from wrong."""

import json

import pytest

import pygpukit as gp
from pygpukit.benchmark import __main__ as command
from pygpukit.benchmark import decode, random_models
from pygpukit.benchmark._measure import Row
from support import DATA


def test_decoding_on_the_host_runs(tmp_path, monkeypatch):
    small = {"vocab_size": 300, "num_hidden_layers": 2}
    monkeypatch.setitem(
        random_models.CONFIGS, "SmolLM2-135M", {**random_models.CONFIGS["SmolLM2-135M"], **small}
    )
    path, before = tmp_path / "record.json", gp.device()
    assert command.main(["--quick", "--decode", "SmolLM2-135M", "--save", str(path)]) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert row["name"] == "decode SmolLM2-135M shape int4, batch 1, host"
    assert row["value"] > 0
    assert 0 < row["error"] < 1e-4
    assert gp.device() is before


def test_decoding_and_loading_run(tmp_path, monkeypatch):
    small = {
        **random_models.CONFIGS["Qwen2.5-7B"],
        "vocab_size": 300,
        "hidden_size": 56,
        "num_hidden_layers": 2,
    }
    monkeypatch.setitem(random_models.CONFIGS, "Qwen2.5-7B", {**small, "intermediate_size": 64})
    path = tmp_path / "record.json"
    assert command.main(["--quick", "--decode", "Qwen2.5-7B", "--load", "--save", str(path)]) == 0
    rows = {row["name"]: row for row in json.loads(path.read_text())["rows"]}
    assert sum(name.startswith("decode") for name in rows) == 11
    assert sum(name.startswith("prefill") for name in rows) == 1
    assert all(row["value"] > 0 for row in rows.values())
    assert rows["load 4 GB safetensors"]["error"] == 0
    edits = {name: row for name, row in rows.items() if "an edit" in name}
    assert len(edits) == 4
    assert {row["error"] for row in edits.values()} == {0}
    for name, row in rows.items():
        if name not in edits and not name.startswith("load"):
            assert 1e-5 < row["error"] < 0.05, name  # of bfloat16
            assert "float32" in row["note"]


@pytest.mark.parametrize(("dtype", "least", "most"), [("float32", 1e-8, 1e-4), ("bfloat16", 1e-4, 0.1)])
def test_decoding_a_models_text_runs(tmp_path, dtype, least, most):
    pytest.importorskip("tokenizers", reason="pip install tokenizers jinja2")
    path = tmp_path / "record.json"
    folder = str(DATA / "llama" / "gqa_sharded")
    assert command.main(["--quick", "--decode", folder, "--dtype", dtype, "--save", str(path)]) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert row["name"] == f"decode {folder} {dtype}, batch 1, 16 tokens"
    assert least < row["error"] < most


def test_the_errors_of_models_tell_right_from_wrong(monkeypatch):
    small = {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96}
    small |= {"num_attention_heads": 4, "num_key_value_heads": 2, "model_type": "llama"}
    monkeypatch.setitem(random_models.CONFIGS, "small", {**small, "max_position_embeddings": 64})
    prompts = [[5, 6, 7], list(range(40)), [9]]

    def errors(exact, **how):
        model = random_models.make("small", **how)
        told = [decode._tell(model, prompts[1], 12)], decode._tell_batch(model, prompts, 12)
        assert [len(each.steps) for each in told[1]] == [12] * 3
        return [decode._distance(texts, exact) for texts in told]

    for quantize in (None, "int8"):
        how = {"quantize": quantize}
        exact = random_models.make("small", "float32", weights="bfloat16", **how)
        right = errors(exact, dtype="bfloat16", **how)
        other = errors(exact, dtype="bfloat16", quantize="int4")
        assert all(1e-4 < each < 0.05 for each in right)
        assert all(each > 4 * max(right) for each in other)
        assert all(each < 1e-4 for each in errors(exact, dtype="float32", weights="bfloat16", **how))
    assert min(errors(exact, dtype="bfloat16", counts=True)) > 0.5


def test_rows_without_room_for_their_reference_say_so():
    row = Row("decode", 1.0, "tokens/s", 1.0, 1.0)

    def no_room():
        raise gp.OutOfMemoryError("no room")

    decode._judge([(row, [])], no_room)
    assert (row.error, row.note) == (None, "no error: no room for the weights in float32")
