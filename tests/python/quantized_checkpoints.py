"""Writes tiny checkpoints of codes as AWQ, GPTQ, compressed-tensors and fp8 lay them out.

Each writer takes a weight (n, k) of float32 and gives the tensors that stand beside a module's name, and the
weight that they stand for, computed from the same scales and zero points in NumPy:

  awq                  github.com/casper-hansen/AutoAWQ, awq/modules/linear/gemm.py, from_linear
  gptq                 github.com/AutoGPTQ/AutoGPTQ, auto_gptq/nn_modules/qlinear/qlinear_cuda.py, pack
  compressed-tensors   github.com/vllm-project/compressed-tensors, compressors/quantized_compressors/
                       pack_quantized.py (pack_to_int32), naive_quantized.py
  fp8                  github.com/deepseek-ai/DeepSeek-V3, inference/kernel.py (weight_dequant)
"""

import json
import struct

import ml_dtypes
import numpy as np

_STORED = {
    "float32": "F32",
    "float16": "F16",
    "float8_e4m3fn": "F8_E4M3",
    "int8": "I8",
    "int32": "I32",
    "int64": "I64",
}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def _affine(weight, bits, group, symmetric):
    """Codes 0 to 2^bits - 1 with scales (float16) and whole zero points of each group along k."""
    n, k = weight.shape
    top = 2**bits - 1
    groups = weight.reshape(n, k // group, group)
    if symmetric:
        zeros = np.full(groups.shape[:2], 2 ** (bits - 1), np.int64)
        scales = np.abs(groups).max(-1) / (2 ** (bits - 1) - 1)
    else:
        low, high = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
        scales = (high - low) / top
        zeros = np.clip(np.rint(-low / scales), 0, top).astype(np.int64)
    scales = scales.astype(np.float16)
    steps = scales.astype(np.float32)[..., None]
    codes = np.clip(np.rint(groups / steps) + zeros[..., None], 0, top).astype(np.int64)
    exact = ((codes - zeros[..., None]) * steps).astype(np.float32)
    return codes.reshape(n, k), scales, zeros, exact.reshape(n, k)


def _packed(codes, bits, axis, order=None):
    """Of each 32 / bits codes along the axis a word, from the lowest bit."""
    codes = np.moveaxis(codes, axis, -1)
    count = 32 // bits
    codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % count)])
    parts = codes.reshape(*codes.shape[:-1], -1, count)
    words = np.zeros(parts.shape[:-1], np.uint64)
    for i in range(count):
        words |= parts[..., i if order is None else order[i]].astype(np.uint64) << np.uint64(bits * i)
    return np.ascontiguousarray(np.moveaxis(words.astype(np.uint32).view(np.int32), -1, axis))


def awq(weight, group=32):
    codes, scales, zeros, exact = _affine(weight, 4, group, symmetric=False)
    tensors = {
        "qweight": _packed(codes.T, 4, 1, AWQ_ORDER),
        "qzeros": _packed(zeros.T, 4, 1, AWQ_ORDER),
        "scales": np.ascontiguousarray(scales.T),
    }
    return tensors, exact


def gptq(weight, bits=4, group=32, symmetric=True, order=None, version=1):
    """order: of act-order, the columns in the order in which they were quantised."""
    order = np.arange(weight.shape[1]) if order is None else order
    codes, scales, zeros, exact = _affine(weight[:, order], bits, group, symmetric)
    back = np.argsort(order)
    stored = (zeros - (1 if version == 1 else 0)) % 2**bits
    tensors = {
        "qweight": _packed(codes[:, back].T, bits, 0),
        "qzeros": _packed(stored.T, bits, 1),
        "scales": np.ascontiguousarray(scales.T),
        "g_idx": (back // group).astype(np.int32),
    }
    return tensors, exact[:, back]


def compressed_packed(weight, bits=4, group=32, symmetric=True):
    group = group or weight.shape[1]
    codes, scales, zeros, exact = _affine(weight, bits, group, symmetric)
    tensors = {
        "weight_packed": _packed(codes, bits, 1),
        "weight_scale": scales,
        "weight_shape": np.array(weight.shape, np.int64),
    }
    if not symmetric:
        tensors["weight_zero_point"] = _packed(zeros, bits, 0)
    return tensors, exact


def compressed_int8(weight, symmetric=True):
    codes, scales, zeros, exact = _affine(weight, 8, weight.shape[1], symmetric)
    tensors = {"weight": (codes - 128).astype(np.int8), "weight_scale": scales}
    if not symmetric:
        tensors["weight_zero_point"] = (zeros - 128).astype(np.int8)
    return tensors, exact


def _float8(weight, scales):
    """scales: one for each element."""
    codes = np.clip(weight / scales, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    return codes, (codes.astype(np.float32) * scales).astype(np.float32)


def compressed_float8(weight, per_tensor=False):
    largest = np.abs(weight).max() if per_tensor else np.abs(weight).max(1, keepdims=True)
    scales = np.atleast_1d(np.asarray(largest / 448, np.float32))
    codes, exact = _float8(weight, np.broadcast_to(scales, weight.shape))
    return {"weight": codes, "weight_scale": scales}, exact


def float8_blocks(weight, name, block=(64, 64)):
    n, k = weight.shape
    down, across = -(-n // block[0]), -(-k // block[1])
    scales = np.empty((down, across), np.float32)
    for i in range(down):
        for j in range(across):
            part = weight[i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]]
            scales[i, j] = np.abs(part).max() / 448
    wide = np.repeat(np.repeat(scales, block[0], 0), block[1], 1)[:n, :k]
    codes, exact = _float8(weight, wide)
    return {"weight": codes, name: scales}, exact


def save_safetensors(path, tensors):
    """https://github.com/huggingface/safetensors, "Format"."""
    header, data = {}, b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": _STORED[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
