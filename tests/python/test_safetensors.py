import json
import struct

import numpy as np
import pytest

import pygpukit as gp
from support import DATA, EVERY, assert_equal, np_dtype, random_array

NAMES = {
    "bool": "BOOL",
    "bfloat16": "BF16",
    "float8_e4m3": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    **{
        f"{kind}{bits}": f"{letter}{bits}"
        for kind, letter in [("int", "I"), ("uint", "U"), ("float", "F")]
        for bits in (8, 16, 32, 64)
    },
}


def write(path, tensors, metadata=None, header=None):
    """A safetensors file by hand."""
    entries, data = {}, b""
    if metadata is not None:
        entries["__metadata__"] = metadata
    for name, (kind, array) in tensors.items():
        entries[name] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    text = json.dumps(entries).encode() if header is None else header
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


@pytest.mark.parametrize("dtype", EVERY)
def test_every_dtype(rng, tmp_path, dtype):
    host = random_array(rng, (3, 5), dtype, low=0)
    file = gp.io.safetensors(
        write(
            tmp_path / "x.safetensors",
            {"w": (NAMES[dtype], host), "s": (NAMES[dtype], host[:1, :1].reshape(()))},
        )
    )
    assert_equal(file["w"], host)
    assert_equal(file["s"], host[0, 0])
    info = file.info("w")
    assert info.shape == (3, 5)
    assert info.dtype == dtype
    assert info.stored == NAMES[dtype]
    assert info.nbytes == host.nbytes


def test_a_mapping(tmp_path):
    tensors = {name: ("F32", np.full(2, i, np.float32)) for i, name in enumerate("abc")}
    path = write(tmp_path / "x.safetensors", tensors, {"format": "pt"})
    file = gp.io.safetensors(str(path))
    assert len(file) == 3
    assert list(file) == ["a", "b", "c"]
    assert "a" in file
    assert "z" not in file
    assert 3 not in file
    assert file.metadata == {"format": "pt"}
    assert file.path == str(path)
    assert [x.tolist() for x in file.values()] == [[0, 0], [1, 1], [2, 2]]
    with pytest.raises(KeyError, match="z"):
        file["z"]
    assert "3 tensors" in repr(file)


def test_weights_are_read_only(tmp_path):
    file = gp.io.safetensors(write(tmp_path / "x.safetensors", {"w": ("F32", np.ones(3, np.float32))}))
    weight = file["w"]
    assert not weight.writable
    with pytest.raises(gp.InvalidValueError, match="read-only"):
        weight += 1
    assert (weight + 1).tolist() == [2, 2, 2]


def test_conversion_at_load(rng, tmp_path):
    host = rng.standard_normal((7, 9)).astype(np.float32)
    file = gp.io.safetensors(
        write(tmp_path / "x.safetensors", {"w": ("F32", host), "i": ("I32", np.arange(3, dtype=np.int32))})
    )
    for dtype in ("float16", "bfloat16", "float64"):
        assert_equal(file.load("w", dtype), host.astype(np_dtype(dtype)))
    with pytest.raises(gp.InvalidTypeError, match="'w'|w"):
        file.load("w", "int32")
    with pytest.raises(gp.InvalidTypeError, match="i"):
        file.load("i", "float32")


def test_shards():
    folder = DATA / "llama" / "gqa_sharded"
    file = gp.io.safetensors(folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert set(file) == set(index["weight_map"])
    assert file.info("model.norm.weight").shape == (72,)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b'{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}}',
        b'{"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}}',
        b'{"w": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}}',
        b'{"w": {"dtype": "F32", "shape": [9000000000000000000, 9000000000000000], "data_offsets": [0, 8]}}',
        b'{"w": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}',
        b'{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 80000]}}',
    ],
)
def test_bad_files(tmp_path, header):
    path = write(tmp_path / "bad.safetensors", {"w": ("F32", np.ones(2, np.float32))}, header=header)
    with pytest.raises(gp.FileFormatError, match="bad.safetensors"):
        gp.io.safetensors(path)


def test_truncated_and_missing_files(tmp_path):
    path = write(tmp_path / "x.safetensors", {"w": ("F32", np.ones(100, np.float32))})
    whole = path.read_bytes()
    for length in (0, 7, 8, 20, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(gp.FileFormatError):
            gp.io.safetensors(path)
    for missing in (tmp_path / "nothing.safetensors", tmp_path):
        with pytest.raises(gp.FileFormatError):
            gp.io.safetensors(missing)


def test_the_file_may_go_once_a_tensor_is_loaded(tmp_path):
    path = write(tmp_path / "x.safetensors", {"w": ("F32", np.arange(5, dtype=np.float32))})
    weight = gp.io.safetensors(path)["w"]
    path.unlink()
    assert weight.tolist() == [0, 1, 2, 3, 4]


def test_all_tensors_at_once(rng, tmp_path):
    tensors = {
        f"w{i}": ("F32", random_array(rng, shape, "float32"))
        for i, shape in enumerate([(3,), (0, 4), (), (700, 1000), (1000, 1000), (5, 7)] * 8)
    }
    tensors["ids"] = ("I32", np.arange(5, dtype=np.int32))
    file = gp.io.safetensors(write(tmp_path / "x.safetensors", tensors))
    loaded = file.load_all()
    assert list(loaded) == list(file)
    for name, (_, host) in tensors.items():
        assert_equal(loaded[name], host)
    with pytest.raises(gp.Error, match="read-only"):
        loaded["w0"][:] = 1
    some = file.load_all(["w3", "ids", "w0"], dtype="float16")
    assert [(name, str(array.dtype)) for name, array in some.items()] == [
        ("w3", "float16"),
        ("ids", "int32"),
        ("w0", "float16"),
    ]
    assert_equal(some["w3"], tensors["w3"][1].astype(np.float16))
    with pytest.raises(KeyError):
        file.load_all(["w0", "nothing"])
    with pytest.raises(gp.InvalidTypeError):
        file.load_all(dtype="int8")


def test_arguments_of_other_kinds(tmp_path):
    file = gp.io.safetensors(write(tmp_path / "x.safetensors", {"w": ("F32", np.ones(3, np.float32))}))
    for names in ("w", b"w", 5):
        with pytest.raises(gp.InvalidTypeError, match="load_all: argument 'names'"):
            file.load_all(names)
    for name in ([], None, b"w"):
        with pytest.raises(KeyError):
            file.load(name)
    for path in (None, 5, b"x", []):
        for call in (gp.io.safetensors, gp.io.gguf):
            with pytest.raises(gp.InvalidTypeError, match="argument 'path'"):
                call(path)


@pytest.mark.parametrize("size", [100, 3_000_000])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_file_that_is_cut_short_meanwhile(tmp_path, size, dtype):
    path = write(tmp_path / "x.safetensors", {"w": ("F32", np.ones(size, np.float32))})
    file = gp.io.safetensors(path)
    with path.open("r+b") as out:
        out.truncate(path.stat().st_size - 4)
    for load in (lambda: file.load("w", dtype), lambda: file.load_all(dtype=dtype)):
        with pytest.raises(gp.FileFormatError, match="do not change the file"):
            load()
