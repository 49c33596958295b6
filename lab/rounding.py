"""How far rounding alone moves the accuracy of methods: the same stream with its images changed in the last digits."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from lab.command import build_parser, run_command
from lmr.bench.inputs import find_dataset, load_backbone, load_classifier
from lmr.core.registry import create
from lmr.data.streams import make_stream
from lmr.models.backbone import DEFAULT_TEMPLATES

DESCRIPTION = """\
Run methods several times on the photographs under Gaussian noise of severity 5, in batches of 64, with one thread. In
every run but the first the preprocessed images are multiplied by 1 + NOISE e, e normal. A float32 has 24 bits, so 1e-7
is as much as another processor or another number of threads may change. The table has the accuracy in %: of the
images as they are, the lowest, the highest and the standard deviation over the runs; and after how many images the
answers of two runs first differ."""


def run_method(spec: str, batches: Sequence[Tensor], noise: float, run: int, dtype: str) -> Tensor:
    """Return the classes [n] that a method answers on batches of images; ``run`` is the seed of the noise, or 0."""
    generator = torch.Generator().manual_seed(run)
    classes = find_dataset("photo-c").classes
    method = create(spec, load_classifier("photo", dtype, "cpu", classes, DEFAULT_TEMPLATES))
    answers = []
    for images in batches:
        factor = 1 + noise * torch.randn(images.shape, generator=generator, dtype=torch.float64) * (run > 0)
        answers.append(method.step((images * factor).to(method.classifier.prototypes.dtype)).logits.argmax(1))
    return torch.cat(answers)


def run(options: argparse.Namespace) -> None:
    """Print a line for every method and order."""
    torch.set_num_threads(1)
    preprocess = load_backbone("photo", options.dtype, "cpu").preprocess
    print("| method | seed | as it is | lowest | highest | sd | first difference |\n|---|--:|--:|--:|--:|--:|--:|")
    for seed in options.seeds:
        shown = list(make_stream(find_dataset("photo-c"), "gaussian_noise", limit=options.images, seed=seed))
        batches = [preprocess(batch.images).double() for batch in shown]
        true = torch.cat([torch.as_tensor(batch.labels) for batch in shown])
        for spec in options.methods:
            found = [run_method(spec, batches, options.noise, k, options.dtype) for k in range(options.runs)]
            scores = torch.stack([100 * (one == true).double().mean() for one in found])
            apart = [int(places[0]) for one, two in pairwise(found) if len(places := (one != two).nonzero())]
            cells = [scores[0], scores.min(), scores.max(), scores.std()]
            first = str(min(apart)) if apart else "none"
            print(" | ".join([f"| {spec}", str(seed), *(f"{float(cell):.2f}" for cell in cells), f"{first} |"]))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = build_parser("rounding", DESCRIPTION, "example:\n  python -m lab.rounding onzeta tent --seeds 1 2 3")
    parser.add_argument("methods", nargs="+", metavar="SPEC", help="methods, with their arguments")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="orders of the images (default: 1)")
    parser.add_argument("--runs", type=int, default=10, help="runs of each method in each order (default: 10)")
    parser.add_argument("--images", type=int, help="images of the stream (default: all 2,000)")
    parser.add_argument("--noise", type=float, default=1e-7, help="relative size of the change (default: 1e-7)")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"], help="of the model")
    return run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
