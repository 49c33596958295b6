"""Class prototypes with which exactly the chosen samples of a batch pass a gate on confidence.

How many samples take part in the backward decides what a step costs. The data set it, not the code: the prototypes make
each chosen image certain of its class, and give the other images about the same probability for every class. The
chosen images are spread over several classes, because a loss that compares classes has no gradient on one alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.errors import LmrError

CERTAINTY = 0.9  # of a chosen sample if there were no rivals, with them about 0.8: past the gates here
RIVALS, DISTANCE = 5, 0.04  # classes just outside the protected set (0.03), so that there is a margin to restore
FEWEST_CLASSES = 12
NOBODY = -1  # the class of a sample that is not chosen


def build_prototypes(features: Tensor, target: Tensor, classes: int, logit_scale: float) -> Tensor:
    """Unit prototypes [C, D] for unit features [B, D]; ``target`` [B] is the class each becomes certain of, or NOBODY.

    The targets are 0, 1, ... without a gap. A target class has the cosine that makes its own samples certain and cosine
    0 with all others. The rivals, which follow the target classes, are a little behind for every chosen sample. All
    further classes are orthogonal to every feature: a sample that is not chosen has probability 1/C everywhere.
    """
    count, width = features.shape
    if classes < FEWEST_CLASSES or count >= width:
        raise LmrError(
            f"Expected at least {FEWEST_CLASSES} classes and fewer images than the model has features ({width}), got "
            f"{classes} classes and {count} images; only then can the share of samples past the gate be chosen."
        )
    firsts = int(target.max()) + 1
    assert firsts + RIVALS < classes
    features = features.double()
    cosine = math.log(CERTAINTY / (1 - CERTAINTY) * (classes - 1)) / logit_scale
    members = F.one_hot(target + 1, firsts + 1)[:, 1:].double()  # [B, firsts]
    members = torch.cat([cosine * members, (cosine - DISTANCE) * (target != NOBODY).double().unsqueeze(1)], dim=1)
    directions = (torch.linalg.pinv(features, rtol=1e-4) @ members).T  # [firsts + 1, D]: the last is the rivals'
    if bool((directions.norm(dim=1) > 1).any()):
        raise LmrError(
            f"The features of these images are too similar: no unit prototypes make {int((target != NOBODY).sum())} of "
            f"{count} certain and leave the others undecided. Measure another model, or fewer images."
        )
    generator = torch.Generator().manual_seed(3)
    prototypes = torch.randn(classes, width, generator=generator, dtype=torch.float64)
    basis = torch.linalg.qr(features.T).Q
    prototypes = F.normalize(prototypes - prototypes @ basis @ basis.T, dim=-1)
    for place in range(firsts + RIVALS):
        part = directions[min(place, firsts)]
        prototypes[place] = part + prototypes[place] * (1 - part.square().sum()).clamp(min=0).sqrt()
    return prototypes.float()
