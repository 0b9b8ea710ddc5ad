"""A run held against an earlier one."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ._measure import Row


@dataclasses.dataclass(frozen=True)
class Change:
    """ratio: how much faster the row is than it was, by what both runs measured it against."""

    name: str
    ratio: float
    by: str  # "share of copy", "peers torch", "time"

    def regressed(self, threshold: float) -> bool:
        return self.ratio < 1 - threshold


@dataclasses.dataclass(frozen=True)
class Comparison:
    changes: tuple[Change, ...]
    only_before: tuple[str, ...]
    only_now: tuple[str, ...]

    def regressions(self, threshold: float) -> list[Change]:
        return [change for change in self.changes if change.regressed(threshold)]


def read_record(path: Path) -> dict[str, Any]:
    """The record that --save wrote. Raises ValueError for another file."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError) as reason:
        raise ValueError(f"--compare {path}: {reason}") from None
    rows = record.get("rows") if isinstance(record, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "name" in row for row in rows):
        raise ValueError(f"--compare {path}: expected a record that --save wrote")
    return dict(record)


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0


def _change(before: dict[str, Any], now: Row, same_card: bool) -> Change | None:
    """The machine drifts, so a share of its limit or a ratio to peers counts before a time does."""
    share = before.get("share") or 0.0
    if before.get("limit") == now.limit and _positive(share) and now.share is not None and now.share > 0:
        return Change(now.name, now.share / share, f"share of {now.limit}")
    earlier = before.get("ratios") or {}
    common = [name for name, ratio in now.ratios.items() if _positive(ratio) and _positive(earlier.get(name))]
    if common:
        logs = [math.log(now.ratios[name] / earlier[name]) for name in common]
        return Change(now.name, math.exp(statistics.fmean(logs)), f"ratio to {', '.join(common)}")
    timed = now.unit == before.get("unit") and now.unit in ("us", "ns", "ms", "s")
    if same_card and timed and _positive(before.get("value")) and _positive(now.value):
        return Change(now.name, before["value"] / now.value, "time")
    return None


def compare(record: dict[str, Any], rows: Sequence[Row], card: str) -> Comparison:
    """Rows are the same by name. Those that nothing can tell apart are in neither list."""
    before = {row["name"]: row for row in record["rows"]}
    now = {row.name: row for row in rows}
    same_card = record.get("card") == card
    changes = [
        change
        for name, row in now.items()
        if name in before and (change := _change(before[name], row, same_card)) is not None
    ]
    return Comparison(
        tuple(changes),
        tuple(name for name in before if name not in now),
        tuple(name for name in now if name not in before),
    )
