"""python -m pygpukit.benchmark: see --help."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path

from . import __doc__ as description
from . import scheduling
from ._measure import Row, environment

_SCHEDULING_HELP = (
    "partitions, pacing, launch hooks, the pool, transfers: all sections, or those named of\n"
    + textwrap.fill(", ".join(scheduling.SECTIONS), 60)
)


def _print_row(row: Row) -> None:
    ratios = "  ".join(f"{ratio:.2f}x {what}" for what, ratio in row.ratios.items())
    figures = "  ".join(f"{what} {value:.6g}" for what, value in row.figures.items())
    error = "" if row.error is None else f"  error {row.error:.1e}"
    verdict = {True: f"  MET {row.goal}", False: f"  MISSED {row.goal}", None: ""}[row.met]
    spread = f"({row.low:.3f}..{row.high:.3f})"
    print(
        f"{row.name:48s} {row.value:10.3f} {row.unit} {spread}{error}{verdict}  {ratios}  {figures}".rstrip()
    )


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
    shared = parser.add_argument_group("the GPU as a shared resource")
    shared.add_argument(
        "--scheduling", nargs="*", metavar="SECTION", choices=scheduling.SECTIONS, help=_SCHEDULING_HELP
    )
    shared.add_argument("--quick", action="store_true", help="tiny sizes: whether it runs, not how fast")
    shared.add_argument("--seconds", type=float, default=150, help="that a section may take (default: 150)")
    shared.add_argument("--executable", type=Path, help="pygpukit_benchmarks, where it is not in build/")
    shared.add_argument("--victim", choices=("compute", "mixed", "memory"), help="the victim's kernel")
    shared.add_argument("--bandwidth", type=float, metavar="SHARE", help="of the paced neighbour's partition")
    options = parser.parse_args(arguments)
    if not (options.overhead or options.decode or options.scheduling is not None):
        parser.error("nothing to measure: give --overhead, --decode MODEL or --scheduling")

    record = environment(["torch", "cupy-cuda13x", "cupy-cuda12x"], options.commit)
    rows: list[Row] = []
    failures: dict[str, str] = {}

    def keep(row: Row) -> None:
        rows.append(row)
        if not options.json:
            _print_row(row)
            sys.stdout.flush()

    def save() -> None:
        record["rows"] = [each.as_dict() for each in rows]
        if failures:
            record["failures"] = failures
        if options.save:
            options.save.write_text(json.dumps(record, indent=1) + "\n")

    if options.overhead:
        from . import overhead

        for row in overhead.measure():
            keep(row)
        save()
    if options.decode:
        from . import decode

        for row in decode.measure(options.decode, options.dtype):
            keep(row)
        save()
    if options.scheduling is not None:
        measured = scheduling.measure(
            options.scheduling,
            quick=options.quick,
            seconds=options.seconds,
            executable=options.executable,
            arguments=(["--victim", options.victim] if options.victim else [])
            + (["--bandwidth", str(options.bandwidth)] if options.bandwidth else []),
        )
        for section, what in measured:
            if isinstance(what, Row):
                keep(what)
            else:
                failures[section] = f"{type(what).__name__}: {what}"
                print(f"{section}: FAILED: {failures[section]}", file=sys.stderr)
            save()
    save()
    if options.json:
        print(json.dumps(record, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
