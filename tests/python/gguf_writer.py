"""Writes small GGUF files of random blocks (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)."""

import struct

import numpy as np

# The format's number, elements and bytes of a block, and where its float16 stand.
BLOCKS = {
    "Q4_0": (2, 32, 18, (0,)),
    "Q4_1": (3, 32, 20, (0, 2)),
    "Q5_0": (6, 32, 22, (0,)),
    "Q5_1": (7, 32, 24, (0, 2)),
    "Q8_0": (8, 32, 34, (0,)),
    "Q4_K": (12, 256, 144, (0, 2)),
    "Q5_K": (13, 256, 176, (0, 2)),
    "Q6_K": (14, 256, 210, (208,)),
}
# What a block's float16 are, about, for weights of a standard deviation of 1: scale, then minimum.
UNITS = {
    "Q4_0": (0.22,),
    "Q4_1": (0.22, -1.6),
    "Q5_0": (0.11,),
    "Q5_1": (0.11, -1.7),
    "Q8_0": (0.0135,),
    "Q4_K": (0.006, 0.05),
    "Q5_K": (0.003, 0.05),
    "Q6_K": (0.0007,),
}
_UINT32, _FLOAT32, _STRING = 4, 6, 8


def random_blocks(kind, rows, columns, rng):
    _, elements, size, halves = BLOCKS[kind]
    blocks = rng.integers(0, 256, (rows * columns // elements, size), np.uint8)
    for at, unit in zip(halves, UNITS[kind], strict=True):
        values = unit / np.sqrt(columns) * rng.uniform(0.8, 1.2, len(blocks))
        blocks[:, at : at + 2] = values.astype(np.float16).view(np.uint8).reshape(-1, 2)
    return blocks.tobytes()


def write(path, metadata, tensors):
    """tensors: name, shape as NumPy has it, and the kind of blocks with their bytes or a float32 array."""

    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def entry(value):
        if isinstance(value, str):
            return struct.pack("<I", _STRING) + text(value)
        kind, code = (_UINT32, "<I") if isinstance(value, int) else (_FLOAT32, "<f")
        return struct.pack("<I", kind) + struct.pack(code, value)

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(text(key) + entry(value) for key, value in metadata.items())
    data = b""
    for name, shape, kind, content in tensors:
        number = 0 if kind == "F32" else BLOCKS[kind][0]
        head += text(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", extent) for extent in reversed(shape))
        head += struct.pack("<IQ", number, len(data))
        raw = content if isinstance(content, bytes) else content.astype(np.float32).tobytes()
        data += raw + bytes(-len(raw) % 32)
    path.write_bytes(head + bytes(-len(head) % 32) + data)
