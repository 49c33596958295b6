"""Known and unknown images: does an image belong to one of the classes at all?

The score of an image says how far its best class stands above the mean class. The threshold below which an image is
unknown is given, or follows from the scores of the stream: where their histogram has two modes, it lies between them.
docs/unknown.md compares scores and says what the rule finds and what it misses.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.errors import LmrError
from lmr.core.streams import Streams, choose_rows

UNKNOWN = "unknown"  # the label of an image that belongs to none of the classes, where a text is needed
Unknown = float | Literal["auto"] | None  # the threshold of scores, one chosen for each stream, or none
SCORES, BLOCK_SCORES, THRESHOLD = KEPT = ("known_scores", "known_block", "known_threshold")  # in the state of a stream
WIDTH = 4.0  # logits by which the best class stands above the mean class, for a score of 1 - 1/e
BINS = 64  # of the histogram of scores
BLOCK = 32  # images of a stream after which its threshold is chosen again
MEMORY = 256  # images after which the histogram forgets
APART = 0.28  # distance of the means of two modes
LEAST = 0.05  # share of the histogram that each mode has at least
LASTING = 0.5  # the least share of known images in the last block, beside their share of the histogram
TINY = 1e-30  # in place of a divisor of 0
FLOOR = 0.3  # the threshold without two modes, and the lowest one with them


class Verdict(NamedTuple):
    """The frozen model's logits [B, C] of images, their scores [B], which [B] are unknown, and the state after them."""

    logits: Tensor
    scores: Tensor
    unknown: Tensor
    state: dict[str, Tensor]


def score_known(logits: Tensor) -> Tensor:
    """Return a score in [0, 1] for each image that it belongs to one of the classes: [B] from logits [B, C].

    It is 1 - exp(-(m - a) / 4), with the largest logit m and the mean a over all classes: 0 where all classes are
    alike, near 1 where one stands out.
    """
    return 1 - torch.exp((logits.mean(1) - logits.amax(1)) / WIDTH)


def check_unknown(unknown: str | float | None) -> Unknown:
    """Return a threshold as a number, "auto" or None; refuse anything else."""
    if unknown is None or unknown == "auto":
        return unknown  # type: ignore[return-value]  # it is this text
    try:
        value = float(unknown)
    except (TypeError, ValueError, OverflowError):
        value = -1.0
    if isinstance(unknown, bool) or not 0 <= value <= 1:
        raise LmrError(f"Expected a threshold of unknown images from 0 to 1, or auto; got {unknown!r}.")
    return value


def begin_scores(like: Tensor) -> dict[str, Tensor]:
    """Return what a new stream keeps of its scores: their histogram, that of the present block, and the threshold."""
    bins = like.new_zeros(BINS)
    return {SCORES: bins, BLOCK_SCORES: bins, THRESHOLD: like.new_tensor(FLOOR)}


def judge(scores: Tensor, state: dict[str, Tensor], streams: Streams) -> tuple[Tensor, dict[str, Tensor]]:
    """Return which images [B] of streams with a chosen threshold are unknown, and the state after them.

    A stream's own count of images decides where a block ends, so that the result does not depend on the batches. Images
    without a finite score are known and not counted.
    """
    state = {key: state[key] for key in KEPT}
    unknown, counted = torch.zeros_like(scores, dtype=torch.bool), scores.isfinite()
    if not bool(counted.any()):
        return unknown, state
    streams, scores = streams.take(counted), scores[counted]
    bins = F.one_hot((scores * BINS).long().clamp(0, BINS - 1), BINS).to(state[SCORES])
    number = (streams.spread(state[BLOCK_SCORES].sum(1).long()) + streams.rank()) // BLOCK
    below = torch.zeros_like(number, dtype=torch.bool)
    for place in range(int(number.max()) + 1):
        own = number == place
        part = streams.take(own)
        below[own] = scores[own] < part.spread(state[THRESHOLD])
        block = state[BLOCK_SCORES] + part.sum(bins[own])
        histogram = state[SCORES] * (1 - BLOCK / MEMORY) + block
        going = {**state, BLOCK_SCORES: block}
        ended = {
            SCORES: histogram,
            BLOCK_SCORES: torch.zeros_like(block),
            THRESHOLD: find_threshold(histogram, block),
        }
        full = block.sum(1) >= BLOCK
        state = {key: choose_rows(full, ended[key], going[key]) for key in KEPT}
    unknown[counted] = below
    return unknown, state


def find_threshold(histogram: Tensor, block: Tensor) -> Tensor:
    """Return the threshold [A] of streams from the histograms [A, BINS] of their scores and of their last block.

    Otsu's split is the edge between two bins with the largest variance between the two sides: w (1 - w) (h - l)^2, with
    the share w of the lower side and the means l and h of both. The sides are two modes if h - l is at least APART and
    each has a share of at least LEAST. The split is the threshold if they are, and if the upper side has not shrunk in
    the last block to less than LASTING of its share: clear images before a camera went bad are no mode of their own.
    The threshold is FLOOR otherwise, and never less.
    """
    centres = (torch.arange(BINS, device=histogram.device) + 0.5).to(histogram.dtype) / BINS
    total = histogram.sum(1, keepdim=True)
    weight, moment = histogram.cumsum(1), (histogram * centres).cumsum(1)
    rest = total - weight
    apart = (moment[:, -1:] - moment) / rest.clamp(min=TINY) - moment / weight.clamp(min=TINY)
    between = torch.where((weight > 0) & (rest > 0), weight * rest * apart.square(), 0)
    split = between.argmax(1, keepdim=True)
    low, high = (side.gather(1, split) for side in (weight, rest))
    last = block.sum(1, keepdim=True)
    lasting = last - block.cumsum(1).gather(1, split)
    valid = (apart.gather(1, split) >= APART) & (low >= LEAST * total) & (high >= LEAST * total)
    valid &= lasting * total >= LASTING * high * last
    edge = (split + 1).to(histogram.dtype) / BINS
    return torch.where(valid, edge, FLOOR).clamp(min=FLOOR).squeeze(1)
