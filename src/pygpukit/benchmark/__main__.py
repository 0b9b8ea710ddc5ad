"""python -m pygpukit.benchmark: see --help."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from pygpukit import Error

from . import __doc__ as description
from . import compare, kernels, peers, random_models, report, scheduling
from ._measure import Row, environment
from .products import DTYPES, full_name

_SCHEDULING_HELP = (
    "partitions, pacing, launch hooks, the pool, transfers: all sections, or those named of\n"
    + textwrap.fill(", ".join(scheduling.SECTIONS), 60)
)
_T = TypeVar("_T")


def _listed(read: Callable[[str], _T]) -> Callable[[str], list[_T]]:
    def items(text: str) -> list[_T]:
        try:
            return [read(each) for each in text.split(",")]
        except ValueError as reason:
            raise argparse.ArgumentTypeError(str(reason)) from None

    return items


def _extent(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 1 << 17:
        raise ValueError(f"expected numbers from 1 to {1 << 17}, got {number}")
    return number


def _peer(text: str) -> str:
    if text not in peers.NAMES:
        raise ValueError(f"expected some of {', '.join(peers.NAMES)}; got {text!r}")
    return text


def _each(name: str, rows: Iterable[Row]) -> Iterator[tuple[str, Row | Exception]]:
    """The rows with their names; what fails meanwhile is told as such, and loses none."""
    try:
        for row in rows:
            yield row.name, row
    except Exception as failure:
        yield name, failure


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pygpukit.benchmark",
        description=description,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    what = parser.add_argument_group("what to measure")
    what.add_argument("--quick", action="store_true", help="tiny sizes: whether it runs, not how fast")
    what.add_argument("--all", action="store_true", help="all groups of kernels, and --overhead")
    for group, text in kernels.GROUPS.items():
        what.add_argument(f"--{group}", action="store_true", help=text)
    what.add_argument("--overhead", action="store_true", help="cost of a call on tiny arrays, beside peers")
    what.add_argument(
        "--decode",
        nargs="*",
        metavar="MODEL",
        help="tokens/s of language models: names and folders as gp.llm.load takes them, or shapes with\n"
        f"random weights, {', '.join(random_models.CONFIGS)} (default: these)",
    )
    what.add_argument("--load", action="store_true", help="a safetensors file from the page cache")
    what.add_argument("--dtype", help="the model's dtype (default: bfloat16 on a GPU, float32 otherwise)")
    what.add_argument("--sizes", type=_listed(_extent), metavar="N,...", help="sides of square products")
    what.add_argument(
        "--dtypes",
        type=_listed(full_name),
        metavar="D,...",
        help="of products: bf16, fp16, tf32, fp32, fp64, fp8, int8",
    )
    what.add_argument("--seq-lens", type=_listed(_extent), metavar="N,...", help="tokens, for --attention")
    what.add_argument(
        "--peers",
        type=_listed(_peer),
        metavar="P,...",
        help=f"of {', '.join(peers.NAMES)} (default: those installed)",
    )
    out = parser.add_argument_group("the results")
    out.add_argument("--save", metavar="FILE", type=Path, help="write the record as JSON")
    form = out.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the record as JSON instead of a table")
    form.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    out.add_argument("--plot", metavar="FILE.png", type=Path, help="draw the shares of the limits")
    out.add_argument("--compare", metavar="FILE", type=Path, help="hold the run against a saved record")
    out.add_argument("--threshold", type=float, default=0.05, help="of a regression (default: 0.05)")
    out.add_argument("--fail-on-regression", action="store_true", help="exit with 1 where one is found")
    out.add_argument(
        "--commit", help="the commit to record, where the package does not lie in its repository"
    )
    shared = parser.add_argument_group("the GPU as a shared resource")
    shared.add_argument(
        "--scheduling", nargs="*", metavar="SECTION", choices=scheduling.SECTIONS, help=_SCHEDULING_HELP
    )
    shared.add_argument("--seconds", type=float, default=150, help="that a section may take (default: 150)")
    shared.add_argument("--executable", type=Path, help="pygpukit_benchmarks, where it is not in build/")
    shared.add_argument("--victim", choices=("compute", "mixed", "memory"), help="the victim's kernel")
    shared.add_argument("--bandwidth", type=float, metavar="SHARE", help="of the paced neighbour's partition")
    return parser


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    named = [group for group in kernels.GROUPS if getattr(options, group)]
    asked = (options.overhead, options.load, options.decode is not None, options.scheduling is not None)
    nothing_named = not (named or any(asked))
    if options.all or (options.quick and nothing_named):
        named, options.overhead = list(kernels.GROUPS), True
    elif nothing_named:
        parser.error("nothing to measure: give --quick, --all or what to measure, see --help")
    if options.fail_on_regression and not options.compare:
        parser.error("--fail-on-regression needs --compare FILE")
    if not 0 <= options.threshold < 1:
        parser.error(f"--threshold: expected a number from 0 to 1, got {options.threshold}")
    for name, path in (("--save", options.save), ("--plot", options.plot)):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            parser.error(f"{name}: expected a file in a folder that is there, got {path}")
    try:
        before = compare.read_record(options.compare) if options.compare else None
        pyplot = report.plotter() if options.plot else None
        suite = kernels.Suite(
            sizes=options.sizes,
            dtypes=options.dtypes or list(DTYPES),
            seq_lens=options.seq_lens,
            quick=options.quick,
            peers=options.peers,
        )
    except (ValueError, ImportError, Error) as reason:
        parser.error(str(reason))

    record = environment(["torch", "cupy-cuda13x", "cupy-cuda12x"], options.commit)
    rows: list[Row] = []
    failures: dict[str, str] = {}
    skipped: dict[str, str] = {}
    quiet = options.json or options.markdown

    def save() -> None:
        record["rows"] = [each.as_dict() for each in rows]
        record["limits"] = suite.limits.as_dict()
        for name, found in (("failures", failures), ("skipped", skipped)):
            if found:
                record[name] = found
        if options.save:
            options.save.write_text(json.dumps(record, indent=1) + "\n")

    def keep(measured: Iterable[tuple[str, Row | Exception]]) -> None:
        for name, what in measured:
            if isinstance(what, Row):
                rows.append(what)
                if not quiet:
                    print(report.line(what), flush=True)
            elif isinstance(what, NotImplementedError):
                skipped[name] = str(what)
                print(f"{name}: skipped: {what}", file=sys.stderr)
            else:
                failures[name] = f"{type(what).__name__}: {what}"
                print(f"{name}: FAILED: {failures[name]}", file=sys.stderr)
            save()

    for group in named:
        keep(suite.measure(group))
    if options.overhead:
        from . import overhead

        keep(_each("overhead", overhead.measure(400 if options.quick else 4000)))
    for model in [] if options.decode is None else options.decode or random_models.CONFIGS:
        from . import decode

        rates = decode.measure(model, suite.limits, options.dtype, options.quick)
        keep(_each(f"decode {model}", rates))
    if options.load:
        from . import loading

        keep(_each("load", (loading.measure(quick) for quick in [options.quick])))
    if options.scheduling is not None:
        keep(
            scheduling.measure(
                options.scheduling,
                quick=options.quick,
                seconds=options.seconds,
                executable=options.executable,
                arguments=(["--victim", options.victim] if options.victim else [])
                + (["--bandwidth", str(options.bandwidth)] if options.bandwidth else []),
            )
        )
    save()
    if options.json:
        print(json.dumps(record, indent=1))
    if options.markdown:
        print(report.markdown(rows), end="")
    if pyplot is not None:
        report.plot(pyplot, rows, options.plot, f"{record['card']}, {record['date']}")
    regressed = False
    if before is not None:
        found = compare.compare(before, rows, str(record["card"]))
        print(report.comparison(found, options.threshold), file=sys.stderr if quiet else sys.stdout)
        regressed = bool(found.regressions(options.threshold))
    return 1 if failures or (regressed and options.fail_on_regression) else 0


if __name__ == "__main__":
    sys.exit(main())
