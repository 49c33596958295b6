"""``lmr label``: label a few images of a folder by hand."""

from __future__ import annotations

import argparse
import sys

from lmr.apps.method_options import LabelOptions
from lmr.cli.shared_options import add_fields, add_model_options, add_prompt_options, read_dataclass

DESCRIPTION = """\
Label about twenty images of a folder by hand, in a minute. A page in the browser shows one random image after the
other, with a key for every class: 1 to 9, then letters; - is none of these, the right arrow skips, the left arrow goes
back. With more than 35 classes, type to find one. The page says what the labels give so far: the accuracy of the frozen
model, and that with your labels, both with a 95 % interval.

Every label is written to --out at once. The same command continues where it ended. Then give the file to
'lmr predict FOLDER --truth labels.csv': it answers all images with what the labels teach."""

EXAMPLES = """\
examples:
  two commands and a minute of clicking:
    lmr label photos --labels "cat,dog,ship,truck"
    lmr predict photos --labels "cat,dog,ship,truck" --truth labels.csv --out photos.jsonl
  from a phone in the same network, at a secret address:
    lmr label photos --labels names.txt --host 0.0.0.0

exit codes: 0 done, 2 the command cannot run (an error message says why)."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr label``."""
    parser.add_argument("folder", metavar="FOLDER", help="a folder of images, with all its sub-folders")
    add_fields(parser, LabelOptions, labels="FILE|A,B,C", out="FILE", model="MODEL")
    add_prompt_options(parser)
    add_fields(parser, LabelOptions, host="ADDRESS", port="N")
    add_model_options(parser)


def run(options: argparse.Namespace) -> None:
    """Let a person label images, and print what came of it."""
    from lmr.apps.label import label_folder

    said = label_folder(options.folder, read_dataclass(LabelOptions, options))
    print(f"lmr: {said}", file=sys.stderr)
