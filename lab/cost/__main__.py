"""``python -m lab.cost``: the cost of a step, compared with plain loops, arithmetic and aims."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lab.command import build_parser, run_command
from lmr.cli.cost import add_options, read_request

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
    """Return the parser of ``python -m lab.cost``: the options of ``lmr cost``, and more."""
    parser = build_parser("cost", DESCRIPTION, EXAMPLES)
    add_options(parser)
    add = parser.add_argument
    add("--streams", type=int, metavar="N", help="streams of one image each that share a batch; 1 leaves this out "
        "(default: the batch size)")  # fmt: skip
    add("--switches", action="store_true", help="also the cheaper variants: a share of the images enters the loss, "
        "answers are given before the update")  # fmt: skip
    add("--lean", action="store_true", help="also the methods in their lean mode, which computes activations twice")
    add("--full-context", action="store_true", help="also the methods that adapt the text tower with prompts of the "
        "full context in one graph")  # fmt: skip
    add("--no-plain", dest="plain", action="store_false", help="leave out the loops on transformers, which for large "
        "models and batches need tens of gigabytes")  # fmt: skip
    add("--out", default="lab-cost", metavar="FOLDER", help="where cost.txt, .md and .json are written "
        "(default: %(default)s)")  # fmt: skip
    return parser


def run(options: argparse.Namespace) -> str | None:
    """Measure, write the files and print the table; return a complaint about implausible numbers."""
    from lab.cost.measure import CostRequest, measure_cost

    more = {key: getattr(options, key) for key in ("switches", "lean", "full_context", "plain")}
    report = measure_cost(CostRequest(**read_request(options), **more), options.out)
    print(report.to_text())
    print(f"Written to {options.out}: cost.txt, cost.md, cost.json")
    return "\n".join(doubt for table in report.tables for doubt in table.doubts) or None


if __name__ == "__main__":
    sys.exit(main())
