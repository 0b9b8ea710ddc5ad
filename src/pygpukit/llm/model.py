"""LanguageModel: a model on a device with its tokenizer."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from .. import _native, io, pull
from .._native import Array, Device, DType, FileFormatError, InvalidTypeError, InvalidValueError
from . import chat, choice, progress
from . import tokenizer as tokenizers
from .batch import Batch, BatchPiece
from .choice import TokenLogprobs
from .text import StopFilter, TextDecoder, stop_strings
from .tokenizer import Tokenizer

Message = Mapping[str, Any]


def load(
    path: str | os.PathLike[str],
    dtype: DType | str | type | None = None,
    device: Device | str | None = None,
    max_length: int | None = None,
    quantize: str | None = None,
    cache_dtype: DType | str | type | None = None,
) -> LanguageModel:
    """Loads a language model of the families that docs/formats.md lists: Llama, Mistral, Qwen, Gemma, GPT-2.

    path: a .gguf file, a Hugging Face folder (config.json, safetensors, tokenizer.json), or the name of a
        model that `pygpukit pull` fetched.
    dtype: of the weights: float32, float16 or bfloat16. Default: bfloat16 on a GPU, float32 elsewhere.
    max_length: tokens that the context holds. Default: as trained, at most 8192.
    quantize: "int8", "int4", "fp8" or "nvfp4": the layers' matrices in fewer bits (see gp.nn.quantize), and
        the head where it is not the embedding (int8 where they take 4 bits). Default: what a GGUF file has in
        blocks, or an AWQ, GPTQ, compressed-tensors or fp8 checkpoint in codes, stays so; the rest is as
        `dtype` says.
    cache_dtype: of the context's keys and values: "float8_e4m3", half the memory of 16 bits, with 4 bits of
        significance. Default: `dtype`, the only other one.

    On a terminal a bar shows how far it is, where tqdm or rich is installed.

    Raises FileFormatError for files that are not what they should be, UnsupportedError for other models.
    """
    if not isinstance(path, str | os.PathLike):
        raise InvalidTypeError(f"load: argument 'path': expected a path or a name, got {type(path).__name__}")
    found = pull.find_model(path) if isinstance(path, str) else None
    source = Path(path) if found is None else found
    if path == "":
        raise InvalidValueError("load: argument 'path': expected a path or a name, got ''")
    where = _where("load", dtype, device, max_length, quantize, cache_dtype)
    if os.path.isdir(source):  # False for names that no system takes, too
        return _load_folder(source, where)
    if os.path.isfile(source):
        return _load_gguf(source, where)
    raise InvalidValueError(
        f"load: argument 'path': expected a .gguf file, a model's folder or one of {', '.join(pull.MODELS)}, "
        f"got '{source}', which is not there"
    )


def from_arrays(
    config: Mapping[str, Any],
    arrays: Mapping[str, Array],
    dtype: DType | str | type | None = None,
    device: Device | str | None = None,
    max_length: int | None = None,
    quantize: str | None = None,
    cache_dtype: DType | str | type | None = None,
) -> LanguageModel:
    """A model of weights that are there already, for prompts of token ids: it has no tokenizer.

    config: what a config.json of the family would hold.
    arrays: by the names of a Hugging Face checkpoint. They are copied into the model's own layout.
    dtype, device, max_length, quantize, cache_dtype: as in load.

    Raises FileFormatError for a config that makes no model, and for arrays that do not fit it.
    """
    for name, value in (("config", config), ("arrays", arrays)):
        if not isinstance(value, Mapping):
            raise InvalidTypeError(
                f"from_arrays: argument '{name}': expected a mapping, got {type(value).__name__}"
            )
    where = _where("from_arrays", dtype, device, max_length, quantize, cache_dtype)
    try:
        text = json.dumps(dict(config))
    except (TypeError, ValueError, RecursionError) as reason:
        raise InvalidTypeError(
            f"from_arrays: argument 'config': expected what a config.json may hold, got another: {reason}"
        ) from None
    native = _native._Model.from_arrays(dict(arrays), text, *where)
    return LanguageModel(native, None, _ids("from_arrays", config), "from_arrays")


_Where = tuple["DType | str | type", Device, int, "str | None", "DType | str | type | None"]


def _where(
    call: str,
    dtype: DType | str | type | None,
    device: Device | str | None,
    max_length: int | None,
    quantize: str | None,
    cache_dtype: DType | str | type | None,
) -> _Where:
    """The arguments that loading ends with, the defaults in their places."""
    target = _native.device(device)
    length = 0
    if max_length is not None:
        length = choice.checked(call, "max_length", max_length, int, "a whole number")
        if length < 1:
            raise InvalidValueError(f"{call}: argument 'max_length': expected at least 1, got {length}")
    if not (quantize is None or isinstance(quantize, str)):
        raise InvalidTypeError(
            f"{call}: argument 'quantize': expected a format's name, got {type(quantize).__name__}"
        )
    if isinstance(dtype, str) and dtype not in ("float32", "float16", "bfloat16"):
        raise InvalidTypeError(
            f"{call}: argument 'dtype': expected float32, float16 or bfloat16, got {dtype!r}"
        )
    weights = ("bfloat16" if target.is_cuda else "float32") if dtype is None else dtype
    return weights, target, length, quantize, cache_dtype


def _load_folder(folder: Path, where: _Where) -> LanguageModel:
    config_path = folder / "config.json"
    if not tokenizers.is_there(config_path):
        raise FileFormatError(f"{folder}: expected a config.json, got none")
    config = tokenizers.read_json(config_path)
    generation = tokenizers.read_json(folder / "generation_config.json")
    tokenizer = tokenizers.from_folder(folder) if tokenizers.is_there(folder / "tokenizer.json") else None
    num_tokens = 0 if tokenizer is None else tokenizer.num_ids
    file = io.safetensors(folder)
    with progress.bar(folder.name) as show:
        native = _native._Model.load(
            file._native, tokenizers.read_text(config_path), *where, num_tokens, show
        )
    stops = [
        *_ids(str(config_path), config),
        *_ids(str(folder / "generation_config.json"), generation),
    ]
    return LanguageModel(native, tokenizer, stops, str(folder))


def _load_gguf(path: Path, where: _Where) -> LanguageModel:
    file = io.gguf(path)
    with progress.bar(path.name) as show:
        native = _native._Model.load(file._native, None, *where, 0, show)
    has_tokenizer = "tokenizer.ggml.model" in file.metadata
    tokenizer = tokenizers.from_gguf(file.metadata, str(path)) if has_tokenizer else None
    return LanguageModel(native, tokenizer, [], str(path))


def _ids(where: str, config: Mapping[str, Any]) -> list[int]:
    """The ids that end a text: one, several, or none."""
    value = config.get("eos_token_id")
    values = value if isinstance(value, list) else [] if value is None else [value]
    for each in values:
        if not isinstance(each, int) or isinstance(each, bool):
            raise FileFormatError(f"{where}: 'eos_token_id': expected a token id or several, got {value!r}")
    return [each for each in values if each >= 0]  # -1 says that there is none


class GeneratedText(str):
    """A text, with what is known of how it came about."""

    tokens: list[int]
    finish_reason: str | None  # as that of TextStream
    stats: dict[str, float]
    logprobs: list[TokenLogprobs]  # of the tokens, where they were asked for


class TextStream:
    """The pieces of a text while the model writes it; each is whole characters."""

    def __init__(self, tokens: _native._Generation, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._native = tokens
        self._decoder, self._stop = TextDecoder(tokenizer.decode), StopFilter(stops)
        self._lock = threading.Lock()  # several threads may take pieces
        self._over = self._stopped = False
        self.tokens: list[int] = []  # so far
        self.logprobs: list[TokenLogprobs] = []  # of these, where they were asked for

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        with self._lock:
            while not self._over:  # what fails, for want of memory say, can be tried again
                if piece := self._next_piece():
                    return piece
        raise StopIteration

    def _next_piece(self) -> str:
        """What one more token, or the end, makes whole; may be empty."""
        token = next(self._native, None)
        if token is None:
            self._over = True
            rest = self._stop.push(self._decoder.finish())
            self._stopped = self._stop.stopped
            return rest + self._stop.finish()
        self.tokens.append(token)
        if (logprobs := self._native.logprobs) is not None:
            self.logprobs.append(TokenLogprobs.of(token, logprobs))
        piece = self._stop.push(self._decoder.push(token))
        self._over = self._stopped = self._stop.stopped
        return piece

    def cancel(self) -> None:
        """Ends the text after the token under way. Any thread may call this."""
        self._native.cancel()

    def close(self) -> None:
        """The same: a stream may be closed as a generator is."""
        self.cancel()

    @property
    def finish_reason(self) -> str | None:
        """Why the text ended; None before that.

        "stop" (a stop token or string), "length" (max_tokens), "context" (it is full) or "cancelled".
        """
        reason = "stop" if self._stopped else self._native.finish_reason
        return None if reason == "none" else reason

    @property
    def stats(self) -> dict[str, float]:
        """Figures by name.

        prompt_tokens, reused_tokens (of the prompt, that the context held already), generated_tokens,
        prefill_seconds, decode_seconds, tokens_per_second. With speculate also passes, plain_steps,
        guessed_tokens, accepted_tokens, acceptance (accepted of guessed) and tokens_per_pass: how many times
        fewer passes and steps than tokens there were.
        """
        return self._native.stats


def _whole(stream: TextStream) -> GeneratedText:
    text = GeneratedText("".join(stream))
    text.tokens, text.logprobs = stream.tokens, stream.logprobs
    text.finish_reason, text.stats = stream.finish_reason, stream.stats
    return text


def _joined(pieces: Sequence[BatchPiece]) -> GeneratedText:
    text = GeneratedText("".join(each.piece for each in pieces))
    text.tokens = [each.token for each in pieces if each.token is not None]
    text.logprobs = [each.logprobs for each in pieces if each.logprobs is not None]
    text.finish_reason = pieces[-1].finish_reason if pieces else None
    text.stats = {"generated_tokens": float(len(text.tokens))}
    return text


class LanguageModel:
    """A model with its tokenizer and one context: it writes one text at a time.

    Used in a with statement it is closed at the end.
    """

    def __init__(
        self, native: _native._Model, tokenizer: Tokenizer | None, stop_tokens: Sequence[int], path: str
    ) -> None:
        self._native = native
        self._tokenizer = tokenizer
        self._path = path
        size = int(self.config["vocab_size"])
        every = [*stop_tokens, *(tokenizer.eos_ids if tokenizer else ())]
        self.stop_tokens = sorted({token for token in every if token < size})  # they end a text

    @property
    def config(self) -> dict[str, int | float | bool | str]:
        """The model's sizes and constants."""
        return self._native.config

    @property
    def device(self) -> Device:
        """Where the weights are."""
        return self._native.device

    @property
    def dtype(self) -> DType:
        """Of the weights."""
        return self._native.dtype

    @property
    def cache_dtype(self) -> DType:
        """Of the context's keys and values."""
        return self._native.cache_dtype

    @property
    def cache_bytes(self) -> int:
        """Of device memory that the context takes; 0 once the model is closed."""
        return self._native.cache_bytes

    @property
    def max_length(self) -> int:
        """Tokens that the context holds: the prompt's and the new ones."""
        return self._native.max_length

    @property
    def num_parameters(self) -> int:
        """Tied ones count once."""
        return self._native.num_parameters

    def close(self) -> None:
        """Gives the model's device memory, and that of its batches, back to the device's pool at once.

        Any thread may call this, and more than once; it waits for a token under way in another thread.
        Afterwards texts and batches of the model, and calls that compute, raise InvalidValueError. Figures
        and the tokenizer are still there. (gp.memory.trim gives what the pool has free to other programs.)
        """
        self._native.close()

    @property
    def closed(self) -> bool:
        """Whether close was called."""
        return self._native.closed

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises FileFormatError where the model came without one."""
        if self._tokenizer is None:
            raise FileFormatError(f"{self._path}: expected a tokenizer (tokenizer.json), got none")
        return self._tokenizer

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text."""
        if not isinstance(text, str):
            raise InvalidTypeError(f"encode: argument 'text': expected a string, got {type(text).__name__}")
        special = choice.flag("encode", "add_special_tokens", add_special_tokens)
        return self.tokenizer.encode(text, add_special_tokens=special)

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids."""
        tokens = choice.token_ids("decode", "tokens", tokens)
        skip = choice.flag("decode", "skip_special_tokens", skip_special_tokens)
        return self.tokenizer.decode(tokens, skip_special_tokens=skip)

    def score(self, prompt: str | Sequence[int]) -> Array:
        """The logits after each token of the prompt: float32 [tokens, vocab_size]."""
        return self._native.score(self._ids(prompt, "score"))

    def stream_tokens(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        seed: int | None = None,
        stop_tokens: Sequence[int] | None = None,
        logprobs: int | None = None,
        on_full: str = "stop",
        reuse: bool = False,
        speculate: str | LanguageModel | None = None,
        guesses: int | None = None,
        early_layers: int | None = None,
    ) -> _native._Generation:
        """The ids that go on with the prompt, one by one.

        max_tokens: at most so many. Default: until a stop token comes or the context is full.
        temperature: 0 takes the most likely token each time; 1 draws from the model's own probabilities.
        top_k: draw from the k most likely only; 0 for all.
        top_p: draw from the fewest tokens whose probabilities reach p together.
        min_p: draw only from tokens at least so likely as this part of the likeliest.
        repetition_penalty: divides positive logits of tokens in the prompt or the text, multiplies others.
        presence_penalty: taken off the logits of tokens in the text, frequency_penalty for each time.
        seed: the same seed gives the same text. Default: another one each time.
        stop_tokens: instead of the model's own.
        logprobs: also tells each token's log-probability, and those of so many likeliest ones, 0 to 20:
            the float32 log-softmax of the model's logits, before penalties and temperature.
        on_full: "stop" ends the text where the context is full. "slide" computes the later half of the
            context's tokens anew, from position 0 on, and goes on after these: what came earlier is
            forgotten, but by the penalties.
        reuse: keeps what the context holds of the prompt's beginning, from the text before, as chat does.
            In 16 bits rounding may then differ from a new prompt's: a step's sums have another order.
        speculate: guesses tokens and checks several in one pass. The text is that of plain greedy steps;
            right guesses make it quicker: "ngram" (what followed the same tokens earlier: for code edits and
            texts that repeat), "early_layers" (the model's first layers guess), "jacobi" (its own last
            guesses), or a smaller model of the same tokens. Only with temperature 0, without penalties and
            logprobs.
        guesses: tokens that a pass checks, at most 7. Default: as the strategy has it, 3 to 7.
        early_layers: how many layers guess. Default: a quarter of them.

        Raises InvalidValueError for numbers out of range and a prompt without room, InvalidTypeError for
        other kinds of arguments, UnsupportedError for speculate with what excludes it.
        """
        draft = speculate if isinstance(speculate, LanguageModel) else None
        how = speculate if isinstance(speculate, str) else None
        if not (speculate is None or isinstance(speculate, str | LanguageModel)):
            raise InvalidTypeError(
                "generate: argument 'speculate': expected a strategy or a model, got "
                f"{type(speculate).__name__}"
            )
        if speculate == "draft_model":
            raise InvalidValueError("generate: argument 'speculate': expected the draft model itself")
        for name, value in (("guesses", guesses), ("early_layers", early_layers)):
            if value is not None and choice.checked("generate", name, value, int, "a whole number") < 1:
                raise InvalidValueError(f"generate: argument '{name}': expected at least 1, got {value}")
        if guesses is not None and speculate is None:
            raise InvalidValueError("generate: argument 'guesses': expected none without speculate, got some")
        if early_layers is not None and how != "early_layers":
            raise InvalidValueError(
                "generate: argument 'early_layers': expected none without speculate='early_layers', got some"
            )
        return self._native.generate(
            self._ids(prompt),
            choice.max_tokens_of("generate", max_tokens),
            self.stop_tokens
            if stop_tokens is None
            else choice.token_ids("generate", "stop_tokens", stop_tokens),
            choice.make(
                "generate",
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                min_p=min_p,
                repetition_penalty=repetition_penalty,
                presence_penalty=presence_penalty,
                frequency_penalty=frequency_penalty,
                seed=seed,
                logprobs=logprobs,
            ),
            choice.slides("generate", on_full),
            choice.flag("generate", "reuse", reuse),
            "draft_model" if draft else how,
            draft._native if draft else None,
            guesses or 0,
            early_layers or 0,
        )

    def stream(
        self, prompt: str | Sequence[int], *, stop: str | Sequence[str] = (), **arguments: Any
    ) -> TextStream:
        """The text that goes on with the prompt, piece by piece. Arguments as in stream_tokens, and:

        stop: strings that end the text; they are not part of it.
        """
        tokenizer, stops = self.tokenizer, stop_strings("stream", stop)
        return TextStream(self.stream_tokens(prompt, **arguments), tokenizer, stops)

    def generate(self, prompt: str | Sequence[int], **arguments: Any) -> GeneratedText:
        """The text that goes on with the prompt. Arguments as in stream."""
        return _whole(self.stream(prompt, **arguments))

    def batch(self, max_sequences: int = 8) -> Batch:
        """Writes up to so many texts at once; each has a context of max_length tokens of its own.

        Raises InvalidValueError for a number below 1 or above 1024.
        """
        slots = choice.checked("batch", "max_sequences", max_sequences, int, "a whole number")
        return Batch(self._native.batch(slots), self._tokenizer, self._ids, self.stop_tokens)

    def generate_batch(
        self, prompts: Sequence[str | Sequence[int]], *, max_sequences: int = 8, **arguments: Any
    ) -> list[GeneratedText]:
        """The texts that go on with several prompts, max_sequences at a time. Arguments as in Batch.add.

        The only figure of their stats is generated_tokens: the time is that of all.
        """
        if isinstance(prompts, str) or not isinstance(prompts, Sequence):
            raise InvalidTypeError(
                f"generate_batch: argument 'prompts': expected several, got {type(prompts).__name__}"
            )
        if self._tokenizer is None:
            raise FileFormatError(f"{self._path}: expected a tokenizer (tokenizer.json), got none; use batch")
        most = choice.checked("generate_batch", "max_sequences", max_sequences, int, "a whole number")
        if most < 1:
            raise InvalidValueError(
                f"generate_batch: argument 'max_sequences': expected at least 1, got {most}"
            )
        with self.batch(max(1, min(most, len(prompts)))) as batch:
            pieces: dict[int, list[BatchPiece]] = {batch.add(prompt, **arguments): [] for prompt in prompts}
            while len(batch) > 0:
                for each in batch.step():
                    pieces[each.text].append(each)
        return [_joined(of_text) for of_text in pieces.values()]

    def chat_prompt(self, messages: Sequence[Message]) -> list[int]:
        """The token ids of a conversation, up to where the model's answer begins."""
        template = self.tokenizer.chat_template
        if template is None:
            raise FileFormatError(f"{self._path}: expected a chat template, got none; use generate")
        # The template writes the special tokens itself.
        text = chat.render(template, messages, self.tokenizer.special)
        return self.encode(text, add_special_tokens=False)

    def stream_chat(self, messages: Sequence[Message], **arguments: Any) -> TextStream:
        """The model's answer to a conversation, piece by piece. Arguments as in stream.

        reuse is on, so that a further turn of a conversation computes what is new in it alone.

        messages: {"role": "system" | "user" | "assistant", "content": text}, the last one the user's.
        """
        return self.stream(self.chat_prompt(messages), **{"reuse": True, **arguments})

    def chat(self, messages: Sequence[Message], **arguments: Any) -> GeneratedText:
        """The model's answer to a conversation. Arguments as in stream_chat."""
        return _whole(self.stream_chat(messages, **arguments))

    def _ids(self, prompt: str | Sequence[int], call: str = "generate") -> list[int]:
        if isinstance(prompt, str):
            return self.encode(prompt)
        expected = "a string or token ids (of several texts use generate_batch)"
        if isinstance(prompt, Set | Mapping):  # without an order
            raise InvalidTypeError(
                f"{call}: argument 'prompt': expected {expected}, got {type(prompt).__name__}"
            )
        tokens = choice.token_ids(call, "prompt", prompt, expected)
        size = int(self.config["vocab_size"])
        if bad := [token for token in tokens if not 0 <= token < size]:
            raise InvalidValueError(
                f"{call}: argument 'prompt': expected ids from 0 to {size - 1}, got {bad[0]}"
            )
        return tokens

    def __repr__(self) -> str:
        return (
            f"LanguageModel({self._path!r}, {self.num_parameters / 1e6:.1f}M parameters, "
            f"dtype={self.dtype}, device='{self.device}'{', closed' if self.closed else ''})"
        )
