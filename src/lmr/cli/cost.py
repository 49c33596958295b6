"""``lmr cost``: the cost of a step of each method."""

from __future__ import annotations

import argparse
from typing import Any

METHODS = "zeroshot lmr tent batclip"  # by default

DESCRIPTION = """\
Measure what a step of each method costs on this machine: milliseconds per image (median and spread, the entries
taking turns after a warm-up), peak memory above the loaded model (each in a separate process), how many parameters
are trained, and the time in plain forward passes, measured and counted. In a method with a gate every image passes
it, so this is the highest cost of a step.

The cost does not depend on the values of the weights, so --random needs no download. Run no other program
at the same time."""

EXAMPLES = """\
examples:
  lmr cost --small                                              see what the table looks like, in about a minute
  lmr cost --random ViT-B-16 --batch-size 16
  lmr cost --random ViT-B-16 --methods zeroshot lmr "lmr(emit='before')" "lmr(share=0.25)"
  lmr cost --random ViT-B-16 --batch-size 64 --streams 64 --methods lmr
  lmr cost photo --batch-size 64 --methods all
  lmr cost openai/clip-vit-base-patch16 --batch-size 16 64 --methods lmr "lmr(bc=False)" tent --out my-cost

The table is printed and, with every number behind it, written to the folder --out."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr cost``."""
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="the model, as lmr.load takes it; or give --random")
    add("--random", metavar="ARCHITECTURE", help="random weights of this architecture, such as ViT-B-16; the cost is "
        "the same")  # fmt: skip
    add("--small", action="store_true", help="a tiny random model and few classes: see the table in a minute")
    add("--batch-size", type=int, nargs="+", metavar="N", help="images per step; several give a table each "
        "(default: 16)")  # fmt: skip
    add("--methods", nargs="+", metavar="SPEC", help="the methods to measure, such as lmr, "
        "\"tent(lr=1e-3)\" or ./mine.py:mine; all; or paper, those that the paper compares "
        f"(default: {METHODS})")  # fmt: skip
    add("--classes", type=int, metavar="N", help="classes, each with a prompt for methods that adapt the text tower "
        "(default: 1000)")  # fmt: skip
    add("--streams", type=int, default=1, metavar="N", help="streams that share a batch (default: %(default)s)")
    add("--rounds", type=int, metavar="N", help="measured steps of each entry (default: what --minutes allows)")
    add("--minutes", type=float, default=8.0, metavar="M", help="time to spend on each batch size; at least three "
        "rounds are measured (default: %(default)g)")  # fmt: skip
    add("--threads", type=int, metavar="N", help="threads of torch (default: all cores)")
    add("--no-memory", dest="memory", action="store_false", help="leave out peak memory and its separate processes")
    add("--out", default="lmr-cost", metavar="FOLDER", help="where cost.txt and cost.json are written "
        "(default: %(default)s)")  # fmt: skip


def read_request(options: argparse.Namespace) -> dict[str, Any]:
    """Return the values of a request of ``lmr cost``, which those of ``python -m lab.cost`` include."""
    from lmr.bench.cost.model import SMALL, ModelSource
    from lmr.bench.machine import count_cores
    from lmr.core.errors import LmrError

    small = options.small
    if small and (options.model or options.random):
        raise LmrError("--small includes its own model; leave out the model and --random.")
    return {
        "source": ModelSource(options.model, SMALL if small else options.random),
        "methods": tuple(options.methods or METHODS.split()),
        "batch_sizes": tuple(options.batch_size or [8 if small else 16]),
        "classes": options.classes if options.classes is not None else 20 if small else 1000,
        "streams": options.streams,
        "rounds": options.rounds,
        "minutes": min(options.minutes, 0.1) if small else options.minutes,
        "threads": count_cores() if options.threads is None else options.threads,
        "memory": options.memory,
    }


def run(options: argparse.Namespace) -> None:
    """Measure, write the files and print the table."""
    from lmr.bench.cost.measure import CostRequest, measure_cost

    print(measure_cost(CostRequest(**read_request(options)), options.out).to_text())
    print(f"Written to {options.out}: cost.txt, cost.json")
