"""Metrics beyond `gp.metrics()`: published to other processes of this user, and served over HTTP.

A process that publishes writes its text every second to a file of its own in the user's runtime folder, which
nobody else may write. Readers take the files of processes that live, and remove those of dead ones.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import re
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

from . import __version__
from ._native import InvalidValueError, UnsupportedError, metrics, runtime_folder

_MOST_BYTES = 16 << 20
_SAMPLE = re.compile(r"^([a-zA-Z_][a-zA-Z0-9_]*)\{(.*)\} (\S+)$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_NAME = re.compile(r"^(\d+)-(\d+)\.prom$")


def _escaped(text: str) -> str:
    clean = text.encode("utf-8", "replace").decode()
    return clean.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _start_of(pid: int) -> int | None:
    """When a process began, as the system counts it, so that a number used again is not taken for it."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def process_metrics() -> str:
    """`gp.metrics()` with a family that says which process it is."""
    command = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    return (
        "# HELP pygpukit_process_info 1, with what the process is in the labels.\n"
        "# TYPE pygpukit_process_info gauge\n"
        f'pygpukit_process_info{{command="{_escaped(command)}",version="{__version__}"}} 1\n' + metrics()
    )


class Publisher:
    """Publishes this process's metrics until stop() or the interpreter's end: what `gp.publish` gives."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.path = Path(runtime_folder()) / f"{os.getpid()}-{_start_of(os.getpid()) or 0}.prom"
        self._stopped = threading.Event()
        self._write()  # whatever is wrong is told here
        self._thread = threading.Thread(target=self._run, name="pygpukit-publish", daemon=True)
        self._thread.start()

    def _write(self) -> None:
        temporary = self.path.with_suffix(f".{threading.get_ident()}.tmp")
        try:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            with open(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
                file.write(process_metrics())
            os.replace(temporary, self.path)
        except OSError as error:
            raise UnsupportedError(f"publish: '{self.path}': {error.strerror}") from error

    def _run(self) -> None:
        while not self._stopped.wait(self.interval):
            with contextlib.suppress(UnsupportedError):  # a full disk, for now: readers see an old file
                self._write()

    def stop(self) -> None:
        """Ends the publishing; the file goes."""
        global _publisher
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(5)
        with contextlib.suppress(OSError):
            self.path.unlink()
        with _lock:
            if _publisher is self:
                _publisher = None

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


_lock = threading.Lock()
_publisher: Publisher | None = None


def publish(interval: float = 1.0) -> Publisher:
    """Lets `pygpukit top` and `pygpukit serve-metrics` of this user see this process.

    Writes `gp.metrics()` every `interval` seconds (0.05 to 3600) to a file in the user's runtime folder,
    until stop() or the interpreter's end; `with` stops it too. A second call gives the first's publisher.
    The environment variable PYGPUKIT_PUBLISH=1 calls it at import.

    Raises UnsupportedError where there is no folder that only this user may write.
    """
    if not 0.05 <= interval <= 3600:
        raise InvalidValueError(
            f"publish: argument 'interval': expected 0.05 to 3600 seconds, got {interval}"
        )
    global _publisher
    with _lock:
        if _publisher is None:
            _publisher = Publisher(interval)
        return _publisher


def publish_at_import() -> None:
    """What PYGPUKIT_PUBLISH=1 asks for; a program runs on where it cannot be."""
    try:
        publish()
    except UnsupportedError as error:
        warnings.warn(f"PYGPUKIT_PUBLISH: {error}", RuntimeWarning, stacklevel=2)


def _after_fork() -> None:
    """A child has no publishing thread, and its parent's file is not its own."""
    global _lock, _publisher
    _lock = threading.Lock()
    parent, _publisher = _publisher, None
    if parent is not None:
        with contextlib.suppress(UnsupportedError):
            publish(parent.interval)


def _at_exit() -> None:
    if _publisher is not None:
        _publisher.stop()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@dataclass
class Process:
    """What one process published."""

    pid: int
    text: str
    age: float  # seconds since it was written


def _read_own(path: Path) -> tuple[str, float] | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        own = status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not stat.S_ISREG(status.st_mode) or not own or status.st_size > _MOST_BYTES:
            return None
        text = file.read(_MOST_BYTES).decode("utf-8", "replace")
    return text, max(0.0, time.time() - status.st_mtime)


def processes() -> list[Process]:
    """The living processes of this user that publish, by their numbers."""
    found = []
    for path in sorted(Path(runtime_folder()).glob("*.prom")):
        name = _NAME.match(path.name)
        if name is None:
            continue
        pid, start = int(name[1]), int(name[2])
        if (_start_of(pid) or 0) != start or (start == 0 and not _alive(pid)):
            with contextlib.suppress(OSError):
                path.unlink()
        elif (read := _read_own(path)) is not None:
            found.append(Process(pid, *read))
    return sorted(found, key=lambda each: each.pid)


def _alive(pid: int) -> bool:
    if pid == 0:  # would mean this process's group
        return False
    try:
        os.kill(pid, 0)
    except OverflowError:
        return False
    except OSError as error:
        return error.errno == errno.EPERM
    return True


@dataclass
class Family:
    """One metric: its help, its type, and its samples as (name, labels, value)."""

    help: str = ""
    type: str = "untyped"
    samples: list[tuple[str, dict[str, str], float]] = field(default_factory=list)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], text)


def parse(text: str) -> dict[str, Family]:
    """Text of ours, by family. Lines of another form are left out."""
    families: dict[str, Family] = {}
    current, name = Family(), ""
    for line in text.split("\n"):
        if line.startswith(("# HELP ", "# TYPE ")):
            name, _, rest = line[7:].partition(" ")
            current = families.setdefault(name, Family())
            if line.startswith("# HELP"):
                current.help = rest
            else:
                current.type = rest
        elif (sample := _SAMPLE.match(line)) and sample[1].startswith(name) and name:
            with contextlib.suppress(ValueError):
                labels = {key: _unescaped(value) for key, value in _LABEL.findall(sample[2])}
                current.samples.append((sample[1], labels, float(sample[3])))
    return families


def merged(texts: list[tuple[int, str]]) -> str:
    """The texts of several processes as one, each sample with the label `pid`."""
    families: dict[str, Family] = {}
    for pid, text in texts:
        for name, family in parse(text).items():
            into = families.setdefault(name, Family(family.help, family.type))
            into.samples += [
                (each, {"pid": str(pid), **labels}, value) for each, labels, value in family.samples
            ]
    lines = []
    for name, family in families.items():
        lines += [f"# HELP {name} {family.help}", f"# TYPE {name} {family.type}"]
        for each, labels, value in family.samples:
            inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            lines.append(f"{each}{{{inside}}} {value!r}")
    return "".join(line + "\n" for line in lines)


def published_metrics() -> str:
    """What the processes of this user published, with the label `pid`."""
    return merged([(each.pid, each.text) for each in processes()])


class MetricsServer:
    """Serves metrics at /metrics until stop(): what `gp.serve_metrics` gives."""

    def __init__(self, host: str, port: int, read: Callable[[], str]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 10
            server_version = f"pygpukit/{__version__}"
            sys_version = ""

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(404, "the metrics are at /metrics")
                    return
                try:
                    body = read().encode()
                except Exception as error:
                    self.send_error(500, explain=str(error))
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing is printed."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128
            block_on_close = False  # a client that says nothing holds nobody up

            def handle_error(self, *_: object) -> None:
                """A client that went away is no error of ours."""

        if not 0 <= port <= 65535:
            raise InvalidValueError(f"serve_metrics: argument 'port': expected 0 to 65535, got {port}")
        try:
            self._server = Server((host, port), Handler)
        except (OSError, UnicodeError) as error:
            raise UnsupportedError(f"serve_metrics: {host}:{port}: {error}") from error
        self._process = os.getpid()
        self.host, self.port = host, int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="pygpukit-metrics",
            daemon=True,
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where the metrics are."""
        return f"http://{self.host}:{self.port}/metrics"

    def stop(self) -> None:
        """Ends the serving and frees the port; in a forked child, which has no such thread, its copy."""
        if self._process != os.getpid():
            self._server.socket.close()
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def serve_metrics(port: int = 9177, host: str = "127.0.0.1") -> MetricsServer:
    """Serves this process's `gp.metrics()` at http://host:port/metrics from a thread of its own.

    port: 0 takes a free one; see `.port`. host: of this machine alone unless told otherwise.

    Raises UnsupportedError where the port cannot be had.
    """
    return MetricsServer(host, port, process_metrics)


def run_server(host: str, port: int) -> int:
    """`pygpukit serve-metrics`: every process of this user that publishes, until it is interrupted."""
    with MetricsServer(host, port, published_metrics) as server:
        print(f"{server.url} (processes that publish: PYGPUKIT_PUBLISH=1 or gp.publish())", flush=True)
        threading.Event().wait()
    return 0
