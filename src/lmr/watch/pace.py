"""The pace of a watch: comparisons and canary checks are as frequent as a small share of the cost of a step allows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lmr.core.classifier import leave_inference_mode
from lmr.core.method import Method
from lmr.core.passes import Passes, count_passes

MOST = 0.04  # of the cost of a step, for comparisons and canaries together
COMPARISON = 1 / 32  # of it, for comparisons
EVERY = 16  # at most one image in 16 is compared: more would add little
YOUNG = 512  # images of a new stream of which more are compared: nothing is known of it yet
MORE = 4  # times as many of these
SPACING = 20  # images of the stream for each canary that is checked, at least


@dataclass(frozen=True)
class Pace:
    """One image in ``every`` is compared; a canary is checked for every ``spacing`` images of the stream."""

    every: int
    spacing: int


def find_pace(method: Method) -> Pace:
    """Return the pace at which the watch costs at most 4 % of a step, whatever the size of the batches.

    Comparisons have up to a 32nd of a step, canaries the rest. A canary costs a forward, or a whole step where the
    answer without adapting is computed as the one with it.
    """
    step = measure_step(method)
    every = max(EVERY, math.ceil(1 / (COMPARISON * step)))
    canary = step if method.memory_span != "stream" or method.takes_views else 1.0
    return Pace(every, max(SPACING, math.ceil(canary / (MOST * step - 1 / every))))


def measure_step(method: Method) -> float:
    """Return the cost of a step for each confident image, in forwards of the image tower; a lower bound.

    A backward counts as a forward. Prompts are left out, as their share depends on the batch. A method whose passes
    cannot be counted is assumed to need one forward.
    """
    with leave_inference_mode():
        passes = count_passes(method) or Passes(forwards=1)
    return passes.forwards + passes.backwards
