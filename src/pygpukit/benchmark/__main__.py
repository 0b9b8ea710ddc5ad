"""python -m pygpukit.benchmark: see --help."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from . import __doc__ as description
from ._measure import Row, environment


def _print_table(rows: list[Row]) -> None:
    for row in rows:
        ratios = "  ".join(f"{ratio:.2f}x {what}" for what, ratio in row.ratios.items())
        error = "" if row.error is None else f"  error {row.error:.1e}"
        print(f"{row.name:48s} {row.value:10.3f} {row.unit} ({row.low:.3f}..{row.high:.3f}){error}  {ratios}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pygpukit.benchmark",
        description=description,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--overhead", action="store_true", help="cost of a call on tiny arrays, beside peers")
    parser.add_argument("--decode", metavar="MODEL", help="tokens/s of a language model at batch 1")
    parser.add_argument("--dtype", help="the model's dtype (default: bfloat16 on a GPU, float32 otherwise)")
    parser.add_argument("--save", metavar="FILE", type=Path, help="write the record as JSON")
    parser.add_argument("--json", action="store_true", help="print the record as JSON instead of a table")
    parser.add_argument(
        "--commit", help="the commit to record, where the package does not lie in its repository"
    )
    options = parser.parse_args(arguments)
    if not (options.overhead or options.decode):
        parser.error("nothing to measure: give --overhead or --decode MODEL")

    rows: list[Row] = []
    if options.overhead:
        from . import overhead

        rows += overhead.measure()
    if options.decode:
        from . import decode

        rows += decode.measure(options.decode, options.dtype)
    record = environment(["torch", "cupy-cuda13x", "cupy-cuda12x"], options.commit)
    record["rows"] = [row.as_dict() for row in rows]
    if options.save:
        options.save.write_text(json.dumps(record, indent=1) + "\n")
    if options.json:
        print(json.dumps(record, indent=1))
    else:
        _print_table(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
