"""``lmr train``: train an embedded model again."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = """\
Train the small model that comes with lmr from random weights and write it to a file. The 7,000 batches take about
45 minutes on two cores. No corrupted image is shown and no adaptation method takes part."""

EXAMPLES = """\
examples:
  lmr train pocket --out pocket.safetensors
  lmr train pocket --steps 100 --out trial.safetensors      a minute, to see that it works"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``lmr train``."""
    add = parser.add_argument
    add("model", choices=("pocket",), metavar="MODEL", help="which model: pocket")
    add("--steps", type=int, default=7000, metavar="N", help="batches to train for (default: %(default)s)")
    add("--batch", type=int, default=256, metavar="N", help="images per batch (default: %(default)s)")
    add("--lr", type=float, default=1e-3, metavar="X", help="peak learning rate (default: %(default)s)")
    add("--patch", type=int, default=8, metavar="N", help="patch size in pixels (default: %(default)s)")
    add("--out", type=Path, default=Path("pocket.safetensors"), metavar="FILE", help="the weights file to write "
        "(default: %(default)s)")  # fmt: skip


def run(options: argparse.Namespace) -> None:
    """Train and write the file."""
    from lmr.bench.training.pocket import train
    from lmr.models.pocket.towers import PocketConfig
    from lmr.models.pocket.words import WORDS

    config = PocketConfig(patch=options.patch, vocabulary=len(WORDS))
    train(options.steps, options.batch, options.lr, options.out, config)
