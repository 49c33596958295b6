"""Zero-shot accuracy on labelled pictures, with its interval, next to the published one."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmr.core.classifier import ZeroShot
from lmr.data.image_files import UnreadableImage, open_image
from lmr.data.sets.labelled import Labelled
from lmr.models.verify.published_accuracies import PublishedAccuracy

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Accuracy:
    """Right answers among the readable pictures of a set."""

    right: int
    images: int
    unreadable: int
    classes: int
    prompts: str
    first_error: str = ""
    dataset: str | None = None
    published: PublishedAccuracy | None = None

    @property
    def value(self) -> float:
        """In %."""
        return 100 * self.right / self.images if self.images else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Where the accuracy on all such pictures lies, in %, with 95 % confidence (Wilson's score interval)."""
        if not self.images:
            return 0.0, 100.0
        z, n, p = 1.959964, self.images, self.right / self.images
        centre, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        low, high = ((centre + sign * spread) / (1 + z * z / n) for sign in (-1, 1))
        return 100 * max(low, 0.0), 100 * min(high, 1.0)

    @property
    def is_as_published(self) -> bool | None:
        """Whether the published value lies in the interval; None where none is known."""
        if self.published is None:
            return None
        low, high = self.interval
        return low <= self.published.accuracy <= high

    def __str__(self) -> str:
        low, high = self.interval
        lines = [
            f"  {self.value:.2f} %, 95 % interval {low:.2f} to {high:.2f}  ({self.right} of {self.images} pictures, "
            f"{self.classes} classes, {self.prompts})"
        ]
        if self.unreadable:
            lines.append(
                f"  {self.unreadable} pictures could not be read and are not counted; the first: {self.first_error}"
            )
        if self.published is not None:
            known = self.published
            lines.append(f"  published: {known.accuracy:.2f} % for {known.model} on {known.dataset}")
            lines.append(f"             with {known.prompts} ({known.source})")
        elif self.dataset is not None:
            lines.append(f"  published: no value is known for this model on {self.dataset!r}")
        if self.is_as_published is False:
            lines.append(
                "  WARNING: the published value lies outside the interval. Other prompts, class names or copies\n"
                "           of the pictures explain a few points; more than that points to a wrong model."
            )
        return "\n".join(lines)


def measure_accuracy(
    classifier: ZeroShot,
    preprocess: Callable[[Image], Tensor],
    pictures: Labelled,
    batch_size: int,
    prompts: str,
) -> Accuracy:
    """Answer every picture without adaptation; what cannot be read is counted and left out."""
    from tqdm import tqdm

    right = images = unreadable = 0
    first_error = ""
    hidden = sys.stderr is None or not sys.stderr.isatty()
    with tqdm(total=len(pictures.paths), unit="image", disable=hidden, leave=False) as bar:
        for first in range(0, len(pictures.paths), batch_size):
            part = slice(first, first + batch_size)
            inputs: list[Tensor] = []
            labels: list[int] = []
            for path, label in zip(pictures.paths[part], pictures.labels[part], strict=True):
                try:
                    inputs.append(preprocess(open_image(path)))
                    labels.append(label)
                except (UnreadableImage, ValueError, OSError, MemoryError) as error:
                    unreadable += 1
                    first_error = first_error or str(error)
            if inputs:
                right += _count_right(classifier, torch.stack(inputs), torch.tensor(labels))
                images += len(inputs)
            bar.update(len(pictures.paths[part]))
    return Accuracy(right, images, unreadable, classifier.classes, prompts, first_error)


def _count_right(classifier: ZeroShot, images: Tensor, labels: Tensor) -> int:
    with torch.no_grad():
        features = classifier.features(images.to(classifier.device, classifier.dtype))
        answers = classifier.logits(classifier.cosines(features)).argmax(1)
    return int((answers.cpu() == labels).sum())
