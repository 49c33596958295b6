"""Zero-shot accuracy on labelled images, with its interval and the published one."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmr.apps.model_options import Prompts
from lmr.core.classifier import ZeroShot
from lmr.data.dataset import CLEAN, Dataset, ImageArray
from lmr.data.labelled import Labelled, choose_places
from lmr.images.files import UnreadableImage, open_image
from lmr.models.catalog import PublishedAccuracy

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Accuracy:
    """Right answers among the readable images of a set."""

    right: int
    images: int
    unreadable: int
    classes: int
    prompts: Prompts | None = None  # None for the model's default
    first_error: str = ""
    dataset: str | None = None
    published: PublishedAccuracy | None = None
    images_of: str = ""  # what the images are, where they are not the user's own

    @property
    def value(self) -> float:
        """In %."""
        return 100 * self.right / self.images if self.images else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The range of the accuracy on all such images, in %, with 95 % confidence (Wilson's score interval)."""
        if not self.images:
            return 0.0, 100.0
        z, n, p = 1.959964, self.images, self.right / self.images
        centre, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        low, high = ((centre + sign * spread) / (1 + z * z / n) for sign in (-1, 1))
        return 100 * max(low, 0.0), 100 * min(high, 1.0)

    @property
    def is_as_published(self) -> bool | None:
        """Whether the published value is in the interval; None where none is known."""
        if self.published is None:
            return None
        low, high = self.interval
        return low <= self.published.accuracy <= high


def measure_accuracy(
    classifier: ZeroShot, preprocess: Callable[[Image], Tensor], labelled: Labelled, batch_size: int
) -> Accuracy:
    """Label every image file without adaptation; those that cannot be read are counted and left out."""
    openers = [partial(open_image, path) for path in labelled.paths]
    return _measure(classifier, preprocess, openers, labelled.labels, batch_size)


def measure_dataset(
    classifier: ZeroShot,
    preprocess: Callable[[Image], Tensor],
    dataset: Dataset,
    batch_size: int,
    images: int | None = None,
) -> Accuracy:
    """The same on the clean images of a dataset, or on a random choice of them."""
    labels = dataset.labels(CLEAN)
    places = choose_places(len(labels), len(labels) if images is None else images)
    openers = [partial(_make_image, array) for array in dataset.read(CLEAN, 0, places)]
    accuracy = _measure(classifier, preprocess, openers, labels[places].tolist(), batch_size)
    return replace(accuracy, images_of=dataset.protocol["images"])


def _make_image(array: ImageArray) -> Image:
    from PIL import Image

    return Image.fromarray(array)


def _measure(
    classifier: ZeroShot,
    preprocess: Callable[[Image], Tensor],
    openers: Sequence[Callable[[], Image]],
    labels: Sequence[int],
    batch_size: int,
) -> Accuracy:
    """The accuracy on the images that the functions open, one after the other; a batch of them is in memory."""
    from tqdm import tqdm

    right = images = unreadable = 0
    first_error = ""
    hidden = sys.stderr is None or not sys.stderr.isatty()
    with tqdm(total=len(openers), unit="image", disable=hidden, leave=False) as bar:
        for first in range(0, len(openers), batch_size):
            part = slice(first, first + batch_size)
            inputs: list[Tensor] = []
            wanted: list[int] = []
            for open_one, label in zip(openers[part], labels[part], strict=True):
                try:
                    inputs.append(preprocess(open_one()))
                    wanted.append(label)
                except (UnreadableImage, ValueError, OSError, MemoryError) as error:
                    unreadable += 1
                    first_error = first_error or str(error)
            if inputs:
                right += _count_right(classifier, torch.stack(inputs), torch.tensor(wanted))
                images += len(inputs)
            bar.update(len(openers[part]))
    return Accuracy(right, images, unreadable, classifier.classes, first_error=first_error)


def _count_right(classifier: ZeroShot, images: Tensor, labels: Tensor) -> int:
    with torch.no_grad():
        features = classifier.features(images.to(classifier.device, classifier.dtype))
        answers = classifier.logits(classifier.cosines(features)).argmax(1)
    return int((answers.cpu() == labels).sum())
