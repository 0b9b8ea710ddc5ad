"""Packages that only this part of the library needs."""

from __future__ import annotations

import importlib
from typing import Any

from .._native import UnsupportedError


def require(module: str) -> Any:
    """Imports an optional package, or says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.split(".")[0]
        raise UnsupportedError(
            f"language models need the package {package}; pip install tokenizers jinja2"
        ) from None
