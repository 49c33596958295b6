"""Class prototypes with which exactly the chosen samples of a batch pass LMR's gate.

How many samples go into the backward decides what a step costs. It is set by the data, not by the code: the classes are
laid so that the chosen images are certain of one of them and the others cannot tell any two classes apart.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.errors import LmrError

CERTAINTY = 0.9  # of a chosen sample if there were no rivals, with them about 0.8; the gate opens at 0.3
RIVALS, DISTANCE = 5, 0.04  # classes a little outside the protected set (0.03), so that there is a margin to restore


def lay_prototypes(features: Tensor, chosen: Tensor, classes: int, logit_scale: float) -> Tensor:
    """Unit prototypes [C, D] for unit features [B, D] of which ``chosen`` [B] shall pass.

    The first class has the cosine that makes a chosen sample certain and 0 with the others, its rivals follow a little
    behind, and all further classes are orthogonal to every feature: who is not chosen has probability 1/C everywhere.
    """
    count, width = features.shape
    if classes < 2 * (RIVALS + 1) or count >= width:
        raise LmrError(
            f"Expected at least {2 * (RIVALS + 1)} classes and fewer images than the model has features ({width}), "
            f"got {classes} classes and {count} images; only then can the share of samples past the gate be chosen."
        )
    features = features.double()
    cosine = math.log(CERTAINTY / (1 - CERTAINTY) * (classes - 1)) / logit_scale
    direction = torch.linalg.pinv(features, rtol=1e-4) @ chosen.double()  # cosine 1 with the chosen, 0 with the others
    if cosine * direction.norm() > 1:
        raise LmrError(
            f"The features of these images are too much alike: no unit prototype makes {int(chosen.sum())} of "
            f"{count} certain and leaves the others in doubt. Measure another model, or fewer images."
        )
    generator = torch.Generator().manual_seed(3)
    aside = torch.randn(classes, width, generator=generator, dtype=torch.float64)
    basis = torch.linalg.qr(features.T).Q
    aside = F.normalize(aside - aside @ basis @ basis.T, dim=-1)
    for place in range(RIVALS + 1):
        part = (cosine - DISTANCE * (place > 0)) * direction
        aside[place] = part + aside[place] * (1 - part.square().sum()).clamp(min=0).sqrt()
    return aside.float()
