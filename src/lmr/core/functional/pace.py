"""Rates that hold for a number of images instead of a batch: pure functions. docs/life.md has the derivation."""

from __future__ import annotations

import torch
from torch import Tensor


def pace_bias(before: Tensor, images: Tensor, eta: float, mu: float, unit: int) -> tuple[Tensor, Tensor]:
    """The gain and the memory [A, 1] of a batch of ``images`` [A] images, in streams that had ``before`` [A].

    ``eta`` and ``mu`` hold for ``unit`` images. A batch of n has eta n / unit and mu^(n / unit): what one usual batch
    changes is changed by any number of batches with as many images. The first ``unit`` images are averaged with equal
    weights, as those of a usual first batch are; of a batch across that border each part counts as its side does.
    """
    after = before + images
    early, late = before.clamp(max=unit).double(), (after - before.clamp(min=unit)).clamp(min=0).double()
    memory = early / after.clamp(max=unit) * mu ** (late / unit)
    return (eta * images.double() / unit).unsqueeze(1), memory.unsqueeze(1)


def count_waiting(waiting: Tensor, images: Tensor, unit: int) -> Tensor:
    """The images [A] that a step now stands for: those since the last step, at most a usual batch or the present one.

    A usual batch whose samples are all too doubtful for a step is left out, and the step after it is not larger. So are
    the images beyond ``unit`` here.
    """
    return torch.minimum(waiting + images, images.clamp(min=unit))
