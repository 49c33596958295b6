"""``lmr doctor``: describe a model and check that it works."""

from __future__ import annotations

import argparse

from lmr.apps.options import DEFAULT_MODEL, DoctorOptions
from lmr.cli.shared_options import MODEL_HELP, add_fields, add_model_options, add_prompt_options, read_dataclass

DESCRIPTION = """\
Show on one screen what was loaded (format, architecture, activation, preprocessing, how many parameters are adapted,
digests of the weights) and check that it works: features finite, of unit length and independent of the batch,
padding without influence, one adaptation step and its reset, agreement with transformers.

With labelled images (--data) it measures the zero-shot accuracy, without adaptation, and compares it with the
published one where one is known for the model and the --dataset. The accuracy of the embedded model 'photo' is measured
without --data, on the 2,000 photographs that come with lmr."""

EXAMPLES = """\
examples:
  lmr doctor                                 the embedded model: the class names it knows, and its accuracy
  lmr doctor openai/clip-vit-base-patch16
  lmr doctor tuned.pt --architecture ViT-B-16-quickgelu
  accuracy on a folder with one sub-folder per class, named by its class:
    lmr doctor openai/clip-vit-base-patch16 --data pets
  ImageNet, whose sub-folders are codes: one name per line in their order, or n01440764<TAB>tench lines;
  the published accuracies need CLIP's 80 prompts, here in a JSON list:
    lmr doctor openai/clip-vit-base-patch16 --data imagenet/val --labels names.txt --prompts templates.json \\
        --dataset imagenet --images 5000

exit codes: 0 every check passed, 1 a check failed, 2 the command cannot run (an error message says why)."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lmr doctor``."""
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, metavar="MODEL", help=MODEL_HELP)
    add_fields(parser, DoctorOptions, data="FOLDER|FILE.csv", dataset="NAME", labels="FILE|A,B,C")
    add_prompt_options(parser)
    add_fields(parser, DoctorOptions, images="N", batch_size="N")
    add_model_options(parser)


def run(options: argparse.Namespace) -> str | None:
    """Examine the model; return a complaint if a check failed."""
    from lmr.apps.doctor.examine import examine

    report = examine(options.model, read_dataclass(DoctorOptions, options))
    print(report)
    return report.complaint
