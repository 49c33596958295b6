"""One method on one stream: the answers and the time they took, with the whole protocol beside them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmr.bench.metrics import running_accuracy, running_top_share
from lmr.core.method import Method
from lmr.data.stream import Batch


@dataclass(frozen=True)
class Run:
    """What a method answered to a stream [N], what was true [N], and the seconds spent in ``step``."""

    predicted: NDArray[np.int64]
    true: NDArray[np.int64]
    seconds: float
    classes: int

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return float((self.predicted == self.true).mean())

    @property
    def top_share(self) -> float:
        """Share of the most predicted class."""
        return float(np.bincount(self.predicted, minlength=self.classes).max() / len(self.predicted))

    @property
    def ms_per_image(self) -> float:
        """Milliseconds in ``step`` per image, pictures not counted."""
        return 1000 * self.seconds / len(self.true)

    def curves(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Running accuracy and running share of the most predicted class: [N] each."""
        return running_accuracy(self.predicted, self.true), running_top_share(self.predicted, self.classes)


def run_stream(method: Method, batches: Iterable[Batch], preprocess: Callable[[Tensor], Tensor]) -> Run:
    """Reset the method and let it answer a stream."""
    method.reset()
    predicted: list[NDArray[np.int64]] = []
    true: list[NDArray[np.int64]] = []
    seconds = 0.0
    for batch in batches:
        images = preprocess(torch.from_numpy(batch.pictures))
        started = time.perf_counter()
        labels = method.step(images).labels
        seconds += time.perf_counter() - started
        predicted.append(labels.cpu().numpy())
        true.append(batch.labels)
    return Run(np.concatenate(predicted), np.concatenate(true), seconds, method.classifier.classes)
