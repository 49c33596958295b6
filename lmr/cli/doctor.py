"""``lmr doctor``: what a model is, and whether it works."""

from __future__ import annotations

import argparse

from lmr.cli.options import (
    MODEL_HELP,
    Subparsers,
    add_command,
    add_model_options,
    add_prompt_options,
    collect_options,
)

_DOCTOR = """\
Say in one screen what was loaded (format, architecture, activation, preprocessing, how many numbers are adapted,
digests of the weights) and check that it works: features finite, of unit length and independent of the batch,
padding without influence, one adaptation step and its reset, agreement with transformers.

With labelled pictures (--data) it measures the zero-shot accuracy, without adaptation, and puts it beside the
published one where one is known for the model and the --dataset."""

_EXAMPLES = """\
examples:
  lmr doctor pocket
  lmr doctor openai/clip-vit-base-patch16
  lmr doctor tuned.pt --architecture ViT-B-16-quickgelu
  accuracy on a folder with one sub-folder per class, named by its class:
    lmr doctor openai/clip-vit-base-patch16 --data pets
  ImageNet, whose sub-folders are codes: one name per line in their order, or n01440764<TAB>tench lines;
  the published accuracies need CLIP's 80 prompts, here in a JSON list:
    lmr doctor openai/clip-vit-base-patch16 --data imagenet/val --labels names.txt --prompts templates.json \\
        --dataset imagenet --images 5000

exit codes: 0 all is well, 1 a check failed, 2 something does not fit (a sentence says what)."""


def add_doctor(subparsers: Subparsers) -> None:
    """The command and its options."""
    parser = add_command(subparsers, "doctor", "say what a model is and check that it works", _DOCTOR, _EXAMPLES)
    add = parser.add_argument
    add("model", metavar="MODEL", help=MODEL_HELP)
    add(
        "--data",
        metavar="FOLDER|FILE.csv",
        help="labelled pictures: a folder with one sub-folder per class, or a table with the columns path and label",
    )
    add(
        "--dataset",
        metavar="NAME",
        help="what the pictures are, to compare with the published accuracy: imagenet, imagenet-v2, imagenet-a, "
        "imagenet-r, imagenet-sketch, cifar10 or cifar100",
    )
    add(
        "--labels",
        metavar="FILE|A,B,C",
        help="class names, where the sub-folders' are none: one per line in the sorted order of the sub-folders, "
        "sub-folder<TAB>name lines, JSON of either, or a,b,c",
    )
    add_prompt_options(parser)
    add(
        "--images", type=int, metavar="N", help="use N of the pictures, drawn at random, always the same (default: all)"
    )
    add("--batch-size", type=int, default=64, metavar="N", help="pictures at a time (default: %(default)s)")
    add_model_options(parser)
    parser.set_defaults(run=_run_doctor)


def _run_doctor(options: argparse.Namespace) -> str | None:
    from lmr.apps.doctor.examine import examine

    report = examine(options.model, **collect_options(options, "model"))
    print(report)
    return report.complaint
