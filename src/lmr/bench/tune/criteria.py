"""Label-free criteria: numbers that tell, without labels, how well a classifier copes with a stream. Pure functions.

Every criterion takes what one candidate answered, as ``Evidence``, and returns one number; larger is better.

entropy      minus the mean entropy of the answers: certain answers (Morerio et al., ICLR 2018)
diversity    the entropy of the mean answer: all classes are used
information  the mutual information of image and answer, diversity + entropy: certain and diverse (Bridle et al. 1991)
consistency  overlap of the answers to an image and to its mirrored and shifted copy
density      soft neighbourhood density: answers form dense groups (Saito et al., ICCV 2021)
agreement    share of the frozen model's most confident quarter of the images on which it gets the same label
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

TEMPERATURE = 0.05  # of the neighbourhoods, as in the paper
NEIGHBOURS = 1000  # images whose neighbourhoods are compared; the cost grows with the square
CONFIDENT = 0.25  # share of the images that count as those the frozen model is confident of
SHIFT = 16  # a copy is shifted by this part of the image's size


@dataclass(frozen=True)
class Evidence:
    """What a candidate answered: probabilities [N, C], overlap with the answers to the copies [N].

    ``frozen`` [N, C] are the probabilities of the model that does not adapt.
    """

    probabilities: Tensor
    overlaps: Tensor
    frozen: Tensor


def measure_entropy(evidence: Evidence) -> float:
    """Minus the mean entropy of the answers, in nats."""
    return -_entropy(evidence.probabilities).mean().item()


def measure_diversity(evidence: Evidence) -> float:
    """The entropy of the mean answer, in nats."""
    return _entropy(evidence.probabilities.mean(0)).item()


def measure_information(evidence: Evidence) -> float:
    """The mutual information of image and answer, in nats."""
    return measure_diversity(evidence) + measure_entropy(evidence)


def measure_consistency(evidence: Evidence) -> float:
    """The mean overlap of the answers to the images and to their copies, from 0 to 1."""
    return evidence.overlaps.mean().item()


def measure_density(evidence: Evidence) -> float:
    """The mean entropy of the soft neighbourhoods, in nats: of the similarities of each answer with all others."""
    chosen = _spread(len(evidence.probabilities), NEIGHBOURS)
    units = F.normalize(evidence.probabilities[chosen], dim=1)
    similarities = units @ units.T / TEMPERATURE
    similarities.fill_diagonal_(-torch.inf)
    return _entropy(similarities.softmax(1)).mean().item()


def measure_agreement(evidence: Evidence) -> float:
    """The share of the frozen model's most confident images to which the candidate gives the same label."""
    confidence, labels = evidence.frozen.max(1)
    count = max(1, round(CONFIDENT * len(labels)))
    chosen = confidence.sort(descending=True, stable=True).indices[:count]
    return (evidence.probabilities.argmax(1)[chosen] == labels[chosen]).double().mean().item()


CRITERIA: dict[str, Callable[[Evidence], float]] = {
    "entropy": measure_entropy,
    "diversity": measure_diversity,
    "information": measure_information,
    "consistency": measure_consistency,
    "density": measure_density,
    "agreement": measure_agreement,
}


def copy_mildly(images: Tensor) -> Tensor:
    """Mirrored copies [B, 3, H, W], shifted to the right and down by a sixteenth; edge pixels are repeated."""
    height, width = images.shape[-2:]
    down, right = max(1, height // SHIFT), max(1, width // SHIFT)
    moved = F.pad(images.flip(-1), (right, 0, down, 0), mode="replicate")
    return moved[..., :height, :width]


def measure_overlap(first: Tensor, second: Tensor) -> Tensor:
    """How much of the probability two answers [B, C] place on the same classes, from 0 to 1: [B]."""
    return torch.minimum(first, second).sum(1)


def _entropy(probabilities: Tensor) -> Tensor:
    """Entropy along the last dimension, in float64."""
    entropy: Tensor = torch.special.entr(probabilities.double()).sum(-1)
    return entropy


def _spread(total: int, count: int) -> Tensor:
    """At most ``count`` places, evenly spread over ``total``."""
    return torch.arange(min(total, count)) * total // min(total, count)
