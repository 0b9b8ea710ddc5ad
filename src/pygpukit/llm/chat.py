"""Chat templates: a conversation as the text that a model was trained on.

Templates come with the model file, so they run in Jinja2's sandbox, without access to attributes that
could change anything.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

from .._native import FileFormatError, InvalidTypeError, InvalidValueError
from ._optional import require


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    special: Mapping[str, str],
    *,
    add_generation_prompt: bool = True,
) -> str:
    """Raises InvalidValueError where the template refuses the messages, or fails on them."""
    jinja2 = require("jinja2")
    try:
        copied = [dict(message) for message in messages]
    except (TypeError, ValueError):
        raise InvalidTypeError(
            "chat: argument 'messages': expected a sequence of mappings, such as "
            "[{'role': 'user', 'content': 'Hello'}]"
        ) from None
    try:
        compiled = _compile(template)
        return str(compiled.render(messages=copied, add_generation_prompt=add_generation_prompt, **special))
    except jinja2.exceptions.TemplateSyntaxError as reason:
        raise FileFormatError(f"chat template: line {reason.lineno}: {reason.message}") from None
    except jinja2.exceptions.TemplateError as reason:
        raise InvalidValueError(f"chat template: {reason.message}") from None
    except Exception as reason:  # a template is a program, which can fail in any way
        raise InvalidValueError(f"chat template: {type(reason).__name__}: {reason}") from None


@lru_cache(maxsize=8)
def _compile(template: str) -> Any:
    sandbox = require("jinja2.sandbox")
    # The settings and functions of transformers, for which templates are written.
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.filters["tojson"] = _tojson
    return environment.from_string(template)


def _raise_exception(message: str) -> NoReturn:
    raise require("jinja2").exceptions.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)
