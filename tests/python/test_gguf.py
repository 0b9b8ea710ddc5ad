import struct

import numpy as np
import pytest

import pygpukit as gp
from support import DATA, assert_equal, np_dtype

QUANTS = DATA / "gguf" / "quants.gguf"


@pytest.fixture(scope="module")
def reference():
    with np.load(DATA / "gguf" / "quants.npz") as file:
        return dict(file)


def test_every_type_dequantises_to_ggmls_values(reference):
    file = gp.io.gguf(QUANTS)
    assert set(file) == set(reference)
    for name, expected in reference.items():
        assert_equal(file.load(name, "float32"), expected)


def test_default_dtypes():
    file = gp.io.gguf(QUANTS)
    assert file["q4_k"].dtype == gp.float32
    assert file["bf16"].dtype == gp.bfloat16
    assert file["f16"].dtype == gp.float16
    assert file.info("q4_1").stored == "Q4_1"
    assert file.info("q4_1").shape == (3, 512)
    assert file.info("q4_1").nbytes == 3 * 512 // 32 * 20


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes_round_once(reference, dtype):
    file = gp.io.gguf(QUANTS)
    for name, expected in reference.items():
        with np.errstate(over="ignore"):
            rounded = expected.astype(np_dtype(dtype))
        assert_equal(file.load(name, dtype), rounded)


def test_tensors_are_read_only():
    assert not gp.io.gguf(QUANTS)["q8_0"].writable


def test_metadata():
    metadata = gp.io.gguf(DATA / "gguf" / "tiny_llama.gguf").metadata
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.block_count"] == 3
    assert isinstance(metadata["llama.attention.layer_norm_rms_epsilon"], float)
    assert isinstance(metadata["tokenizer.ggml.tokens"], list)
    assert all(isinstance(token, str) for token in metadata["tokenizer.ggml.tokens"])
    assert set(map(type, metadata["tokenizer.ggml.token_type"])) == {int}


@pytest.mark.parametrize(
    ("contents", "part"),
    [
        (b"", "bad.gguf"),
        (b"GGUX" + bytes(20), "bad.gguf"),
        (b"GGUF" + struct.pack("<IQQ", 99, 0, 0), "version"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "bad.gguf"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "bad.gguf"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**62), "bad.gguf"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IQ", 8, 2) + b"a\xff", "UTF-8"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"\xff" + struct.pack("<IQ", 8, 0), "UTF-8"),
    ],
)
def test_bad_files(tmp_path, contents, part):
    path = tmp_path / "bad.gguf"
    path.write_bytes(contents)
    with pytest.raises(gp.FileFormatError, match=part):
        gp.io.gguf(path)


def test_truncated_files(tmp_path):
    whole = QUANTS.read_bytes()
    path = tmp_path / "cut.gguf"
    for length in [*range(4, 400, 33), len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(gp.FileFormatError, match="cut.gguf"):
            gp.io.gguf(path)
