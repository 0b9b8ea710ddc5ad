"""A bar that shows how far a model is loaded: on a terminal, where tqdm or rich is installed."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_PATIENCE = 0.5  # seconds; what is done sooner needs no bar

Show = Callable[[int, int], None]  # the bytes done and all bytes


def _by_tqdm(tqdm: Any, label: str) -> tuple[Show, Callable[[], None]]:
    bar = tqdm.tqdm(desc=label, unit="B", unit_scale=True, leave=False, file=sys.stderr)

    def show(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    return show, bar.close


def _by_rich(rich: Any, label: str) -> tuple[Show, Callable[[], None]]:
    console = importlib.import_module("rich.console").Console(stderr=True)
    bar = rich.Progress(
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
        console=console,
        transient=True,
    )
    bar.start()
    task = bar.add_task(label, total=None)
    return lambda done, total: bar.update(task, completed=done, total=total), bar.stop


_MAKERS = {"tqdm": _by_tqdm, "rich.progress": _by_rich}


def _make(label: str) -> tuple[Show, Callable[[], None]] | None:
    for module, maker in _MAKERS.items():
        try:
            return maker(importlib.import_module(module), label)
        except ImportError:
            continue
    return None


def _on_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # a service has none, or a closed one
        return False


@contextmanager
def bar(label: str) -> Iterator[Show | None]:
    """What to call with the bytes done and all bytes; None where nothing would be shown."""
    if not _on_terminal():
        yield None
        return
    began = time.monotonic()
    made: list[tuple[Show, Callable[[], None]] | None] = []

    def show(done: int, total: int) -> None:
        if not made and time.monotonic() - began >= _PATIENCE:
            made.append(_make(label))
        if made and made[0] is not None:
            made[0][0](done, total)

    try:
        yield show
    finally:
        if made and made[0] is not None:
            made[0][1]()
