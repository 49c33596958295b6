"""One method on one stream of the demonstration: its answers, the time they took, and their running measures."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmr.bench.running.inputs import preprocess
from lmr.bench.running.metrics import accuracy, running_accuracy, running_top_share, top_share
from lmr.core.method import Method
from lmr.data.streams import Batch
from lmr.models import Backbone


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
        return accuracy(self.predicted, self.true)

    @property
    def top_share(self) -> float:
        """Share of the most predicted class."""
        return top_share(self.predicted)

    @property
    def ms_per_image(self) -> float:
        """Milliseconds in ``step`` per image, pictures not counted."""
        return 1000 * self.seconds / len(self.true)

    def curves(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Running accuracy and running share of the most predicted class: [N] each."""
        return running_accuracy(self.predicted, self.true), running_top_share(self.predicted, self.classes)


def run_stream(method: Method, batches: Iterable[Batch], backbone: Backbone) -> Run:
    """Reset the method and let it answer a stream."""
    method.reset()
    predicted: list[NDArray[np.int64]] = []
    true: list[NDArray[np.int64]] = []
    seconds = 0.0
    for batch in batches:
        images = preprocess(backbone, batch.images, method.classifier.device)
        started = time.perf_counter()
        labels = method.step(images).labels
        seconds += time.perf_counter() - started
        predicted.append(labels.cpu().numpy())
        true.append(batch.labels)
    return Run(np.concatenate(predicted), np.concatenate(true), seconds, method.classifier.classes)
