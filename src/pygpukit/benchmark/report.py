"""Rows as lines, as a Markdown table, and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ._measure import Row
from .compare import Comparison

_VERDICTS = {True: "met", False: "missed", None: ""}


def line(row: Row) -> str:
    ratios = "  ".join(f"{ratio:.2f}x {what}" for what, ratio in row.ratios.items())
    figures = "  ".join(f"{what} {value:.6g}" for what, value in row.figures.items())
    error = "" if row.error is None else f"  error {row.error:.1e}"
    rate = "" if row.rate is None else f"  {row.rate:.4g} {row.rate_unit}"
    share = "" if row.share is None else f" ({row.share:.0%} of {row.limit})"
    verdict = {True: f"  MET {row.goal}", False: f"  MISSED {row.goal}", None: ""}[row.met]
    note = f"  [{row.note}]" if row.note else ""
    spread = f"({row.low:.3f}..{row.high:.3f})"
    return (
        f"{row.name:48s} {row.value:10.3f} {row.unit} {spread}{rate}{share}{error}{verdict}"
        f"  {ratios}  {figures}{note}"
    ).rstrip()


def _rivals(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.ratios))


def markdown(rows: Sequence[Row]) -> str:
    """A table a group; a column a peer: how many times as fast as it."""
    parts = []
    for group in dict.fromkeys(row.group for row in rows):
        members = [row for row in rows if row.group == group]
        rivals = _rivals(members)
        header = ["", "time", "rate", "of the limit"]
        header += [f"as fast as {name}" for name in rivals]
        header += ["error", "goal"]
        lines = [header, ["---", *["---:"] * (len(header) - 2), "---"]]
        for row in members:
            ratios = [f"{row.ratios[name]:.2f}x" if name in row.ratios else "" for name in rivals]
            verdict = f"{row.goal}: {_VERDICTS[row.met]}" if row.met is not None else row.goal or ""
            lines.append(
                [
                    row.name.replace("|", "\\|"),
                    f"{row.value:.4g} {row.unit}",
                    "" if row.rate is None else f"{row.rate:.4g} {row.rate_unit}",
                    "" if row.share is None else f"{row.share:.0%} {row.limit}",
                    *ratios,
                    "" if row.error is None else f"{row.error:.1e}",
                    verdict,
                ]
            )
        parts.append("\n".join("| " + " | ".join(cells) + " |" for cells in lines))
    return "\n\n".join(parts) + "\n"


def comparison(found: Comparison, threshold: float) -> str:
    lines = [
        f"{change.name:48s} {change.ratio:6.3f}x as fast as before, by {change.by}"
        + ("  REGRESSED" if change.regressed(threshold) else "")
        for change in found.changes
    ]
    lines += [f"{name:48s} only in the record" for name in found.only_before]
    lines += [f"{name:48s} not in the record" for name in found.only_now]
    return "\n".join(lines)


def plotter() -> Any:
    """matplotlib's pyplot, to draw into files. Raises ImportError, saying what to install."""
    try:
        import matplotlib
    except ImportError:
        raise ImportError("--plot needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def plot(pyplot: Any, rows: Sequence[Row], path: Path, title: str) -> None:
    """Shares of the limit, ours as bars and the peers' as marks."""
    shown = [row for row in rows if row.share is not None]
    figure, axes = pyplot.subplots(figsize=(10, 1.5 + 0.28 * max(len(shown), 1)), layout="constrained")
    places = range(len(shown))
    axes.barh(places, [100 * (row.share or 0) for row in shown], color="#76b900", label="pygpukit")
    for name in _rivals(shown):
        marks = [(i, row.share or 0, row.ratios[name]) for i, row in enumerate(shown) if name in row.ratios]
        shares = [100 * share / ratio for _, share, ratio in marks]
        axes.plot(shares, [i for i, _, _ in marks], "|", markersize=12, label=name)
    axes.set_yticks(places, [row.name for row in shown], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("% of the limit measured in the same run")
    axes.set_title(title)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
