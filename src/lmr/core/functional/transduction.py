"""Losses that compare the images of a batch with each other through captions: pure functions.

Shapes: B images with unit features [B, D], and for each image the unit feature of a caption [B, D].
"""

from __future__ import annotations

import torch
from torch import Tensor

TEMPERATURE = 0.01  # of the targets, a constant of the authors' code whatever the model's scale


def match_captions(features: Tensor, captions: Tensor, scale: float) -> Tensor:
    """Return the cross-entropy of image-to-caption logits with the likeness of images and captions (Hakim et al. 2025).

    The target is softmax over rows of (Z Z' + U U') / 2 / 0.01. As in the authors' code it is used transposed, so its
    rows need not add up to 1, and gradient flows through it. Returns the mean over the images.
    """
    likeness = (features @ features.T + captions @ captions.T) / 2
    target = (likeness / TEMPERATURE).softmax(1)
    return -(target.T * (scale * features @ captions.T).log_softmax(1)).sum(1).mean()


def follow_labels(features: Tensor, prototypes: Tensor) -> Tensor:
    """Return the prototype [B, D] of the nearest class of every feature [B, D]; no gradient flows to the choice."""
    return prototypes[torch.argmax(features.detach() @ prototypes.T, 1)]
