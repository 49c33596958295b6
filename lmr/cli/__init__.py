"""The command ``lmr``: each command parses its options and calls one function; no logic lives here."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from lmr.cli.bench import add_bench
from lmr.cli.cost import add_cost
from lmr.cli.doctor import add_doctor
from lmr.cli.options import Subparsers, add_command
from lmr.cli.predict import add_predict
from lmr.core.errors import LmrError
from lmr.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. 0: done; 1: done, with a complaint; 2: a sentence says why not; 130: interrupted."""
    options = _build_parser().parse_args(argv)
    try:
        with _stop_politely():
            complaint: str | None = options.run(options)
    except KeyboardInterrupt as stop:
        return _end(str(stop) or "Interrupted.", 130)
    except BrokenPipeError:  # the reader, for example head, has seen enough
        return _end("", 141)
    except (LmrError, OSError) as error:
        return _end(str(error), 2)
    return _end(complaint or "", 1 if complaint else 0)


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lmr",
        description="Keep a zero-shot image classifier accurate while the images it sees drift.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lmr {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_demo(subparsers)
    add_predict(subparsers)
    add_doctor(subparsers)
    add_cost(subparsers)
    add_bench(subparsers)
    _add_list(subparsers)
    return parser


_EXAMPLES = """\
examples:
  lmr demo                                                    see what it does, in about a minute
  lmr predict photos --labels "red star,blue ring" --out photos.jsonl
  lmr predict photos --labels names.txt --model openai/clip-vit-base-patch16 --out photos.jsonl
  lmr doctor openai/clip-vit-base-patch16                     what was loaded, and whether it works
  lmr cost --random ViT-B-16 --batch-size 16                  what a step costs on this machine
  lmr bench pocket && lmr report                              nine methods on 15 corruptions, then tables and figures
  lmr list                                                    methods, their arguments and presets, models
  lmr COMMAND --help                                          more about a command"""

_DEMO = """\
Show what test-time adaptation does: the small model that comes with lmr answers streams of corrupted pictures, first
as it is, then with each method. Prints a table and writes a picture of the running accuracy, a contact
sheet of the world the pictures come from, and every number with its protocol."""

_DEMO_EXAMPLES = """\
examples:
  lmr demo
  lmr demo --images 10000 --severity 3 --out long-demo"""


def _add_demo(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers, "demo", "watch a small model lose its accuracy and regain it", _DEMO, _DEMO_EXAMPLES
    )
    add = parser.add_argument
    add("--images", type=int, default=1280, metavar="N", help="pictures per stream (default: %(default)s)")
    add("--batch-size", type=int, default=64, metavar="N", help="pictures per adaptation step (default: %(default)s)")
    add("--severity", type=int, default=5, metavar="1..5", help="how strong the corruptions are (default: %(default)s)")
    add("--out", default="lmr-demo", metavar="FOLDER", help="where the files go (default: %(default)s)")
    parser.set_defaults(run=_run_demo)


def _run_demo(options: argparse.Namespace) -> None:
    from lmr.apps.demo import run_demo

    run_demo(Path(options.out), options.images, options.batch_size, options.severity)


def _add_list(subparsers: Subparsers) -> None:
    what = "Show every method with its arguments, defaults and presets, and every model."
    parser = add_command(subparsers, "list", "show methods and models", what, "example:\n  lmr list")
    parser.set_defaults(run=_run_list)


def _run_list(options: argparse.Namespace) -> None:
    from lmr.apps.listing import describe_everything

    print(describe_everything())


@contextlib.contextmanager
def _stop_politely() -> Iterator[None]:
    """Let a request to terminate (SIGTERM) do what Ctrl-C does."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread: signals are somebody else's
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _end(sentence: str, code: int) -> int:
    """Say the last word and leave standard output so that Python's own exit cannot complain about it."""
    if sentence:
        print(f"lmr: {sentence}", file=sys.stderr)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
    return code
