"""Tokenizer: text to token ids and back, through the `tokenizers` library.

It comes from a tokenizer.json, or is built from a GGUF file's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .._native import FileFormatError, InvalidValueError, UnsupportedError
from ._optional import require

# Token types in tokenizer.ggml.token_type (llama.cpp's llama_token_type).
_CONTROL, _USER_DEFINED = 3, 4

_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


class _Scheme(NamedTuple):
    """How text is cut into words before the merges (llama.cpp's llama-vocab.cpp names them)."""

    pattern: str | None = None  # of the words; None for GPT-2's, which ByteLevel has built in
    each_digit: bool = False  # cut off before the pattern
    nfc: bool = False  # composed by Unicode first
    whole_words: bool = False  # a word that is a token needs no merges


_SCHEMES = {
    "default": _Scheme(),
    "gpt-2": _Scheme(),
    "smollm": _Scheme(each_digit=True),
    "llama-bpe": _Scheme(rf"{_ENGLISH}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}", whole_words=True),
    "qwen2": _Scheme(rf"{_ENGLISH}|{_WORDS}|\p{{N}}|{_REST}", nfc=True),
}


class Tokenizer:
    """Token ids of text and text of token ids."""

    def __init__(
        self, backend: Any, special: Mapping[str, str], eos_ids: Sequence[int], template: str | None
    ):
        """
        special: the texts of the special tokens by role: "bos_token", "eos_token", ...
        eos_ids: tokens that end a text, as far as the tokenizer's own files say.
        template: the chat template, in Jinja2's language.
        """
        self._backend = backend
        self.special = dict(special)
        self.eos_ids = tuple(eos_ids)
        self.chat_template = template

    @property
    def size(self) -> int:
        """The number of tokens, special ones included."""
        return int(self._backend.get_vocab_size())

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """add_special_tokens: put those in that the model expects around a text, such as a first one."""
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Bytes that are no UTF-8 become U+FFFD."""
        try:
            return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))
        except OverflowError:
            raise InvalidValueError(
                f"decode: argument 'ids': expected token ids from 0 to {self.size - 1}, got {list(ids)}"
            ) from None

    def token_id(self, token: str) -> int | None:
        """The id of a token's exact text."""
        found = self._backend.token_to_id(token)
        return None if found is None else int(found)


def from_folder(folder: Path) -> Tokenizer:
    """Of a Hugging Face folder: tokenizer.json and tokenizer_config.json."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise FileFormatError(f"{folder}: expected a tokenizer.json, got none")
    tokenizers = require("tokenizers")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as reason:  # the library raises plain Exception
        raise FileFormatError(f"{path}: {reason}") from None
    config = read_json(folder / "tokenizer_config.json")
    special = {}
    for key, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            special[key] = text
    eos = backend.token_to_id(special["eos_token"]) if "eos_token" in special else None
    template = _default_template(config.get("chat_template"))
    separate = folder / "chat_template.jinja"
    if separate.is_file():
        template = read_text(separate)
    return Tokenizer(backend, special, [] if eos is None else [eos], template)


def _default_template(value: Any) -> str | None:
    """A template, or a list of named ones."""
    if isinstance(value, list):
        named = [each for each in value if isinstance(each, dict) and each.get("name") == "default"]
        value = named[-1].get("template") if named else None
    return value if isinstance(value, str) else None


def read_text(path: Path) -> str:
    """A file in UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as reason:
        raise FileFormatError(f"{path}: {reason}") from None


def read_json(path: Path) -> dict[str, Any]:
    """An object from a file; empty where there is no file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(read_text(path))
        # An escape may name half a character, which no text has.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as reason:
        raise FileFormatError(f"{path}: {reason}") from None
    if not isinstance(value, dict):
        raise FileFormatError(f"{path}: expected an object, got {type(value).__name__}")
    return value


def from_gguf(metadata: Mapping[str, Any], path: str) -> Tokenizer:
    """Of a GGUF file's "tokenizer.ggml.*" metadata."""
    model = _text(metadata, path, "tokenizer.ggml.model")
    if model != "gpt2":
        raise UnsupportedError(
            f"{path}: tokenizer.ggml.model: expected 'gpt2' (byte-level BPE), got '{model}'; "
            "use the model's Hugging Face folder, whose tokenizer.json any kind may be in"
        )
    has_scheme = "tokenizer.ggml.pre" in metadata
    scheme_name = _text(metadata, path, "tokenizer.ggml.pre") if has_scheme else "default"
    if scheme_name not in _SCHEMES:
        raise UnsupportedError(
            f"{path}: tokenizer.ggml.pre: expected one of {', '.join(_SCHEMES)}, got '{scheme_name}'; "
            "use the model's Hugging Face folder"
        )
    tokens = _texts(metadata, path, "tokenizer.ggml.tokens")
    merges = [tuple(each.split(" ")) for each in _texts(metadata, path, "tokenizer.ggml.merges")]
    types = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens) or any(len(merge) != 2 for merge in merges):
        raise FileFormatError(f"{path}: tokenizer.ggml: expected a type for each token and pairs as merges")
    backend = _byte_level_bpe(tokens, merges, types, _SCHEMES[scheme_name], path)
    special = {}
    ids = {}
    for role in ("bos", "eos", "unknown", "padding", "eot", "eom"):
        index = metadata.get(f"tokenizer.ggml.{role}_token_id")
        if isinstance(index, int) and 0 <= index < len(tokens):
            ids[role] = index
            special[{"unknown": "unk", "padding": "pad"}.get(role, role) + "_token"] = tokens[index]
    _add_template(backend, tokens, ids, metadata, path)
    template = metadata.get("tokenizer.chat_template")
    return Tokenizer(
        backend,
        special,
        [ids[role] for role in ("eos", "eot", "eom") if role in ids],
        template if isinstance(template, str) else None,
    )


def _text(metadata: Mapping[str, Any], path: str, key: str) -> str:
    value = metadata.get(key)
    if not isinstance(value, str):
        raise FileFormatError(f"{path}: {key}: expected a string, got {type(value).__name__}")
    return value


def _texts(metadata: Mapping[str, Any], path: str, key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise FileFormatError(f"{path}: {key}: expected strings, got {type(value).__name__}")
    return value


def _byte_level_bpe(
    tokens: list[str], merges: list[tuple[str, ...]], types: Sequence[int], scheme: _Scheme, path: str
) -> Any:
    lib = require("tokenizers")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise FileFormatError(f"{path}: tokenizer.ggml.tokens: expected each token once")
    try:
        bpe = lib.models.BPE(vocab=vocabulary, merges=merges, ignore_merges=scheme.whole_words)
    except Exception as reason:  # the library raises plain Exception
        raise FileFormatError(f"{path}: tokenizer.ggml.merges: {reason}") from None
    backend = lib.Tokenizer(bpe)
    steps = []
    if scheme.each_digit:
        steps.append(lib.pre_tokenizers.Digits(individual_digits=True))
    if scheme.pattern is not None:
        steps.append(lib.pre_tokenizers.Split(lib.Regex(scheme.pattern), "isolated"))
    steps.append(lib.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=scheme.pattern is None))
    backend.pre_tokenizer = lib.pre_tokenizers.Sequence(steps)
    if scheme.nfc:
        backend.normalizer = lib.normalizers.NFC()
    backend.decoder = lib.decoders.ByteLevel()
    for kind, add in ((_CONTROL, backend.add_special_tokens), (_USER_DEFINED, backend.add_tokens)):
        add(
            [
                lib.AddedToken(token, special=kind == _CONTROL, normalized=False)
                for token, each in zip(tokens, types, strict=True)
                if each == kind
            ]
        )
    return backend


def _add_template(
    backend: Any, tokens: list[str], ids: Mapping[str, int], metadata: Mapping[str, Any], path: str
) -> None:
    """The tokens that the model expects before and after a text."""
    before = metadata.get("tokenizer.ggml.add_bos_token", False) is True and "bos" in ids
    after = metadata.get("tokenizer.ggml.add_eos_token", False) is True and "eos" in ids
    if not before and not after:
        return
    used = (["bos"] if before else []) + (["eos"] if after else [])
    parts = (["<bos>"] if before else []) + ["$A"] + (["<eos>"] if after else [])
    lib = require("tokenizers")
    names = {role: tokens[ids[role]] for role in used}
    try:
        backend.post_processor = lib.processors.TemplateProcessing(
            single=[names[part[1:-1]] if part != "$A" else part for part in parts],
            special_tokens=[(names[role], ids[role]) for role in used],
        )
    except Exception as reason:  # the library raises plain Exception
        raise FileFormatError(f"{path}: tokenizer.ggml.add_bos_token: {reason}") from None
