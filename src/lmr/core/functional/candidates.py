"""The candidate set of LMR: a pure function of cosines."""

from __future__ import annotations

import torch
from torch import Tensor


def find_candidates(cosines: Tensor, delta: float, positives: str = "gap") -> Tensor:
    """Return the classes within ``delta`` of the best cosine (eq. 5), or with "top1" the best alone: bool [B, C]."""
    top = cosines.argmax(1, keepdim=True)
    only_top = torch.zeros_like(cosines, dtype=torch.bool).scatter_(1, top, True)
    return only_top if positives == "top1" else only_top | (cosines >= cosines.gather(1, top) - delta)
