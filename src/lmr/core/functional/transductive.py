"""Answering the images of a batch together."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lmr.core.streams import Streams


def answer_together(features: Tensor, streams: Streams, classes: int, solve: Callable[[Tensor], Tensor]) -> Tensor:
    """Return logarithms [B, C] of distributions over labels, where ``solve`` answers the images of a stream together.

    ``solve`` maps unit features [N, D] to distributions [N, C]. Images of several streams are separate batches. Images
    without finite features do not enter the answers of the others.
    """
    answers = features.new_full((len(features), classes), math.nan)
    for k in range(streams.count):
        samples = (streams.index == k) & features.isfinite().all(1)
        if bool(samples.any()):
            answers[samples] = (solve(features[samples]) + torch.finfo(features.dtype).tiny).log()
    return answers


def find_floor(dtype: torch.dtype) -> float:
    """Return the logarithm of the smallest number of a precision."""
    return math.log(torch.finfo(dtype).tiny)
