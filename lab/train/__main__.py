"""``python -m lab.train``: train the embedded model again."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.command import build_parser, run_command

DESCRIPTION = """\
Train a model from random weights and write it to a file. No corrupted image is shown and no
adaptation method takes part.

photo   photographs: the training sets of CIFAR-10 and CIFAR-100 (run `lmr fetch cifar10 cifar100` first) and their 110
        class names; one to two hours on two cores. Checkpoints are written beside --out; give the same command with
        --resume after an interruption, and the result is the same as without it.
judge   a smaller and weaker model on the same photographs, of another seed, shape and logit scale, which does not come
        with lmr: rules that were made on photo are checked on it; about 10 minutes."""

EXAMPLES = """\
examples:
  python -m lab.train photo --out photo.safetensors
  python -m lab.train photo --out photo.safetensors --resume
  python -m lab.train photo --steps 200 --held-out 4000 --out trial.safetensors   compare settings on held-out images"""


def main(argv: Sequence[str] | None = None) -> int:
    """Train a model and write its file; return the exit code."""
    parser = build_parser("train", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("model", choices=("photo", "judge"), metavar="MODEL", help="the model: photo or judge")
    add("--steps", type=int, metavar="N", help="batches to train for (default: 3500 for photo, 350 for judge)")
    add("--batch", type=int, default=256, metavar="N", help="images per batch (default: %(default)s)")
    add("--lr", type=float, metavar="X", help="peak learning rate (default: 1.5e-3)")
    add("--out", type=Path, metavar="FILE", help="the weights file to write (default: MODEL.safetensors)")
    add("--resume", action="store_true", help="continue from the last checkpoint beside --out")
    add("--held-out", type=int, metavar="N", help="keep N training images aside and measure on them, not on the "
        "test sets")  # fmt: skip
    add("--root", metavar="DIR", help="where datasets are kept (default: $LMR_DATA, or ~/.cache/lmr/data)")
    return run_command(parser, run, argv)


def run(options: argparse.Namespace) -> None:
    """Train and write the file."""
    from lab.train.photo import JUDGE, PhotoRecipe, train

    out = options.out or Path(f"{options.model}.safetensors")
    values = {key: value for key in ("steps", "batch", "lr") if (value := getattr(options, key)) is not None}
    usual = JUDGE if options.model == "judge" else PhotoRecipe()
    recipe = dataclasses.replace(usual, **values, held_out=options.held_out or 0)
    train(recipe, out, root=options.root, resume=options.resume)


if __name__ == "__main__":
    sys.exit(main())
