"""Labels in a run: a few random images of the stream reveal their class, before it starts or once they are answered."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lmr.bench.inputs import AnyMethod, load_backbone
from lmr.bench.plans.task import Task
from lmr.bench.running.metrics import draw_labelled
from lmr.core.errors import LmrError
from lmr.core.labelled import Labelled
from lmr.data.streams import Stream


def choose_labelled(task: Task, stream: Stream) -> NDArray[np.int64]:
    """Return the sorted places in the stream of the images whose labels are revealed."""
    counted = stream.count - task.onset
    if task.labels >= counted:
        raise LmrError(f"No image is left to judge: {task.labels} of {counted} reveal their label; use more images.")
    return draw_labelled(task.labels, task.labels_when, task.seed, stream.count, task.onset)


def teach_before(method: AnyMethod, task: Task, stream: Stream, places: NDArray[np.int64]) -> None:
    """Let the method learn the labels of images at these places before the stream starts."""
    assert isinstance(method, Labelled)
    batch = stream.read(places)
    images = load_backbone(*task.model).preprocess(batch.images).to(method.classifier.device)
    method.learn_labels(images, batch.labels.tolist())


def teach_after(method: AnyMethod, true: NDArray[np.int64], begun: int, places: NDArray[np.int64]) -> None:
    """Let the method learn the labels of images of the last batch, which began at the place ``begun``."""
    assert isinstance(method, Labelled)
    own = places[(places >= begun) & (places < begun + len(true))]
    if len(own):
        method.learn_labels(own.tolist(), true[own - begun].tolist())
