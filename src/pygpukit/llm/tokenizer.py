"""Tokenizer: text to token ids and back, through the `tokenizers` library.

It comes from a tokenizer.json, or is built from a GGUF file's metadata.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from .._native import Error, FileFormatError, InvalidValueError, UnsupportedError
from ._optional import require

# Token types in tokenizer.ggml.token_type (llama.cpp's llama_token_type).
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4

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


@contextmanager
def _named(what: str) -> Iterator[None]:
    """What the library raises, plain Exceptions and panics, which are not even that, as a bad file."""
    try:
        yield
    except Error:
        raise
    except BaseException as reason:
        if isinstance(reason, Exception) or type(reason).__name__ == "PanicException":
            raise FileFormatError(f"{what}: {reason}") from None
        raise


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

    @property
    def num_ids(self) -> int:
        """One more than the largest id: what a model has beyond that is padding."""
        return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """add_special_tokens: put those in that the model expects around a text, such as a first one."""
        try:
            text.encode()
        except UnicodeEncodeError as reason:
            raise InvalidValueError(
                f"encode: argument 'text': expected whole characters, got half of one: {reason}"
            ) from None
        with _named("tokenizer"):
            return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Bytes that are no UTF-8 become U+FFFD."""
        with _named("tokenizer"):
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
    if not is_there(path):
        raise FileFormatError(f"{folder}: expected a tokenizer.json, got none")
    tokenizers = require("tokenizers")
    with _named(str(path)):
        backend = tokenizers.Tokenizer.from_file(str(path))
    # A file keeps how its training's batches were cut and filled: a prompt is neither.
    backend.no_truncation()
    backend.no_padding()
    config = read_json(folder / "tokenizer_config.json")
    special = {}
    for key, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            special[key] = text
    eos = backend.token_to_id(special["eos_token"]) if "eos_token" in special else None
    template = _default_template(config.get("chat_template"))
    separate = folder / "chat_template.jinja"
    if is_there(separate):
        template = read_text(separate)
    return Tokenizer(backend, special, [] if eos is None else [eos], template)


def _default_template(value: Any) -> str | None:
    """A template, or a list of named ones."""
    if isinstance(value, list):
        named = [each for each in value if isinstance(each, dict) and each.get("name") == "default"]
        value = named[-1].get("template") if named else None
    return value if isinstance(value, str) else None


def is_there(path: Path) -> bool:
    """Whether a folder has that file. What has its name and is none would else be left out silently.

    Raises FileFormatError for links to nothing, folders and the like.
    """
    if os.path.isfile(path):
        return True
    if os.path.lexists(path):
        raise FileFormatError(
            f"{path}: expected a file, got a link to nothing, or something else; download it again"
        )
    return False


def read_text(path: Path) -> str:
    """A file in UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as reason:
        raise FileFormatError(f"{path}: expected a readable file, got one that is not: {reason}") from None
    except UnicodeDecodeError as reason:
        raise FileFormatError(f"{path}: {reason}") from None


def read_json(path: Path) -> dict[str, Any]:
    """An object from a file; empty where there is no file."""
    if not is_there(path):
        return {}
    text = read_text(path)
    try:
        value = json.loads(text)
        # An escape may name half a character, which no text has.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as reason:
        raise FileFormatError(f"{path}: {reason}") from None
    if not isinstance(value, dict):
        raise FileFormatError(f"{path}: expected an object, got {type(value).__name__}")
    return value


def from_gguf(metadata: Mapping[str, Any], path: str) -> Tokenizer:
    """Of a GGUF file's "tokenizer.ggml.*" metadata: byte-level BPE, or SentencePiece's BPE."""
    model = _text(metadata, path, "tokenizer.ggml.model")
    if model not in _MODELS:
        raise UnsupportedError(
            f"{path}: tokenizer.ggml.model: expected 'gpt2' (byte-level BPE) or 'llama' (SentencePiece), "
            f"got '{model}'; use the model's Hugging Face folder, whose tokenizer.json any kind may be in"
        )
    tokens = _texts(metadata, path, "tokenizer.ggml.tokens")
    types = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise FileFormatError(f"{path}: tokenizer.ggml.token_type: expected one for each token")
    if any(type(each) is not int for each in types):
        raise FileFormatError(f"{path}: tokenizer.ggml.token_type: expected integers")
    if len(set(tokens)) != len(tokens):
        raise FileFormatError(f"{path}: tokenizer.ggml.tokens: expected each token once")
    special = {}
    ids = {}
    for role in ("bos", "eos", "unknown", "padding", "eot", "eom"):
        key = f"tokenizer.ggml.{role}_token_id"
        index = metadata.get(key, -1)
        if type(index) is not int:
            raise FileFormatError(f"{path}: {key}: expected an integer, got {type(index).__name__}")
        if 0 <= index < len(tokens):  # as in llama.cpp, another one says that there is none
            ids[role] = index
            special[{"unknown": "unk", "padding": "pad"}.get(role, role) + "_token"] = tokens[index]
    backend = _MODELS[model](tokens, types, metadata, path)
    _add_template(backend, tokens, ids, metadata, path, first=model == "llama")
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


def _flag(metadata: Mapping[str, Any], path: str, name: str, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, bool):
        raise FileFormatError(
            f"{path}: tokenizer.ggml.{name}: expected true or false, got {type(value).__name__}"
        )
    return value


def _add_tokens(backend: Any, tokens: list[str], types: Sequence[int], kinds: Mapping[int, bool]) -> None:
    """Those that are found before the merges: by kind, and whether they are special."""
    lib = require("tokenizers")
    for kind, special in kinds.items():
        chosen = [token for token, each in zip(tokens, types, strict=True) if each == kind]
        added = [lib.AddedToken(token, special=special, normalized=False) for token in chosen]
        (backend.add_special_tokens if special else backend.add_tokens)(added)


def _byte_level_bpe(tokens: list[str], types: Sequence[int], metadata: Mapping[str, Any], path: str) -> Any:
    lib = require("tokenizers")
    has_scheme = "tokenizer.ggml.pre" in metadata
    scheme_name = _text(metadata, path, "tokenizer.ggml.pre") if has_scheme else "default"
    if scheme_name not in _SCHEMES:
        raise UnsupportedError(
            f"{path}: tokenizer.ggml.pre: expected one of {', '.join(_SCHEMES)}, got '{scheme_name}'; "
            "use the model's Hugging Face folder"
        )
    scheme = _SCHEMES[scheme_name]
    merges = [tuple(each.split(" ")) for each in _texts(metadata, path, "tokenizer.ggml.merges")]
    if any(len(merge) != 2 for merge in merges):
        raise FileFormatError(f"{path}: tokenizer.ggml.merges: expected pairs")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    with _named(f"{path}: tokenizer.ggml.merges"):
        bpe = lib.models.BPE(vocab=vocabulary, merges=merges, ignore_merges=scheme.whole_words)
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
    _add_tokens(backend, tokens, types, {_CONTROL: True, _USER_DEFINED: False})
    return backend


_SPACE = "\u2581"  # stands for a space in SentencePiece's tokens


def _merges_by_score(tokens: list[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Each way to join two tokens to a third, in SentencePiece's order: the highest score first."""
    known = set(tokens)
    lengths = sorted({len(token) for token in tokens})  # all cuts of a token of megabytes would take minutes
    found = [
        (-score, index, token[:cut], token[cut:])
        for index, (token, score) in enumerate(zip(tokens, scores, strict=True))
        for cut in itertools.takewhile(len(token).__gt__, lengths)
        if token[:cut] in known and token[cut:] in known
    ]
    found.sort()
    return [(left, right) for _, _, left, right in found]


def _sentence_piece(tokens: list[str], types: Sequence[int], metadata: Mapping[str, Any], path: str) -> Any:
    """SentencePiece's BPE without a normalisation of its own, as Llama 2, Mistral and Gemma have it."""
    lib = require("tokenizers")
    scores = metadata.get("tokenizer.ggml.scores")
    if (
        not isinstance(scores, list)
        or len(scores) != len(tokens)
        or not all(isinstance(each, float) and math.isfinite(each) for each in scores)
    ):
        raise FileFormatError(f"{path}: tokenizer.ggml.scores: expected a finite number for each token")
    prefix = _flag(metadata, path, "add_space_prefix", True)
    if "tokenizer.ggml.precompiled_charsmap" in metadata or _flag(
        metadata, path, "remove_extra_whitespaces", False
    ):
        raise UnsupportedError(
            f"{path}: tokenizer.ggml: expected a SentencePiece model without normalisation, got one with it; "
            "use the model's Hugging Face folder"
        )
    joined = [
        (token, score)
        for token, score, kind in zip(tokens, scores, types, strict=True)
        if kind in (_NORMAL, _USER_DEFINED) and token
    ]
    unknown = [token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN]
    has_bytes = {f"<0x{byte:02X}>" for byte in range(256)} <= set(tokens)
    with _named(f"{path}: tokenizer.ggml.tokens"):
        bpe = lib.models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=_merges_by_score([token for token, _ in joined], [score for _, score in joined]),
            unk_token=unknown[0] if unknown else None,
            fuse_unk=True,
            byte_fallback=has_bytes,
        )
    backend = lib.Tokenizer(bpe)
    to_marks = lib.normalizers.Replace(" ", _SPACE)
    backend.normalizer = (
        lib.normalizers.Sequence([lib.normalizers.Prepend(_SPACE), to_marks]) if prefix else to_marks
    )
    steps = [lib.decoders.Replace(_SPACE, " "), lib.decoders.ByteFallback(), lib.decoders.Fuse()]
    backend.decoder = lib.decoders.Sequence(steps + ([lib.decoders.Strip(" ", 1, 0)] if prefix else []))
    # SentencePiece finds its user's own tokens in the marked text, before all joins.
    own = [token for token, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED]
    if prefix and any(_SPACE in token for token in own):
        raise UnsupportedError(
            f"{path}: tokenizer.ggml.tokens: expected user-defined ones without spaces, got "
            f"{next(token for token in own if _SPACE in token)!r}; use the model's Hugging Face folder"
        )
    backend.add_tokens([lib.AddedToken(token, special=False, normalized=not prefix) for token in own])
    _add_tokens(backend, tokens, types, {_CONTROL: True, _UNKNOWN: True})
    return backend


# tokenizer.ggml.model: what makes it of tokens, their types and the metadata.
_MODELS = {"gpt2": _byte_level_bpe, "llama": _sentence_piece}


def _add_template(
    backend: Any,
    tokens: list[str],
    ids: Mapping[str, int],
    metadata: Mapping[str, Any],
    path: str,
    first: bool,
) -> None:
    """The tokens that the model expects around a text. `first`: one before it, unless said otherwise."""
    before = _flag(metadata, path, "add_bos_token", first) and "bos" in ids
    after = _flag(metadata, path, "add_eos_token", False) and "eos" in ids
    if not before and not after:
        return
    used = (["bos"] if before else []) + (["eos"] if after else [])
    lib = require("tokenizers")
    # By role: the text of a token may mean something else to the template, such as "$A" or "a:1".
    backend.post_processor = lib.processors.TemplateProcessing(
        single=(["bos"] if before else []) + ["$A"] + (["eos"] if after else []),
        special_tokens=[{"id": role, "ids": [ids[role]], "tokens": [tokens[ids[role]]]} for role in used],
    )
