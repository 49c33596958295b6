"""Compare scores that tell images of none of the classes from known ones, and what thresholds find and lose.

docs/results/unknown.md has the tables: ``python -m lab.open_set --data FOLDER``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import lmr
from lab.command import build_parser, run_command
from lmr.core.errors import LmrError
from lmr.core.known import score_known
from lmr.data.corruptions.apply import corrupt_batch
from lmr.data.names import read_list

DESCRIPTION = """\
Answer known and unknown images with the frozen model photo, and measure how well scores of the answers tell the two
apart. Known are images of CIFAR-10 with its ten class names. Unknown are images of CIFAR-100, of superclasses that have
nothing in common with the ten classes, or pure noise; one image in three is unknown, and all but the noise are
corrupted. FPR95 is the share of unknown images that pass as known with the threshold that keeps 95 % of the known ones.
"""
EXAMPLES = """\
examples:
  python -m lab.open_set --data data
  python -m lab.open_set --data data --images 120 --domains clean"""

# Superclasses of CIFAR-100 by number: fish, flowers, food containers, fruit and vegetables, electrical devices,
# furniture, insects, large man-made things, scenes, invertebrates, people, trees. The others are mammals, reptiles and
# vehicles, which are close to the ten classes.
APART = (1, 2, 3, 4, 5, 6, 7, 9, 10, 13, 14, 17)
KINDS = ("CIFAR-100", "noise")
DOMAINS = ("clean", "gaussian_noise", "fog", "defocus_blur")
SEVERITY = 3
THRESHOLDS = (0.3, 0.4, 0.5)  # of the score "known"
SCORES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # of logits and cosines [B, C]
    "max softmax": lambda logits, cosines: logits.softmax(1).amax(1),
    "MCM": lambda logits, cosines: cosines.softmax(1).amax(1),  # maximum concept matching, temperature 1
    "max cosine": lambda logits, cosines: cosines.amax(1),
    "energy": lambda logits, cosines: logits.logsumexp(1),
    "margin": lambda logits, cosines: -logits.topk(2, 1).values.diff(dim=1).squeeze(1),
    "known": lambda logits, cosines: score_known(logits),
}


def measure_auroc(known: NDArray[np.float64], unknown: NDArray[np.float64]) -> float:
    """Return the share of pairs in which the known image has the higher score; equal scores count half."""
    ordered = np.sort(unknown)
    below, up_to = (np.searchsorted(ordered, known, side) for side in ("left", "right"))
    return float((below + up_to).mean() / (2 * len(unknown)))


def measure_fpr95(known: NDArray[np.float64], unknown: NDArray[np.float64]) -> float:
    """Return the share of unknown images that pass with the highest threshold that keeps 95 % of the known ones."""
    threshold = np.sort(known)[int(0.05 * len(known))]
    return float((unknown >= threshold).mean())


def draw_images(folder: Path, domain: str, kind: str, count: int, seed: int) -> tuple[NDArray[np.uint8], int]:
    """Return up to ``count`` known images and then half as many unknown ones, and the number of the known."""
    generator = np.random.default_rng(seed)
    try:
        with np.load(folder / "cifar10_test.npz") as ten, np.load(folder / "cifar100_test.npz") as hundred:
            known = ten["images"][generator.permutation(len(ten["images"]))[:count]]
            others = hundred["images"][np.isin(hundred["coarse"], APART)]
    except (OSError, KeyError, ValueError) as error:
        raise LmrError(
            "Expected cifar10_test.npz with images, and cifar100_test.npz with images and coarse, in "
            f"{str(folder)!r}: {error}"
        ) from error
    unknown = others[generator.permutation(len(others))[: len(known) // 2]]
    if kind == "noise":
        unknown = generator.integers(0, 256, (len(known) // 2, *known.shape[1:]), np.uint8)
    images = np.concatenate([known, unknown])
    if domain != "clean":
        corrupted = len(known) if kind == "noise" else len(images)
        images[:corrupted] = corrupt_batch(images[:corrupted], domain, SEVERITY, constants="cifar")
    return images, len(known)


def run(options: argparse.Namespace) -> None:
    """Print the rows of both tables: AUROC / FPR95 of each score; known images lost and unknown ones found."""
    backbone = lmr.load()
    classifier = backbone.classifier(read_list("cifar10"))
    found = [f"lost / found at {threshold}" for threshold in THRESHOLDS]
    print(f"| images | unknown | {' | '.join([*SCORES, *found])} |\n|---|---|{'--:|' * (len(SCORES) + len(found))}")
    for domain in options.domains:
        for kind in KINDS:
            images, known = draw_images(options.data, domain, kind, options.images, options.seed)
            with torch.no_grad():
                parts = torch.split(backbone.preprocess(images), 64)
                cosines = torch.cat([classifier.cosines(classifier.features(part)) for part in parts]).double()
            logits, cells = classifier.logits(cosines), []
            for score in SCORES.values():
                values = score(logits, cosines).numpy()
                auroc, fpr95 = (measure(values[:known], values[known:]) for measure in (measure_auroc, measure_fpr95))
                cells.append(f"{100 * auroc:.1f} / {100 * fpr95:.0f}")
            below = score_known(logits).numpy()[:, None] < THRESHOLDS
            shares = zip(below[:known].mean(0), below[known:].mean(0), strict=True)
            cells += [f"{100 * lost:.0f} / {100 * caught:.0f}" for lost, caught in shares]
            print(f"| {domain} | {kind} | {' | '.join(cells)} |", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m lab.open_set`` and return its exit code."""
    parser = build_parser("open_set", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="FOLDER", help="has cifar10_test.npz and cifar100_test.npz")
    add("--images", type=int, default=600, metavar="N", help="known images (default: 600)")
    add("--domains", nargs="+", default=DOMAINS, choices=DOMAINS, help="clean, or corruptions of severity 3")
    add("--seed", type=int, default=0, metavar="N", help="chooses the images (default: 0)")
    return run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
