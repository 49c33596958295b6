"""Rates that hold for a number of images instead of a batch, and a share of a batch: pure functions.

docs/life.md has the derivation of the rates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmr.core.streams import Streams

USUAL_BATCH = 64  # images in a step of the paper's experiments, for which lr, eta and mu were chosen


def pace_bias(before: Tensor, streams: Streams, eta: float, mu: float) -> tuple[Tensor, Tensor]:
    """Return step size and memory [A, 1] of the bias correction, for streams that had ``before`` [A] images.

    ``eta`` and ``mu`` hold for a usual batch. A batch of n images has eta n / 64 and mu^(n / 64), so that any number of
    batches with as many images changes as much. The first 64 images are averaged with equal weights, as in a usual
    first batch; in a batch across that limit each part is treated by its side.
    """
    images = streams.sizes
    after = before + images
    early = before.clamp(max=USUAL_BATCH).double()
    late = (after - before.clamp(min=USUAL_BATCH)).clamp(min=0).double()
    memory = early / after.clamp(max=USUAL_BATCH) * mu ** (late / USUAL_BATCH)
    return (eta * images.double() / USUAL_BATCH).unsqueeze(1), memory.unsqueeze(1)


def count_waiting(waiting: Tensor, streams: Streams) -> Tensor:
    """Return the images [A] that a step counts for: those since the last step, at most a usual batch or this one.

    A usual batch without a confident sample takes no step, and the next step is not larger. The same holds for images
    beyond a usual batch here.
    """
    return torch.minimum(waiting + streams.sizes, streams.sizes.clamp(min=USUAL_BATCH))


def count_selected(images: Tensor, share: float) -> Tensor:
    """Return how many of each stream's images [A] are selected: the share of them, rounded up, at least one.

    A hundred-millionth is subtracted before rounding up: 0.07 of 100 is 7, although 0.07 * 100 is a little more.
    """
    return (share * images.double() - 1e-8).ceil().clamp(min=1).long()


def select_samples(streams: Streams, share: float) -> Tensor:
    """Select the samples that enter the loss, bool [B]: ceil(share n) of each stream's n, evenly spaced in their order.

    With m of n selected, the sample of rank r (from 0) is selected if floor((r + 1) m / n) > floor(r m / n); so the
    last one always is. Only the samples of a stream decide which of them are selected.
    """
    if share == 1:
        return torch.ones_like(streams.index, dtype=torch.bool)  # the published method: nothing to sort in every step
    size, rank = streams.repeat(streams.sizes), streams.rank()
    count = count_selected(size, share)
    return (rank + 1) * count // size > rank * count // size


def select_numbers(numbers: Tensor, share: float) -> Tensor:
    """Select images by their numbers in the stream, from 0: bool [B], ceil(share n) of the first n, evenly spaced.

    No other image decides whether one is selected, so that the selection does not depend on the batches.
    """
    if share == 1:
        return torch.ones_like(numbers, dtype=torch.bool)
    before, after = ((share * (numbers + more).double() - 1e-8).ceil() for more in (0, 1))
    return after > before
