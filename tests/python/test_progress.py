"""The bar of gp.llm.load."""

import io
import sys
import types

import pytest

import pygpukit as gp
from pygpukit.llm import progress
from support import DATA


class Terminal(io.StringIO):
    def isatty(self):
        return True


def set_stream(monkeypatch, stream):
    """The error stream as the bar sees it: pytest sets the real one itself."""
    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=stream))
    return stream


@pytest.fixture
def bars(monkeypatch):
    """A terminal, and a tqdm that notes what it is told."""
    made = []

    class Bar:
        def __init__(self, **_):
            self.n, self.total, self.closed = 0, None, False
            made.append(self)

        def update(self, n):
            self.n += n

        def close(self):
            self.closed = True

    set_stream(monkeypatch, Terminal())
    monkeypatch.setitem(sys.modules, "tqdm", types.SimpleNamespace(tqdm=Bar))
    monkeypatch.setattr(progress, "_PATIENCE", 0)
    return made


def test_a_bar_reaches_the_files_size(bars):
    gp.llm.load(DATA / "models" / "qwen3")
    (bar,) = bars
    file = gp.io.safetensors(DATA / "models" / "qwen3")
    assert bar.closed
    assert bar.n == bar.total == sum(file.info(name).nbytes for name in file)


def test_what_ends_soon_has_none(bars, monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 60)
    gp.llm.load(DATA / "models" / "qwen3")
    assert bars == []


def test_none_without_a_terminal_or_a_library(bars, monkeypatch):
    set_stream(monkeypatch, io.StringIO())
    with progress.bar("x") as show:
        assert show is None
    terminal = set_stream(monkeypatch, Terminal())
    for name in ("tqdm", "rich.progress"):
        monkeypatch.setitem(sys.modules, name, None)
    with progress.bar("x") as show:
        show(1, 2)
    assert bars == []
    assert terminal.getvalue() == ""


def test_none_without_an_error_stream(bars, monkeypatch):
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        set_stream(monkeypatch, stream)
        assert gp.llm.load(DATA / "models" / "qwen3").max_length > 0
    assert bars == []


def test_rich_draws_on_the_error_stream(bars, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setitem(sys.modules, "tqdm", None)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.bar("tiny") as show:
        for done in range(1, 11):
            show(done, 10)
    assert "tiny" in terminal.getvalue()


def test_what_a_bar_raises_ends_the_loading(bars, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["tqdm"].tqdm, "update", lambda self, n: interrupted(n))
    with pytest.raises(KeyboardInterrupt):
        gp.llm.load(DATA / "models" / "qwen3")
    assert bars[0].closed
