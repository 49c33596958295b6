"""How often a watch looks while nothing is suspected: as often as a small share of the cost of a step allows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lmr.core.method import Method
from lmr.core.norms import find_blocks
from lmr.core.traits import Passes

MOST = 0.04  # of the cost of a step, for the comparison and the canaries together
COMPARISON = 1 / 32  # of it, for the comparison
EVERY = 16  # one image in so many is compared at most: more would say little more
SPACING = 20  # images of the stream for each canary that is asked, at least


@dataclass(frozen=True)
class WatchPace:
    """One image in ``every`` is compared; a canary is asked for every ``spacing`` images of the stream."""

    every: int
    spacing: int


def find_pace(method: Method) -> WatchPace:
    """The pace that costs at most 4 % of a step, whatever the size of the batches.

    The comparison has up to a 32nd of a step, the canaries what is left. A canary costs a forward, or a whole step
    where the answer without adapting is computed as the one with it.
    """
    step = count_step(method)
    every = max(EVERY, math.ceil(1 / (COMPARISON * step)))
    canary = step if method.restarts or method.takes_views else 1.0
    return WatchPace(every, max(SPACING, math.ceil(canary / (MOST * step - 1 / every))))


def count_step(method: Method) -> float:
    """What a step costs for each image that passes its gate, in forwards of the image tower, and rather too little.

    A backward counts as a forward. Prompts are left out, as their share depends on the batch. So is the last of
    several blocks: most of it is computed for one token alone. A method that does not count its passes is taken to
    need one forward.
    """
    passes = method.count_passes() or Passes(forwards=1)
    if passes.blocks is None:
        return passes.forwards + passes.backwards
    depth = find_blocks(method.classifier.encoder)[1]
    share = 1.0 if passes.blocks >= depth else (passes.blocks - 1) / (depth - 1)
    whole = min(passes.whole, passes.forwards)
    return whole + share * (passes.forwards - whole + passes.backwards)
