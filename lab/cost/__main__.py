"""``python -m lab.cost``: the cost of a step, compared with plain loops, arithmetic and aims."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lab.command import build_parser, run_command
from lab.cost.settings import METHODS

MINUTES, OUT = 8.0, "lab-cost"

DESCRIPTION = """\
Measure what a step of each method costs on this machine: milliseconds per image (median and spread, the entries
taking turns after a warm-up), peak memory above the loaded model (each in a separate process), how many parameters
are trained, the time in plain forward passes, and the share of the machine's arithmetic that is reached. For
comparison, straightforward loops on transformers, with autograd and torch.optim, are measured too.

The cost does not depend on the values of the weights, so --random needs no download. Run nothing else meanwhile."""

EXAMPLES = """\
examples:
  python -m lab.cost --small                        see what the table looks like, in about a minute
  python -m lab.cost --random ViT-B-16 --batch-size 16
  python -m lab.cost --random ViT-B-16 --batch-size 16 64 --methods zeroshot lmr --switches --no-plain
  python -m lab.cost photo --batch-size 64 --methods all --no-plain
  python -m lab.cost --random ViT-L-14 --batch-size 64 --lean --methods zeroshot lmr
  python -m lab.cost openai/clip-vit-base-patch16 --batch-size 16 64 --methods lmr "lmr(bc=False)" tent --out my-cost

The table is printed and, with every number behind it, written to the folder --out."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table and return the exit code."""
    return run_command(make_parser(), run, argv)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of ``python -m lab.cost``."""
    parser = build_parser("cost", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="the model, as lmr.load takes it; or give --random")
    add("--random", metavar="ARCHITECTURE", help="random weights of this architecture, such as ViT-B-16; the cost is "
        "the same")  # fmt: skip
    add("--small", action="store_true", help="a tiny random model and few classes: see the table in a minute")
    add(
        "--batch-size",
        type=int,
        nargs="+",
        metavar="N",
        help="images per step; several give a table each (default: 16)",
    )
    add("--methods", nargs="+", metavar="SPEC", help="the methods to measure, such as lmr, "
        "\"tent(lr=1e-3)\" or ./mine.py:mine; all; or paper, those that the paper compares "
        f"(default: {' '.join(METHODS)})")  # fmt: skip
    add("--classes", type=int, metavar="N", help="classes, each with a prompt for methods that adapt the text tower "
        "(default: 1000)")  # fmt: skip
    add("--streams", type=int, metavar="N", help="streams of one image each that share a batch; 1 leaves this out "
        "(default: the batch size)")  # fmt: skip
    add("--rounds", type=int, metavar="N", help="measured steps of each entry (default: what --minutes allows)")
    add("--minutes", type=float, metavar="M", help="time to spend on each batch size; at least three "
        f"rounds are measured (default: {MINUTES:g})")  # fmt: skip
    add("--threads", type=int, metavar="N", help="threads of torch (default: all cores)")
    add("--switches", action="store_true", help="also the cheaper variants: a share of the images enters the loss, "
        "answers are given before the update")  # fmt: skip
    add("--lean", action="store_true", help="also the methods in their lean mode, which computes activations twice")
    add(
        "--full-context",
        action="store_true",
        help="also the methods that adapt the text tower with prompts of the full context in one graph",
    )
    add("--no-plain", dest="plain", action="store_false", help="leave out the loops on transformers, which for large "
        "models and batches need tens of gigabytes")  # fmt: skip
    add("--no-memory", dest="memory", action="store_false", help="leave out peak memory and its separate processes")
    add("--out", metavar="FOLDER", help="where cost.txt, .md and .json are written "
        f"(default: {OUT})")  # fmt: skip
    return parser


def run(options: argparse.Namespace) -> str | None:
    """Measure, write the files and print the table; return a complaint about implausible numbers."""
    from lab.cost.measure import CostRequest, measure_cost
    from lmr.bench.cost.model import SMALL, ModelSource
    from lmr.bench.machine import count_cores
    from lmr.core.errors import LmrError

    if options.small and (options.model or options.random):
        raise LmrError("--small includes its own model; leave out the model and --random.")
    minutes = MINUTES if options.minutes is None else options.minutes
    out = OUT if options.out is None else options.out
    given = {key: getattr(options, key) for key in ("rounds", "streams", "switches", "lean", "full_context")}
    request = CostRequest(
        ModelSource(options.model, SMALL if options.small else options.random),
        batch_sizes=tuple(options.batch_size or [8 if options.small else 16]),
        methods=tuple(options.methods or METHODS),
        minutes=min(minutes, 0.1) if options.small else minutes,
        classes=options.classes if options.classes is not None else 20 if options.small else 1000,
        threads=count_cores() if options.threads is None else options.threads,
        plain=options.plain,
        memory=options.memory,
        **given,
    )
    report = measure_cost(request, out)
    print(report.to_text())
    print(f"Written to {out}: cost.txt, cost.md, cost.json")
    return "\n".join(doubt for table in report.tables for doubt in table.doubts) or None


if __name__ == "__main__":
    sys.exit(main())
