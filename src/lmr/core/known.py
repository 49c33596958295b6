"""Known and unknown images: does an image belong to one of the classes at all?

The score of an image says how far its best class stands above the mean class; docs/unknown.md compares scores.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.core.spec import convert

WIDTH = 4.0  # logits by which the best class stands above the mean class, for a score of 1 - 1/e


class Verdict(NamedTuple):
    """The frozen model's logits [B, C] of images, their scores [B], and which [B] are unknown."""

    logits: Tensor
    scores: Tensor
    unknown: Tensor


def score_known(logits: Tensor) -> Tensor:
    """Return a score in [0, 1] for each image that it belongs to one of the classes: [B] from logits [B, C].

    It is 1 - exp(-(m - a) / 4), with the largest logit m and the mean a over all classes: 0 where all classes are
    alike, near 1 where one stands out.
    """
    return 1 - torch.exp((logits.mean(1) - logits.amax(1)) / WIDTH)


def check_unknown(unknown: float | None) -> float | None:
    """Return a threshold as a number or None; refuse anything else."""
    value: float | None = convert(unknown, float | None, "the threshold of unknown images")
    if value is not None and not 0 <= value <= 1:
        raise LmrError(f"Expected a threshold of unknown images from 0 to 1, got {value!r}.")
    return value
