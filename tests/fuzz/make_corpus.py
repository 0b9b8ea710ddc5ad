"""Make the seeds of the fuzz targets: small valid files of each format, in tests/fuzz/corpus.

Needs nothing but Python:  python tests/fuzz/make_corpus.py
"""

import json
import struct
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def write(target, name, data):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def safetensors(tensors, metadata=None):
    header = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, dtype, shape, size in tensors:
        offsets = [len(data), len(data) + size]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += bytes(range(size))
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def key(name, kind, value):
    return string(name) + struct.pack("<I", kind) + value


def gguf(keys, tensors, data=b"", alignment=32):
    file = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys)
    for name, extents, kind, offset in tensors:
        shape = struct.pack(f"<I{len(extents)}Q", len(extents), *extents)
        file += string(name) + shape + struct.pack("<IQ", kind, offset)
    return file + bytes(-len(file) % alignment) + data


def make_json():
    texts = (
        '{"a":[1,-2.5e3,true,false,null],"b":{"c":"\\u00e9\\ud83d\\ude00\\n"}}',
        '"\\"\\\\\\/\\b\\f\\n\\r\\t \u00e9\u20ac"',
        "[[[[]]],{},0,-0,1.5,1e10,9223372036854775807,18446744073709551615]",
        '{"metadata":{"total_size":8},"weight_map":{"w":"model-00001-of-00002.safetensors"}}',
    )
    for i, text in enumerate(texts):
        write("json_fuzz", f"{i}.json", text.encode())


def make_safetensors():
    write("safetensors_fuzz", "empty", safetensors([]))
    write("safetensors_fuzz", "two", safetensors([("a", "F32", [2, 1], 8), ("b", "BOOL", [], 1)]))
    some = [("h", "BF16", [3], 6), ("e", "F8_E4M3", [0, 4], 0), ("i", "I64", [1], 8)]
    write("safetensors_fuzz", "metadata", safetensors(some, {"format": "pt"}))


def make_gguf():
    numbers = "0B 1b 2H 3h 4I 5i 6f 7B 10Q 11q 12d"  # value type and its form in struct
    scalars = [key(form, int(form[:-1]), struct.pack("<" + form[-1], 1)) for form in numbers.split()]
    tokens = struct.pack("<IQ", 8, 2) + string("a") + string("")
    scores = struct.pack("<IQ2f", 6, 2, 1.0, -1.0)
    nested = struct.pack("<IQ", 9, 1) + struct.pack("<IQB", 0, 1, 7)
    arrays = [key("tokens", 9, tokens), key("scores", 9, scores), key("nested", 9, nested)]
    write("gguf_fuzz", "empty", gguf([], []))
    write("gguf_fuzz", "metadata", gguf([key("s", 8, string("llama")), *scalars, *arrays], []))
    aligned = [key("general.alignment", 4, struct.pack("<I", 8))]
    plain = [("w", (3, 2), 0, 0), ("h", (), 1, 24)]
    write("gguf_fuzz", "plain", gguf(aligned, plain, bytes(26), 8))
    sizes = {2: 18, 3: 20, 6: 22, 7: 24, 8: 34, 10: 84, 11: 110, 12: 144, 13: 176, 14: 210}
    for kind, size in sizes.items():
        tensor = [("q", (32 if kind < 10 else 256, 1), kind, 0)]
        write("gguf_fuzz", f"type{kind}", gguf([], tensor, bytes(range(size))))


if __name__ == "__main__":
    make_json()
    make_safetensors()
    make_gguf()
