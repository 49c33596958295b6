"""Losses that compare the images of a batch with each other through captions: pure functions.

Shapes: B images with unit features [B, D], and for each image the unit feature of a caption [B, D].
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmr.core.functional.losses import entropy

TEMPERATURE = 0.01  # of the targets, a constant of the authors' code whatever the model's scale


def match_captions(features: Tensor, captions: Tensor, scale: float) -> Tensor:
    """Cross-entropy of image-to-caption logits with the likeness of images and captions (Hakim et al. 2025).

    The target is softmax over rows of (Z Z' + U U') / 2 / 0.01. As in the authors' code it is used transposed, so its
    rows need not add up to 1, and gradient flows through it. Gives the mean over the images.
    """
    likeness = (features @ features.T + captions @ captions.T) / 2
    target = (likeness / TEMPERATURE).softmax(1)
    return -(target.T * (scale * features @ captions.T).log_softmax(1)).sum(1).mean()


def caption_entropy(features: Tensor, captions: Tensor, scale: float) -> Tensor:
    """Mean entropy of every image's distribution over the captions of the batch, equal captions included."""
    return entropy(scale * features @ captions.T).mean()


def spread_entropy(logits: Tensor, eps: float = 1e-6) -> Tensor:
    """Entropy of the mean distribution over classes [B, C]: large where a batch uses all classes alike."""
    mean = logits.softmax(1).mean(0)
    return -(mean * (mean + eps).log()).sum()


def follow_labels(features: Tensor, prototypes: Tensor) -> Tensor:
    """The prototype [B, D] of the nearest class of every feature [B, D]; no gradient flows to the choice."""
    return prototypes[torch.argmax(features.detach() @ prototypes.T, 1)]
