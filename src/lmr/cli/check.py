"""``lmr check``: compare the adapted with the frozen model on labelled images."""

from __future__ import annotations

import argparse

from lmr.apps.predict.options import PredictOptions
from lmr.cli.shared_options import add_fields, add_model_options, add_prompt_options, read_dataclass

DESCRIPTION = """\
Find out on labelled images whether adapting helps. Give a folder with one sub-folder per class; 100 images are enough
to see a large difference. Both models, frozen and adapting, answer them in two orders: class by class, as the files are
sorted, and shuffled. The command prints the accuracy of both, the difference with its 95 % interval (paired bootstrap
over the images), what the watch reported, and a recommendation. It writes no file."""

EXAMPLES = """\
examples:
  the default method on a folder whose sub-folders are named by class:
    lmr check labelled
  images that are bad from the first on, with about as many of each class:
    lmr check labelled --prior uniform
  CLIP, the published method, and more class names than the folder has:
    lmr check labelled --labels names.txt --model openai/clip-vit-base-patch16 --method lmr

exit codes: 0 done, 2 the command cannot run (an error message says why)."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr check``."""
    parser.add_argument("folder", metavar="FOLDER", help="a folder with one sub-folder of images per class")
    add_fields(parser, PredictOptions, labels="FILE|A,B,C", model="MODEL", method="SPEC", prior="WORD|SHARES|FILE")
    add_prompt_options(parser)
    add_fields(parser, PredictOptions, batch_size="N")
    add_model_options(parser)


def run(options: argparse.Namespace) -> None:
    """Print both accuracies and the recommendation."""
    from lmr.apps.check import check_folder

    print(check_folder(options.folder, read_dataclass(PredictOptions, options)))
