"""``lmr cost``: what a step costs."""

from __future__ import annotations

from lmr.bench.cost.options import add_cost_options, run_cost
from lmr.cli.options import Subparsers, add_command

_COST = """\
Measure what a step of each method costs on this machine: milliseconds per image (median and spread, the contenders
taking turns after a warm-up), peak memory above the loaded model (each in a process of its own), how many numbers are
trained, the time in plain forward passes, and the share of the machine's arithmetic that is reached. Beside
our steps stand the straightforward loops on transformers, with autograd and torch.optim.

The cost does not depend on what the weights are, so --random needs no download. Let the machine do nothing else."""

_EXAMPLES = """\
examples:
  lmr cost --small                                              see what the table looks like, in about a minute
  lmr cost --random ViT-B-16 --batch-size 16
  lmr cost --random ViT-L-14 --batch-size 64 --lean --methods zeroshot lmr
  lmr cost openai/clip-vit-base-patch16 --batch-size 16 64 --methods lmr "lmr(bc=False)" tent --out my-cost

The table goes to the screen and, with every number behind it, to the folder --out."""


def add_cost(subparsers: Subparsers) -> None:
    """The command and its options."""
    parser = add_command(subparsers, "cost", "measure what a step of each method costs here", _COST, _EXAMPLES)
    add_cost_options(parser)
    parser.set_defaults(run=run_cost)
