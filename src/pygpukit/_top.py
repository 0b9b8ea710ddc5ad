"""`pygpukit top`: devices, partitions and processes of this user.

What partitions have is read from the devices' ledgers, of all processes; what they do, of those that publish.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _metrics
from ._native import UnsupportedError, _ledger_entries

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_STALE_SECONDS = 10.0
_GAP = 3  # columns of a terminal between those of a table

_UNKNOWN = "-"  # of what only processes that publish tell
_ENDED = " (ended)"  # after the name of a partition that is gone, and whose arrays are not

Key = tuple[int, str, str, str]  # pid, device, partition, qos


def bytes_text(value: float) -> str:
    """1536 -> '1.5 KiB'"""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def count_text(value: float) -> str:
    """12345 -> '12.3k'"""
    for unit in ("", "k", "M", "G"):
        if abs(value) < 1000:
            return f"{value:.0f}{unit}" if not unit or value >= 100 else f"{value:.1f}{unit}"
        value /= 1000
    return f"{value:.1f}T"


def _command(pid: int) -> str:
    """What a process that does not publish was started as."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "?"
    names = [Path(word.decode("utf-8", "replace")).name for word in words if word and word[:1] != b"-"]
    script = next((name for name in names if name.endswith(".py")), None)
    return script or (names[0] if names else "?")


@dataclass
class Share:
    """What the partitions of one name in one process have, as the device's ledger says."""

    names: set[str] = field(default_factory=set)
    qos: str = ""
    memory: int = 0
    groups: int = 0
    compute: float = 0.0
    bandwidth: float = 0.0

    def add(self, entry: dict[str, Any]) -> None:
        self.names.add(entry["name"])
        self.qos = entry["qos"]
        self.memory += entry["memory_bytes"]
        self.groups += len(entry["sm_groups"])
        self.compute += entry["compute"]
        self.bandwidth += entry["bandwidth"]

    def sms(self, group_size: float) -> str:
        """Its SMs, its groups where nobody told what a group is, or its share of the time."""
        if self.groups and group_size:
            return f"{self.groups * group_size:.0f}"
        if self.groups:
            return f"{self.groups} group{'s' if self.groups > 1 else ''}"
        return f"{self.compute:.0%}" if self.compute else "all"


@dataclass
class Snapshot:
    """What the ledgers held and all processes published at one time."""

    when: float
    commands: dict[int, str] = field(default_factory=dict)
    ages: dict[int, float] = field(default_factory=dict)
    # family -> the rest of its labels, such as a state -> sums by key
    values: dict[str, dict[str, dict[Key, float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
    )
    models: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # of devices, by their ledgers'
    shares: dict[tuple[int, str, str], Share] = field(  # by pid, device and partition
        default_factory=lambda: defaultdict(Share)
    )

    @staticmethod
    def take(
        processes: Iterable[_metrics.Process], when: float, ledger: Iterable[dict[str, Any]] = ()
    ) -> Snapshot:
        snapshot = Snapshot(when)
        for process in processes:
            snapshot.ages[process.pid] = process.age
            snapshot.commands[process.pid] = "?"
            for name, family in _metrics.parse(process.text).items():
                for _, labels, value in family.samples:
                    snapshot._add(process.pid, name, dict(labels), value)
        for entry in ledger:
            device = snapshot.names.get(entry["device"], entry["device"])
            snapshot.shares[entry["pid"], device, entry["name"].removesuffix(_ENDED)].add(entry)
        return snapshot

    def _add(self, pid: int, name: str, labels: dict[str, str], value: float) -> None:
        if name == "pygpukit_process_info":
            self.commands[pid] = labels.get("command", "?")
        elif name == "pygpukit_device_info":
            device = labels.get("device", "?")
            self.models[device] = labels.get("model", "?")
            self.names[labels.get("bus") or device] = device
        elif "le" not in labels:
            key = pid, labels.pop("device", ""), labels.pop("partition", ""), labels.pop("qos", "")
            self.values[name][",".join(labels.values())][key] += value

    def total(self, name: str, which: str | None = None, **where: Any) -> float:
        """The sum of a family over the keys that agree with `where` (pid, device, partition)."""
        fields = {"pid": 0, "device": 1, "partition": 2}
        series = self.values.get(name, {})
        return sum(
            value
            for label, by_key in series.items()
            if which is None or label == which
            for key, value in by_key.items()
            if all(key[fields[field]] == wanted for field, wanted in where.items())
        )

    def largest(self, name: str, which: str, device: str) -> float:
        """Of what each process says of a whole device."""
        by_key = self.values.get(name, {}).get(which, {})
        return max((value for key, value in by_key.items() if key[1] == device), default=0.0)

    def tenants(self) -> list[Key]:
        """Tenants on devices, first the work of no tenant."""
        found: set[Key] = set()
        for name in ("pygpukit_work_total", "pygpukit_partition_memory_used_bytes"):
            for by_key in self.values.get(name, {}).values():
                found.update(by_key)
        placed = {(pid, partition, qos) for pid, device, partition, qos in found if device}
        # Memory is not told by device: of the same tenant it is one row.
        found = {key for key in found if key[1] or (key[0], *key[2:]) not in placed}
        return sorted(found, key=lambda key: (key[0], key[2], key[1]))

    def group_size(self, device: str) -> float:
        """SMs of a group; 0 where no process that publishes uses the device."""
        return self.largest("pygpukit_device_sm_group_size", "", device)

    def groups(self, device: str) -> int:
        """SM groups that partitions of all processes have."""
        return sum(share.groups for key, share in self.shares.items() if key[1] == device)

    def share(self, pid: int, device: str, partition: str) -> Share:
        """What a tenant that publishes has; its metrics need not name its device."""
        return next(
            (
                share
                for key, share in self.shares.items()
                if key[0] == pid and key[2] == partition and device in ("", key[1])
            ),
            Share(),
        )


class View:
    """Tables of a snapshot; rates are those since the one before."""

    def __init__(self, now: Snapshot, before: Snapshot | None) -> None:
        self.now = now
        self.before = before

    def rate(self, name: str, which: str | None = None, **where: Any) -> float | None:
        """A second; nothing without an earlier snapshot."""
        if self.before is None or self.now.when <= self.before.when:
            return None
        change = self.now.total(name, which, **where) - self.before.total(name, which, **where)
        return max(0.0, change) / (self.now.when - self.before.when)

    def _rate_text(self, name: str, text: Any, which: str | None = None, **where: Any) -> str:
        rate = self.rate(name, which, **where)
        return "-" if rate is None else f"{text(rate)}/s"

    def render(self, width: int) -> RenderableType:
        """All tables, for a terminal of that many columns."""
        from rich.console import Group
        from rich.text import Text

        hint = Text(
            "No process of this user publishes.\n"
            "Start one with PYGPUKIT_PUBLISH=1, or call gp.publish() in it."
        )
        if not self.now.ages and not self.now.shares:
            return hint
        tables = [self._devices(width), self._partitions(width), self._processes(width)]
        return Group(*tables) if self.now.ages else Group(*tables, hint)

    def _table(
        self, title: str, columns: list[tuple[str, bool, int]], rows: list[list[str]], width: int
    ) -> Any:
        """columns: (heading, whether it is a number, rank: the highest go first where the width is small)"""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        # Names come from outside: no markup, no control characters.
        cells = [[Text("".join(c if c.isprintable() else "?" for c in cell)) for cell in row] for row in rows]
        wide = [max([len(c[0]), *(row[i].cell_len for row in cells)]) for i, c in enumerate(columns)]
        shown = list(range(len(columns)))
        while sum(wide[i] + _GAP for i in shown) > width + 1 and any(columns[i][2] for i in shown):
            shown.remove(max(shown, key=lambda i: columns[i][2]))
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for i in shown:
            heading, number, _ = columns[i]
            table.add_column(
                heading, justify="right" if number else "left", no_wrap=True, overflow="ellipsis"
            )
        for row in cells:
            table.add_row(*[row[i] for i in shown])
        return table

    def _devices(self, width: int) -> Any:
        now = self.now
        rows = []
        for device in sorted(now.models):
            free = now.largest("pygpukit_device_memory_bytes", "free", device)
            total = now.largest("pygpukit_device_memory_bytes", "total", device)
            sms = now.largest("pygpukit_device_multiprocessors", "", device)
            own = now.groups(device) * now.group_size(device)
            own = own or now.total("pygpukit_partition_multiprocessors", device=device)
            rows.append(
                [
                    device,
                    now.models[device],
                    f"{bytes_text(total - free)} / {bytes_text(total)}",
                    bytes_text(now.total("pygpukit_memory_bytes", "live", device=device)),
                    f"{own:.0f} / {sms:.0f}",
                    self._rate_text("pygpukit_work_declared_bytes_total", bytes_text, device=device),
                    self._rate_text("pygpukit_work_total", count_text, device=device),
                ]
            )
        for device in sorted({key[1] for key in now.shares} - set(now.models)):
            rows.append([device, *[_UNKNOWN] * 3, f"{now.groups(device)} groups", *[_UNKNOWN] * 2])
        columns = [
            ("device", False, 0),
            ("model", False, 6),
            ("memory", True, 0),
            ("live", True, 4),
            ("own SMs", True, 3),
            ("traffic", True, 2),
            ("work", True, 1),
        ]
        return self._table("Devices", columns, rows, width)

    def _partitions(self, width: int) -> Any:
        now = self.now
        rows = []
        seen: set[tuple[int, str]] = set()
        for pid, device, partition, qos in now.tenants():
            where: dict[str, Any] = {"pid": pid, "partition": partition}
            on = {**where, "device": device}
            if not partition and not device:
                continue
            limit = now.total("pygpukit_partition_memory_limit_bytes", **where)
            used = now.total("pygpukit_partition_memory_used_bytes", **where)
            sms = now.total("pygpukit_partition_multiprocessors", **where)
            waiting = sum(now.total("pygpukit_tasks", state, **on) for state in ("pending", "queued"))
            share = now.share(pid, device, partition)
            seen.add((pid, partition))
            rows.append(
                [
                    ", ".join(sorted(share.names)) or partition or "(none)",
                    qos or "-",
                    str(pid),
                    device or "-",
                    (f"{bytes_text(used)} / {bytes_text(limit) if limit else 'any'}" if partition else "-"),
                    f"{sms:.0f}" if sms else share.sms(now.group_size(device)),
                    f"{share.bandwidth:.0%}" if share.bandwidth else "all",
                    self._rate_text("pygpukit_work_declared_bytes_total", bytes_text, **on),
                    self._rate_text("pygpukit_work_total", count_text, **on),
                    f"{now.total('pygpukit_tasks', 'running', **on):.0f} + {waiting:.0f}",
                    bytes_text(now.total("pygpukit_memory_evicted_bytes", **on)),
                ]
            )
        for (pid, device, partition), share in now.shares.items():
            if (pid, partition) in seen:
                continue
            rows.append(
                [
                    ", ".join(sorted(share.names)),
                    share.qos,
                    str(pid),
                    device,
                    f"{_UNKNOWN} / {bytes_text(share.memory) if share.memory else 'any'}",
                    share.sms(now.group_size(device)),
                    f"{share.bandwidth:.0%}" if share.bandwidth else "all",
                    *[_UNKNOWN] * 4,
                ]
            )
        rows.sort(key=lambda row: int(row[2]))
        columns = [
            ("partition", False, 0),
            ("qos", False, 5),
            ("pid", True, 0),
            ("device", False, 6),
            ("memory", True, 1),
            ("SMs", True, 2),
            ("bandwidth", True, 7),
            ("traffic", True, 4),
            ("work", True, 3),
            ("tasks", True, 8),
            ("evicted", True, 9),
        ]
        return self._table("Partitions and tenants", columns, rows, width)

    def _processes(self, width: int) -> Any:
        now = self.now
        rows = []
        for pid, age in now.ages.items():
            live = now.total("pygpukit_memory_bytes", "live", pid=pid)
            cached = now.total("pygpukit_memory_bytes", "cached", pid=pid)
            moving = now.total("pygpukit_transfers", pid=pid)
            rows.append(
                [
                    str(pid),
                    now.commands[pid],
                    bytes_text(live),
                    bytes_text(cached),
                    self._rate_text("pygpukit_copied_bytes_total", bytes_text, "to_device", pid=pid),
                    self._rate_text("pygpukit_copied_bytes_total", bytes_text, "to_host", pid=pid),
                    f"{moving:.0f}",
                    self._rate_text("pygpukit_work_total", count_text, pid=pid),
                    f"silent for {age:.0f} s" if age > _STALE_SECONDS else "",
                ]
            )
        for pid in sorted({key[0] for key in now.shares} - set(now.ages)):
            rows.append([str(pid), _command(pid), *[_UNKNOWN] * 6, "does not publish"])
        columns = [
            ("pid", True, 0),
            ("command", False, 0),
            ("live", True, 1),
            ("cached", True, 6),
            ("to device", True, 4),
            ("to host", True, 5),
            ("transfers", True, 7),
            ("work", True, 2),
            ("", False, 3),
        ]
        return self._table("Processes", columns, rows, width)


def _snapshot() -> Snapshot:
    return Snapshot.take(_metrics.processes(), time.monotonic(), _ledger_entries())


def run(*, once: bool, interval: float) -> int:
    """Shows the tables until interrupted; once where `once` is set or there is no terminal."""
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError as error:
        raise UnsupportedError("top: expected the package rich; pip install rich") from error
    console: Console = Console(highlight=False)
    before = _snapshot()
    if once or not sys.stdout.isatty():
        if before.ages:
            time.sleep(min(interval, 1.0))  # two snapshots, for the rates
        console.print(View(_snapshot(), before).render(console.width))
        return 0
    with Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(View(before, None).render(console.width), refresh=True)
        while True:
            time.sleep(interval)
            now = _snapshot()
            live.update(View(now, before).render(console.width), refresh=True)
            before = now
