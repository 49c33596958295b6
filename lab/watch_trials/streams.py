"""The streams of trials: the images of each step, drawn from a seed. Images repeat, so that streams can be long."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmr.core.errors import LmrError
from lmr.data.dataset import Dataset

DOMAIN = "fog"  # the corruption of a stream, unless another is given
CHANGED = "gaussian_noise"  # the one after a sudden change
SEVERITY = 5
RUN = 50  # steps of one class in a row, in the stream of long runs
IMAGES = 1000  # of the set that are shown
MAJORITY = 0.8  # of the images are of the dominant class, in the stream with a majority
KINDS = ("steady", "one class", "noise", "change", "runs", "majority")


@dataclass(frozen=True)
class WatchTrial:
    """A method on a kind of stream; a healthy one must be left alone."""

    name: str
    method: str
    kind: str
    healthy: bool


@dataclass(frozen=True)
class WatchBatch:
    """uint8 images [B, H, W, 3] and their labels [B]; -1 where an image shows nothing."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def list_trials() -> list[WatchTrial]:
    """Return the trials in trials.toml."""
    text = Path(__file__).with_name("trials.toml").read_text("utf-8")
    return [WatchTrial(**table) for table in tomllib.loads(text)["trials"]]


def find_onset(kind: str, steps: int) -> int:
    """Return the step at which the trouble of a stream begins."""
    return {"noise": steps // 4, "one class": steps // 2, "change": steps // 2}.get(kind, 0)


def list_domains(kind: str, domain: str = DOMAIN) -> tuple[str, ...]:
    """Return the corruptions in a stream."""
    return (domain, CHANGED) if kind == "change" else (domain,)


def show(
    dataset: Dataset,
    kind: str,
    steps: int,
    batch_size: int,
    seed: int,
    domain: str = DOMAIN,
    dominant: int | None = None,
) -> Iterator[WatchBatch]:
    """Yield the batches of a stream under the corruption ``domain``, or "clean".

    One class: a single class for half of the steps, then all classes. Majority: 80 % of the images are of one class,
    the rest of all others. ``dominant`` is the first single class or the majority; None draws it from the seed.
    """
    if kind not in KINDS:
        raise LmrError(f"There is no kind of stream {kind!r}; choose one of: {', '.join(KINDS)}.")
    random, onset = np.random.default_rng(seed), find_onset(kind, steps)
    labels = dataset.labels(domain)[:IMAGES]
    kept: dict[str, NDArray[np.uint8]] = {}
    chosen = int(random.choice(labels))
    if dominant is not None:
        if dominant not in labels:
            raise LmrError(f"The images that are shown have no class {dominant}; choose from 0 to {labels.max()}.")
        chosen = dominant
    for step in range(steps):
        if kind == "runs" and step % RUN == 0 and (step or dominant is None):
            chosen = int(random.choice(labels))
        single = kind == "runs" or (kind == "one class" and step < onset)
        places = np.flatnonzero(labels == chosen) if single else np.arange(len(labels))
        index = random.choice(places, batch_size)
        if kind == "majority":
            own, other = (
                random.choice(np.flatnonzero(mask), batch_size) for mask in (labels == chosen, labels != chosen)
            )
            index = np.where(random.random(batch_size) < MAJORITY, own, other)
        shown = CHANGED if kind == "change" and step >= onset else domain
        if shown not in kept:
            kept[shown] = _read(dataset, shown, len(labels))
        images, truth = kept[shown][index], labels[index]
        if kind == "noise" and onset <= step < steps // 2:
            images = random.integers(0, 256, images.shape, np.uint8)
            truth = np.full_like(truth, -1)
        yield WatchBatch(images, truth)


def _read(dataset: Dataset, domain: str, count: int) -> NDArray[np.uint8]:
    found: Any = np.stack(dataset.read(domain, SEVERITY, range(count)))
    images: NDArray[np.uint8] = found
    return images
