"""Model files: safetensors and GGUF, read lazily.

    file = gp.io.safetensors("model.safetensors")    # or a folder with an index and shards
    weight = file["model.norm.weight"]               # now it is read, to the current device

Files are checked when they are opened: sizes, offsets and counts that do not fit give FileFormatError.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from ._native import Array, Device, DType, InvalidTypeError, _TensorFile


class TensorInfo(NamedTuple):
    """What a file says of a tensor."""

    shape: tuple[int, ...]
    dtype: DType  # of the array that it becomes; float32 for quantised ones
    stored: str  # the type's name in the file: "BF16", "Q4_1"
    nbytes: int  # in the file


class TensorFile(Mapping[str, Array]):
    """The tensors of a file (or of a set of shards) by name. Each access reads one, as a read-only array."""

    def __init__(self, native: _TensorFile) -> None:
        self._native = native
        self._names = dict.fromkeys(native.names)

    @property
    def path(self) -> str:
        """The file, or the folder of shards."""
        return self._native.path

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """GGUF: typed values by key. safetensors: the strings of `__metadata__`."""
        return self._native.metadata()

    def info(self, name: str) -> TensorInfo:
        """Shape, dtype and stored type without reading the tensor."""
        self._check(name)
        return TensorInfo(*self._native.describe(name))

    def load(
        self, name: str, dtype: DType | str | type | None = None, device: Device | str | None = None
    ) -> Array:
        """A read-only array with the tensor's elements; quantised ones are dequantised.

        dtype: a floating one for floating and quantised tensors. Default: the tensor's own, float32 of
            quantised ones.
        """
        self._check(name)
        return self._native.load(name, dtype, device)

    def load_all(
        self,
        names: Iterable[str] | None = None,
        dtype: DType | str | type | None = None,
        device: Device | str | None = None,
    ) -> dict[str, Array]:
        """Several tensors by name, as load gives each, faster: their copies overlap. Default: all.

        dtype: of the floating and quantised ones. Default: each tensor's own.
        """
        if names is not None and (isinstance(names, str | bytes) or not isinstance(names, Iterable)):
            raise InvalidTypeError(
                f"load_all: argument 'names': expected several names, got {type(names).__name__}"
            )
        chosen = list(self._names if names is None else names)
        for name in chosen:
            self._check(name)
        return dict(zip(chosen, self._native.load_all(chosen, dtype, device), strict=True))

    def _check(self, name: str) -> None:
        if not isinstance(name, str) or name not in self._names:
            raise KeyError(name)

    def __getitem__(self, name: str) -> Array:
        return self.load(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"TensorFile({self.path!r}, {len(self)} tensors)"


def safetensors(path: str | os.PathLike[str]) -> TensorFile:
    """Opens a .safetensors file, or a folder that holds one or an index with its shards."""
    return TensorFile(_TensorFile.open_safetensors(_path_of("safetensors", path)))


def gguf(path: str | os.PathLike[str]) -> TensorFile:
    """Opens a GGUF file."""
    return TensorFile(_TensorFile.open_gguf(_path_of("gguf", path)))


def _path_of(call: str, path: str | os.PathLike[str]) -> str:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise InvalidTypeError(f"{call}: argument 'path': expected a path, got {type(path).__name__}")
    return text
