"""The pace of a watch: comparisons are as frequent as a small share of the cost of a step allows."""

from __future__ import annotations

import math

from lmr.core.classifier import leave_inference_mode
from lmr.core.method import Method
from lmr.core.passes import Passes, count_passes

MOST = 1 / 32  # of the cost of a step, for comparisons
EVERY = 16  # at most one image in 16 is compared: more would add little
YOUNG = 512  # images of a new stream of which more are compared: nothing is known of it yet
MORE = 4  # times as many of these


def find_interval(method: Method) -> int:
    """Return N so that comparing one image in N costs at most a 32nd of a step, whatever the size of the batches."""
    return max(EVERY, math.ceil(1 / (MOST * measure_step(method))))


def measure_step(method: Method) -> float:
    """Return the cost of a step for each confident image, in forwards of the image tower; a lower bound.

    A backward counts as a forward. Prompts are left out, as their share depends on the batch. A method whose passes
    cannot be counted is assumed to need one forward.
    """
    with leave_inference_mode():
        passes = count_passes(method) or Passes(forwards=1)
    return passes.forwards + passes.backwards
