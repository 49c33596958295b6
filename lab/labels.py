"""What a few labels are worth: accuracy of the frozen model against their number, and the coverage of the interval.

Images are encoded once; streams are drawn from them. Labels are drawn at random from a stream and are not judged.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import lmr
from lab.command import build_parser, run_command
from lmr.bench.inputs import find_dataset, load_classifier
from lmr.bench.table import format_table
from lmr.core.functional.offset import estimate_accuracy, learn_offset, match_shares
from lmr.core.progress import show_progress
from lmr.data.streams import share_classes

COUNTS = (0, 5, 10, 20, 50)  # labels
DEVELOPMENT = ("gaussian_noise", "fog", "contrast", "pixelate", "motion_blur", "snow")
SEEDS = (1, 2, 3)
MIXTURES: dict[str, tuple[float | None, float | None]] = {  # majority of one class, tail
    "balanced": (None, None),
    "60 % one class": (0.6, None),
    "80 % one class": (0.8, None),
    "95 % one class": (0.95, None),
    "long tail": (None, 0.6),
}
EXAMPLES = """\
examples:
  python -m lab.labels --root DATA --figure docs/labels.png
  python -m lab.labels --root DATA --corruptions impulse_noise frost zoom_blur jpeg_compression --seeds 6 7 8"""
_WRONG = 0.1  # share of labels that are wrong, in one row


@dataclass(frozen=True)
class Draw:
    """A stream of one corruption: logits [N, C] of the frozen model, and labels [N]."""

    mixture: str
    logits: NDArray[np.float32]
    labels: NDArray[np.int64]


def encode(
    dataset: str, corruption: str, model: str, root: str | None
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return logits and labels of all images of a set under a corruption of severity 5."""
    found = find_dataset(dataset, root)
    classifier = load_classifier(model, "float32", "cpu", found.classes, ("a photo of a {}.",))
    backbone = lmr.load(model)
    places = np.arange(found.count(corruption))
    rows = []
    with torch.no_grad():
        for first in range(0, len(places), 200):
            images = found.read(corruption, 5, places[first : first + 200].tolist())
            rows.append(classifier(backbone.preprocess(images)).float().numpy())
    return np.concatenate(rows), np.asarray(found.labels(corruption))[places]


def draw_streams(
    logits: NDArray[np.float32], labels: NDArray[np.int64], images: int, seeds: Sequence[int]
) -> Iterator[Draw]:
    """Yield streams of every mixture of classes and every seed, which also draws the frequent class."""
    classes = logits.shape[1]
    for (mixture, (majority, tail)), seed in itertools.product(MIXTURES.items(), seeds):
        rng = np.random.default_rng([seed, list(MIXTURES).index(mixture)])
        shares = np.full(classes, 1 / classes)
        if majority is not None or tail is not None:
            shares = share_classes(classes, 1, majority or 0.8, tail)[rng.permutation(classes)]
        places = []
        for kind, count in enumerate(rng.multinomial(images, shares)):
            own = np.flatnonzero(labels == kind)
            places.append(rng.choice(own, min(count, len(own)), replace=False))
        order = rng.permutation(np.concatenate(places))
        yield Draw(mixture, logits[order], labels[order])


def measure(draw: Draw, seed: int) -> tuple[dict[tuple[str, int], tuple[float, float]], list[tuple[int, bool]]]:
    """Return accuracy and macro recall by rule and number of labels, and whether each interval held the truth."""
    z, true, rng = torch.from_numpy(draw.logits), draw.labels, np.random.default_rng(seed)
    classes, found, covered = z.shape[1], {}, []
    equal = match_shares(z, torch.full((1, classes), 1 / classes))[0]
    for count in COUNTS:
        own, rest = slice(0, count), slice(count, None)  # the order of a stream is random
        given = torch.from_numpy(true[own])
        wrong = torch.from_numpy(np.where(rng.random(count) < _WRONG, rng.integers(0, classes, count), true[own]))
        offsets = {"labels": learn_offset(z[own], given, z) if count else torch.zeros(classes)}
        if count:
            offsets |= {
                "labels, d0 = 0": learn_offset(z[own], given),
                "one in ten wrong": learn_offset(z[own], wrong, z),
            }
            estimate = estimate_accuracy(z[own], given, z)
        else:
            offsets["equal shares, no label"] = equal
        for rule, offset in offsets.items():
            answers = (z[rest] + offset).argmax(1).numpy()
            right = answers == true[rest]
            recalls = [right[true[rest] == kind].mean() for kind in np.unique(true[rest])]
            found[rule, count] = float(right.mean()), float(np.mean(recalls))
        if count:
            low, high = estimate.interval
            covered.append((count, low <= found["labels", count][0] <= high))
    return found, covered


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment with the given arguments and return the exit code."""
    parser = build_parser("labels", __doc__ or "", EXAMPLES)
    parser.add_argument("--root", help="where datasets are kept")
    parser.add_argument("--dataset", default="cifar10-c", help="with corruptions (default: %(default)s)")
    parser.add_argument("--model", default="photo", help="default: %(default)s")
    parser.add_argument("--corruptions", nargs="+", default=DEVELOPMENT, metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, metavar="N")
    parser.add_argument("--images", type=int, default=500, help="of a stream (default: %(default)s)")
    parser.add_argument("--figure", type=Path, help="draw accuracy against the number of labels into this file")
    return run_command(parser, run, argv)


def run(options: argparse.Namespace) -> None:
    """Print the tables and draw the figure."""
    gains: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    accuracies: dict[tuple[str, int], list[float]] = {}
    covered: list[tuple[int, bool]] = []
    with show_progress("encoding", len(options.corruptions)) as bar:
        for corruption in options.corruptions:
            logits, labels = encode(options.dataset, corruption, options.model, options.root)
            for number, draw in enumerate(draw_streams(logits, labels, options.images, options.seeds)):
                found, inside = measure(draw, number)
                covered += inside
                for (rule, count), (accuracy, recall) in found.items():
                    # The frozen model on the same images.
                    rest = slice(count, None)
                    plain = draw.logits[rest].argmax(1) == draw.labels[rest]
                    kinds = np.unique(draw.labels[rest])
                    frozen = np.mean([plain[draw.labels[rest] == kind].mean() for kind in kinds])
                    gains.setdefault((draw.mixture, rule, count), []).append(
                        (100 * (accuracy - plain.mean()), 100 * (recall - frozen))
                    )
                    if rule == "labels":
                        accuracies.setdefault((draw.mixture, count), []).append(100 * accuracy)
            bar.advance(1)
    rows = [["images", "rule", "labels", "accuracy: mean", "5th percentile", "worst", "macro recall: mean"]]
    for (mixture, rule, count), values in sorted(
        gains.items(), key=lambda one: (list(MIXTURES).index(one[0][0]), one[0])
    ):
        if not count and rule == "labels":
            continue
        change, recall = np.array(values).T
        numbers = change.mean(), np.percentile(change, 5), change.min(), recall.mean()
        rows.append([mixture, rule, str(count), *(f"{number:+.1f}" for number in numbers)])
    print(f"{options.model}, {options.dataset}, {', '.join(options.corruptions)}; points against the frozen model")
    print(format_table(rows))
    for count in COUNTS[1:]:
        held = [inside for own, inside in covered if own == count]
        print(f"95 % interval with {count} labels: held the accuracy in {np.mean(held):.1%} of {len(held)} draws")
    print(f"all: {np.mean([inside for _, inside in covered]):.1%} of {len(covered)} draws")
    if options.figure is not None:
        draw_figure(accuracies, options.figure)


def draw_figure(accuracies: dict[tuple[str, int], list[float]], path: Path) -> None:
    """Draw the mean accuracy against the number of labels, a line for each mixture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for mixture in MIXTURES:
        means = [np.mean(accuracies[mixture, count]) for count in COUNTS]
        axes.plot(COUNTS, means, marker="o", label=mixture)
    axes.set_xlabel("labels")
    axes.set_ylabel("accuracy of the frozen model + labels, %")
    axes.set_xticks(COUNTS)
    axes.grid(alpha=0.3)
    figure.legend(frameon=False, loc="outside right upper")
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    raise SystemExit(main())
