"""Streams: pictures in a fixed order, cut into batches. Labels travel beside the images and never reach a method."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmr.data.corruptions import corrupt
from lmr.data.pocket import draw


@dataclass(frozen=True)
class Batch:
    """Consecutive pictures of one domain: uint8 [B, H, W, 3], their labels [B] and the index of the first."""

    pictures: NDArray[np.uint8]
    labels: NDArray[np.int64]
    domain: str
    first: int


def stream_pocket(domain: str, count: int, batch_size: int, severity: int = 5, seed: int = 0) -> Iterator[Batch]:
    """``count`` pictures of the pocket world ``seed`` under a corruption (or ``domain="clean"``), a short batch last.

    The order is random by construction (the world's index is hashed) and the same for every domain, so that domains
    differ in the corruption alone.
    """
    for first in range(0, count, batch_size):
        pictures, scene = draw(range(first, min(first + batch_size, count)), seed)
        if domain != "clean":
            pictures = corrupt(pictures, domain, severity, seed=seed, first=first)
        yield Batch(pictures, scene.label, domain, first)
