"""The library's one logger: the native core's messages reach Python's logging and warnings here."""

from __future__ import annotations

import logging
import warnings

from . import _native

logger = logging.getLogger("pygpukit")
logger.addHandler(logging.NullHandler())

_DEBUG, _INFO, _WARNING = 0, 1, 2


def _sink(level: int, message: str) -> None:
    if level == _WARNING:
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    else:
        logger.log(logging.INFO if level == _INFO else logging.DEBUG, message)


_native.set_log_sink(_sink)
