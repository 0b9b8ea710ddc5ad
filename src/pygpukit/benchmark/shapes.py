"""Products of real models: x (m, k) times a weight (n, k), frozen so that records can be compared.

m is the tokens of a step: a few when decoding, up to thousands in a prompt; 1500 frames are Whisper's window.
"""

from __future__ import annotations

from typing import NamedTuple


class Product(NamedTuple):
    model: str
    layer: str
    m: int
    n: int
    k: int


_LAYERS = {
    "Llama-8B": {
        "qkv": (6144, 4096, (1, 16, 128, 2048, 8192)),
        "out": (4096, 4096, (1, 64, 512, 2048)),
        "gate and up": (28672, 4096, (1, 8, 128, 1024, 4096)),
        "down": (4096, 14336, (1, 16, 256, 2048, 8192)),
        "vocabulary": (128256, 4096, (1, 8, 64)),
    },
    "Qwen-7B": {
        "qkv": (4608, 3584, (1, 32, 256, 1024, 4096)),
        "out": (3584, 3584, (2, 128, 1024, 8192)),
        "gate and up": (37888, 3584, (1, 16, 64, 512, 2048)),
        "down": (3584, 18944, (4, 32, 512, 1024, 4096)),
        "vocabulary": (152064, 3584, (1, 4, 32)),
    },
    "Whisper-large": {
        "qkv": (3840, 1280, (1, 8, 1500, 6000)),
        "out": (1280, 1280, (1, 8, 1500, 6000)),
        "up": (5120, 1280, (1, 1500, 6000)),
        "down": (1280, 5120, (1, 1500, 6000)),
        "vocabulary": (51866, 1280, (1, 8)),
    },
}

PRODUCTS = tuple(
    Product(model, layer, m, n, k)
    for model, layers in _LAYERS.items()
    for layer, (n, k, rows) in layers.items()
    for m in rows
)

# A step of decoding at batch 1, whose time is that of reading the weight.
DECODE = (
    Product("Llama-8B", "up", 1, 14336, 4096),
    *(
        Product(model, layer, 1, n, k)
        for model, layers in _LAYERS.items()
        for layer, (n, k, _) in layers.items()
    ),
)
