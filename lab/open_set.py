"""Compare scores that tell images of none of the classes from known ones, clean and corrupted, frozen and adapted.

docs/unknown.md has the tables: ``python -m lab.open_set --data FOLDER``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import lmr
from lab.command import build_parser, run_command
from lmr.apps.model_options import create_suited
from lmr.core.errors import LmrError
from lmr.core.known import Unknown, score_known
from lmr.data.corruptions.apply import corrupt_batch
from lmr.models.backbone import Backbone

DESCRIPTION = """\
Send streams of known and unknown images through methods, and measure how well scores of their answers tell the two
apart. Known are images of CIFAR-10 with its ten class names. Unknown are images of CIFAR-100, of superclasses that have
nothing in common with the ten classes, or pure noise. A stream begins with clean known images; then one image in three
is unknown, and all but the noise are corrupted. AUROC and FPR95 are of the images after the beginning. FPR95 is the
share of unknown images that pass as known with the threshold that keeps 95 % of the known ones.

The model photo was trained on CIFAR-100 too. It has learnt that these images are far from the ten names, so that things
it never saw are harder to tell."""

EXAMPLES = """\
examples:
  python -m lab.open_set --data data --out open-set.json
  python -m lab.open_set --data data --images 120 --domains clean"""

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# Superclasses of CIFAR-100 by number: fish, flowers, food containers, fruit and vegetables, electrical devices,
# furniture, insects, large man-made things, scenes, invertebrates, people, trees. The others are mammals, reptiles and
# vehicles, which are close to the ten classes.
APART = (1, 2, 3, 4, 5, 6, 7, 9, 10, 13, 14, 17)
KINDS = ("CIFAR-100", "noise")
DOMAINS = ("clean", "gaussian_noise", "fog", "defocus_blur")
METHODS = ("zeroshot", "steady", "lmr")
START, BATCH, SEVERITY = 128, 8, 3  # clean known images at first; images in a step: the bias is constant within one

Images = NDArray[np.uint8]
Score = Callable[[Tensor, Tensor], Tensor]  # of logits and cosines [B, C]
SCORES: dict[str, Score] = {
    "max softmax": lambda logits, cosines: logits.softmax(1).amax(1),
    "MCM": lambda logits, cosines: cosines.softmax(1).amax(1),  # maximum concept matching, temperature 1
    "max cosine": lambda logits, cosines: cosines.amax(1),
    "energy": lambda logits, cosines: logits.logsumexp(1),
    "margin": lambda logits, cosines: -logits.topk(2, 1).values.diff(dim=1).squeeze(1),
    "known": lambda logits, cosines: score_known(logits),
}


@dataclass(frozen=True)
class Trial:
    """One stream through one method; all numbers are shares."""

    domain: str
    unknown: str  # one of KINDS
    method: str
    threshold: Unknown
    accuracy: float  # on the known images, of the most probable class
    auroc: dict[str, float]
    fpr95: dict[str, float]
    lost: float  # known images that were judged unknown
    found: float  # unknown images that were judged unknown


@dataclass(frozen=True)
class OpenStream:
    """Images in order, their labels, -1 for unknown ones, and the number of images before the unknown ones begin."""

    images: Images
    labels: NDArray[np.int64]
    start: int


def measure_auroc(known: NDArray[np.float64], unknown: NDArray[np.float64]) -> float:
    """Return the share of pairs in which the known image has the higher score; equal scores count half."""
    ordered = np.sort(unknown)
    below, up_to = (np.searchsorted(ordered, known, side) for side in ("left", "right"))
    return float((below + up_to).mean() / (2 * len(unknown)))


def measure_fpr95(known: NDArray[np.float64], unknown: NDArray[np.float64]) -> float:
    """Return the share of unknown images that pass with the highest threshold that keeps 95 % of the known ones."""
    threshold = np.sort(known)[int(0.05 * len(known))]
    return float((unknown >= threshold).mean())


class OpenData:
    """The test sets of CIFAR-10 and CIFAR-100 in a folder."""

    def __init__(self, folder: Path) -> None:
        try:
            with np.load(folder / "cifar10_test.npz") as ten, np.load(folder / "cifar100_test.npz") as hundred:
                self.images, self.labels = ten["images"], ten["labels"].astype(np.int64)
                self.others = hundred["images"][np.isin(hundred["coarse"], APART)]
        except (OSError, KeyError, ValueError) as error:
            raise LmrError(
                "Expected cifar10_test.npz with images and labels, and cifar100_test.npz with images and coarse, in "
                f"{str(folder)!r}: {error}"
            ) from error

    def make_stream(self, domain: str, kind: str, count: int, seed: int) -> OpenStream:
        """Return START clean known images, then ``count`` known and half as many unknown ones, shuffled."""
        generator = np.random.default_rng(seed)
        chosen = generator.permutation(len(self.images))[: START + count]
        first, known = np.split(chosen, [min(START, len(chosen) // 2)])
        unknown = self.others[generator.permutation(len(self.others))[: len(known) // 2]]
        if kind == "noise":
            unknown = generator.integers(0, 256, (len(known) // 2, *self.images.shape[1:]), np.uint8)
        images = np.concatenate([self.images[known], unknown])
        if domain != "clean":
            corrupted = len(known) if kind == "noise" else len(images)
            images[:corrupted] = corrupt_batch(images[:corrupted], domain, SEVERITY, constants="cifar")
        labels = np.concatenate([self.labels[known], np.full(len(unknown), -1)])
        order = generator.permutation(len(images))
        return OpenStream(
            np.concatenate([self.images[first], images[order]]),
            np.concatenate([self.labels[first], labels[order]]),
            len(first),
        )


def run_trial(
    stream: OpenStream, backbone: Backbone, domain: str, kind: str, spec: str, threshold: Unknown = None
) -> Trial:
    """Send a stream through a method and measure all scores of its answers."""
    classifier = backbone.classifier(CLASSES)
    method = create_suited(spec, classifier, unknown=threshold)
    images = backbone.preprocess(stream.images)
    logits, cosines, judged = [], [], []
    for first in range(0, len(images), BATCH):
        part = images[first : first + BATCH]
        offset = method.logit_offset()
        answer = method.step(part)
        logits.append(answer.logits)
        plain = answer.logits if offset is None else answer.logits - offset.clone()
        cosines.append((plain - classifier.logit_bias) / classifier.logit_scale)
        judged.append(torch.zeros(len(part), dtype=torch.bool) if answer.unknown is None else answer.unknown)
    own, plain, judged_all = (torch.cat(parts)[stream.start :] for parts in (logits, cosines, judged))
    labels = stream.labels[stream.start :]
    known, none = labels >= 0, judged_all.numpy()
    values = {name: score(own.double(), plain.double()).numpy() for name, score in SCORES.items()}
    return Trial(
        domain,
        kind,
        spec,
        threshold,
        float((own.argmax(1).numpy() == labels)[known].mean()),
        {name: measure_auroc(value[known], value[~known]) for name, value in values.items()},
        {name: measure_fpr95(value[known], value[~known]) for name, value in values.items()},
        float(none[known].mean()),
        float(none[~known].mean()),
    )


def describe_scores(trials: Sequence[Trial]) -> str:
    """Return the table of scores: AUROC and FPR95 in per cent, of trials without a threshold."""
    lines = [
        f"| images | unknown | method | accuracy | {' | '.join(SCORES)} |",
        f"|---|---|---|--:|{'--:|' * len(SCORES)}",
    ]
    for one in trials:
        if one.threshold is None:
            cells = (f"{100 * one.auroc[name]:.1f} / {100 * one.fpr95[name]:.0f}" for name in SCORES)
            place = f"| {one.domain} | {one.unknown} | {one.method} | {100 * one.accuracy:.1f} |"
            lines.append(f"{place} {' | '.join(cells)} |")
    return "\n".join(lines)


def describe_thresholds(trials: Sequence[Trial]) -> str:
    """Return the table of chosen thresholds: accuracy without and with one, known images lost, unknown ones found."""
    lines = [
        "| images | unknown | method | accuracy | with threshold | known lost | unknown found |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    plain = {(one.domain, one.unknown, one.method): one for one in trials if one.threshold is None}
    for one in trials:
        before = plain.get((one.domain, one.unknown, one.method))
        if one.threshold is not None and before is not None:
            shares = (before.accuracy, one.accuracy, one.lost, one.found)
            cells = " | ".join(f"{100 * share:.1f}" for share in shares)
            lines.append(f"| {one.domain} | {one.unknown} | {one.method} | {cells} |")
    return "\n".join(lines)


def run(options: argparse.Namespace) -> None:
    """Run all trials and print the tables."""
    torch.set_num_threads(1)
    data, backbone = OpenData(options.data), lmr.load()
    trials: list[Trial] = []
    for domain in options.domains:
        for kind in KINDS:
            stream = data.make_stream(domain, kind, options.images, options.seed)
            for spec in METHODS:
                for threshold in (None,) if spec == "zeroshot" else (None, "auto"):
                    trials.append(run_trial(stream, backbone, domain, kind, spec, threshold))
                    print(f"{domain}, {kind}, {spec}, threshold {threshold}", file=sys.stderr, flush=True)
                    if options.out is not None:
                        options.out.write_text(json.dumps([asdict(one) for one in trials], indent=1) + "\n")
    print(f"AUROC / FPR95 of each score, per cent:\n\n{describe_scores(trials)}\n")
    print(f"The threshold that is chosen for the stream, per cent:\n\n{describe_thresholds(trials)}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m lab.open_set`` and return its exit code."""
    parser = build_parser("open_set", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="FOLDER", help="has cifar10_test.npz and cifar100_test.npz")
    add("--images", type=int, default=600, metavar="N", help="known images after the first (default: 600)")
    add("--domains", nargs="+", default=DOMAINS, choices=DOMAINS, help="clean, or corruptions of severity 3")
    add("--seed", type=int, default=0, metavar="N", help="chooses and orders the images (default: 0)")
    add("--out", type=Path, metavar="FILE.json", help="write all numbers so far to this file, too")
    return run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
