"""``lmr check``: compare the adapted with the frozen model on labelled images."""

from __future__ import annotations

import argparse

from lmr.apps.predict.options import CheckOptions
from lmr.cli.shared_options import add_fields, add_model_options, add_prompt_options, read_dataclass

DESCRIPTION = """\
Find out on labelled images which setting of 'lmr predict' is the best. Give a folder with one sub-folder per class, or
any folder with --truth, a file of labels as 'lmr label' writes it; 100 labels are enough to see a large difference. The
frozen model and several settings answer the images in the order of the file names: the method in one pass and in two,
with equal class shares, with the shares of 20 of the labels, and corrected by these 20 labels; and the published
method. The other labels judge. With --truth all labels judge, and each image is corrected by the labels of the others.
The command prints all accuracies, the differences from the frozen model with their 95 % intervals over the images, and
one command to copy. It writes no file."""

EXAMPLES = """\
examples:
  the default method on a folder whose sub-folders are named by class:
    lmr check labelled
  the images of a camera, whose names do not tell their order:
    lmr check labelled --order times
  a folder without sub-folders, some of whose images were labelled with 'lmr label':
    lmr check photos --labels names.txt --truth labels.csv
  CLIP, the published method, and more class names than the folder has:
    lmr check labelled --labels names.txt --model openai/clip-vit-base-patch16 --method lmr

exit codes: 0 done, 2 the command cannot run (an error message says why)."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr check``."""
    parser.add_argument(
        "folder", metavar="FOLDER", help="a folder with one sub-folder of images per class; any folder with --truth"
    )
    add_fields(parser, CheckOptions, labels="FILE|A,B,C", model="MODEL", method="SPEC", prior="WORD|SHARES")
    add_prompt_options(parser)
    add_fields(parser, CheckOptions, truth="FILE.csv|FOLDER", order=None, batch_size="N", passes="N")
    add_model_options(parser)


def run(options: argparse.Namespace) -> None:
    """Print all accuracies and the recommendation."""
    from lmr.apps.check import check_folder

    print(check_folder(options.folder, read_dataclass(CheckOptions, options)))
