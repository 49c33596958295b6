"""``python -m lab.train``: train an embedded model again."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.command import build_parser, run_command
from lmr.core.errors import LmrError

DESCRIPTION = """\
Train a model that comes with lmr from random weights and write it to a file. No corrupted image is shown and no
adaptation method takes part.

photo   photographs: the training sets of CIFAR-10 and CIFAR-100 (run `lmr fetch cifar10 cifar100` first) and their 110
        class names; one to two hours on two cores. Checkpoints are written beside --out; give the same command with
        --resume after an interruption, and the result is the same as without it.
judge   a smaller and weaker model on the same photographs, of another seed, shape and logit scale, which does not come
        with lmr: rules that were made on photo are checked on it; about 10 minutes. Options as for photo.
pocket  drawings that code makes; about 45 minutes on two cores."""

EXAMPLES = """\
examples:
  python -m lab.train photo --out photo.safetensors
  python -m lab.train photo --out photo.safetensors --resume
  python -m lab.train photo --steps 200 --held-out 4000 --out trial.safetensors   compare settings on held-out images
  python -m lab.train pocket --out pocket.safetensors
  python -m lab.train pocket --steps 100 --out trial.safetensors                  a minute, to see that it works"""


# Options that only one model has.
_PHOTOGRAPHS = ("photo", "judge")
_OPTIONS = {("resume", "held_out", "root"): _PHOTOGRAPHS, ("patch",): ("pocket",)}


def main(argv: Sequence[str] | None = None) -> int:
    """Train a model and write its file; return the exit code."""
    parser = build_parser("train", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("model", choices=(*_PHOTOGRAPHS, "pocket"), metavar="MODEL", help="the model: photo, judge or pocket")
    add("--steps", type=int, metavar="N", help="batches to train for (default: 3500 for photo, 350 for judge, 7000 for "
        "pocket)")  # fmt: skip
    add("--batch", type=int, default=256, metavar="N", help="images per batch (default: %(default)s)")
    add("--lr", type=float, metavar="X", help="peak learning rate (default: 1.5e-3 for photographs, 1e-3 for pocket)")
    add("--out", type=Path, metavar="FILE", help="the weights file to write (default: MODEL.safetensors)")
    add("--resume", action="store_true", help="photo: continue from the last checkpoint beside --out")
    add("--held-out", type=int, metavar="N", help="photo: keep N training images aside and measure on them, not on the "
        "test sets")  # fmt: skip
    add("--root", metavar="DIR", help="photo: where datasets are kept (default: $LMR_DATA, or ~/.cache/lmr/data)")
    add("--patch", type=int, metavar="N", help="pocket: patch size in pixels (default: 8)")
    return run_command(parser, run, argv)


def run(options: argparse.Namespace) -> None:
    """Train and write the file."""
    for keys, models in _OPTIONS.items():
        given = [f"--{key.replace('_', '-')}" for key in keys if getattr(options, key)]
        if given and options.model not in models:
            raise LmrError(f"{given[0]} is an option of {models[0]}; omit it for {options.model}.")
    out = options.out or Path(f"{options.model}.safetensors")
    values = {key: value for key in ("steps", "batch", "lr") if (value := getattr(options, key)) is not None}
    if options.model in _PHOTOGRAPHS:
        from lab.train.photo import JUDGE, PhotoRecipe
        from lab.train.photo import train as train_photo

        usual = JUDGE if options.model == "judge" else PhotoRecipe()
        recipe = dataclasses.replace(usual, **values, held_out=options.held_out or 0)
        train_photo(recipe, out, root=options.root, resume=options.resume)
        return
    from lab.train.pocket import WORDS, train
    from lmr.models.embedded import EmbeddedConfig

    config = EmbeddedConfig(patch=options.patch or 8, vocabulary=len(WORDS))
    train(values.get("steps", 7000), options.batch, values.get("lr", 1e-3), out, config)


if __name__ == "__main__":
    sys.exit(main())
