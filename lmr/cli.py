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
from typing import TYPE_CHECKING, NoReturn

from lmr.core.errors import LmrError
from lmr.version import __version__

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. 0: done; 2: a sentence on standard error says why not; 130: interrupted."""
    options = _build_parser().parse_args(argv)
    try:
        with _stop_politely():
            options.run(options)
    except KeyboardInterrupt as stop:
        return _end(str(stop) or "Interrupted.", 130)
    except BrokenPipeError:  # the reader, for example head, has seen enough
        return _end("", 141)
    except (LmrError, OSError) as error:
        return _end(str(error), 2)
    return _end("", 0)


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
    _add_predict(subparsers)
    _add_list(subparsers)
    return parser


def _add_command(
    subparsers: Subparsers, name: str, line: str, description: str, examples: str
) -> argparse.ArgumentParser:
    return subparsers.add_parser(
        name,
        help=line,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


_EXAMPLES = """\
examples:
  lmr demo                                                    see what it does, in about a minute
  lmr predict photos --labels "red star,blue ring" --out photos.jsonl
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
    parser = _add_command(
        subparsers, "demo", "watch a small model lose its accuracy and regain it", _DEMO, _DEMO_EXAMPLES
    )
    add = parser.add_argument
    add("--images", type=int, default=1280, metavar="N", help="pictures per stream (default: %(default)s)")
    add("--batch-size", type=int, default=64, metavar="N", help="pictures per adaptation step (default: %(default)s)")
    add("--severity", type=int, default=5, metavar="1..5", help="how strong the corruptions are (default: %(default)s)")
    add("--out", default="lmr-demo", metavar="FOLDER", help="where the files go (default: %(default)s)")
    parser.set_defaults(run=_run_demo)


def _run_demo(options: argparse.Namespace) -> None:
    from lmr.bench.demo import run_demo

    run_demo(Path(options.out), options.images, options.batch_size, options.severity)


def _add_list(subparsers: Subparsers) -> None:
    what = "Show every method with its arguments, defaults and presets, and every model."
    parser = _add_command(subparsers, "list", "show methods and models", what, "example:\n  lmr list")
    parser.set_defaults(run=_run_list)


def _run_list(options: argparse.Namespace) -> None:
    from lmr.jobs.listing import describe_everything

    print(describe_everything())


_PREDICT = """\
Label pictures with your own class names, without training data. The model adapts to the pictures while it labels
them, batch by batch in a stable order (img2 before img10), so that noise, fog or a new camera cost less accuracy.
The only model so far is the embedded one: 32x32 drawings of coloured shapes, with a vocabulary of 73 words.

One line per picture goes to --out as soon as its batch is done. A run that was interrupted or killed
continues with --resume and ends with exactly the lines it would have had. A picture that cannot be read gets a line
with an "error" and disturbs nothing."""

_PREDICT_EXAMPLES = """\
examples:
  label a folder, three best classes each:
    lmr predict photos --labels "red circle,blue star,green ring" --top 3 --out photos.jsonl
  the same as a table for a spreadsheet, class names from a file with one per line:
    lmr predict photos --labels names.txt --out photos.csv
  it was interrupted; continue:
    lmr predict photos --labels names.txt --out photos.csv --resume
  every day a new folder, and tomorrow knows what today learnt:
    lmr predict monday  --labels names.txt --state camera.state --out monday.jsonl
    lmr predict tuesday --labels names.txt --state camera.state --out tuesday.jsonl
  the same model without adaptation, to compare:
    lmr predict photos --labels names.txt --method zeroshot --out plain.jsonl

lines:
  .jsonl  {"path": ..., "label": ..., "probability": ..., "top": [[label, probability], ...]}
          {"path": ..., "error": ...}
  .csv    path,label,probability,top1,...,topN,error   where top1 is label:probability

exit codes: 0 done, 2 something does not fit (a sentence says what), 130 interrupted, 141 the reader of
standard output has gone."""


def _add_predict(subparsers: Subparsers) -> None:
    parser = _add_command(
        subparsers, "predict", "label a folder of pictures while adapting to it", _PREDICT, _PREDICT_EXAMPLES
    )
    add = parser.add_argument
    add("sources", nargs="+", metavar="FOLDER|FILE", help="folders (searched to the bottom) and picture files")
    add("--labels", required=True, metavar="FILE|A,B,C", help="the class names: a text file, one per line, or a,b,c")
    add("--model", default="pocket", help="the vision-language model (default: %(default)s, which comes with lmr)")
    add("--method", default="lmr", metavar="SPEC", help='how to adapt, as in "lmr(lr=5e-4)" (default: %(default)s)')
    add(
        "--template",
        action="append",
        dest="templates",
        metavar="TEXT",
        help='a sentence around the class name, such as "a photo of a {}."; repeat the option to average over several',
    )
    add("--batch-size", type=int, default=64, metavar="N", help="pictures per adaptation step (default: %(default)s)")
    add("--top", type=int, default=5, metavar="N", help="classes to list for each picture (default: %(default)s)")
    add("--out", metavar="FILE", help="where the lines go: FILE.jsonl or FILE.csv (default: JSON lines on the screen)")
    add(
        "--state",
        metavar="FILE",
        help="keep what was learnt in this file: read at the start if it exists, written after every batch",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--resume",
        action="store_true",
        help="continue an interrupted run: give the same command again with --resume; with --state it "
        "also adds the pictures that are new since a run ended",
    )
    what.add_argument("--overwrite", action="store_true", help="replace --out if it exists (otherwise it is refused)")
    parser.set_defaults(run=_run_predict)


def _run_predict(options: argparse.Namespace) -> None:
    from lmr.jobs.predict import predict_images

    given = {key: value for key, value in vars(options).items() if key not in ("run", "sources", "labels")}
    print(f"lmr: {predict_images(options.sources, options.labels, **given)}", file=sys.stderr)


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
