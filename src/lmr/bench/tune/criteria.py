"""Label-free criteria of how well an entry copes with a stream, and the rule that chooses by them. Pure functions.

An entry is a method with some values of its arguments. Every criterion takes the answers of one entry as ``Evidence``
and returns one number; larger is better.

entropy      minus the mean entropy of the answers: certain answers (Morerio et al., ICLR 2018)
diversity    the entropy of the mean answer: all classes are used
information  the mutual information of image and answer, diversity + entropy: certain and diverse (Bridle et al. 1991)
agreement    share of the frozen model's most confident quarter of the images on which it gets the same label

Among the criteria, diversity is the one that ranks entries well on drawings and on photographs; mutual information,
which also rewards certainty, does so on drawings alone. docs/tune.md has the numbers. Two guards limit the harm where
diversity errs: an entry that contradicts the frozen model on most of the images that it is most confident of is not
chosen, and a small gain does not replace the default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CONFIDENT = 0.25  # share of the images that count as those the frozen model is confident of

CRITERION = "diversity"
LEAST_AGREEMENT = 0.5  # with the frozen model, on the images it is most confident of
LEAST_GAIN = 0.01  # of the criterion over the default, in parts of its largest possible value

RULE = (
    "the largest diversity of the answers among the entries that agree with the frozen model on at least half of "
    "the images it is most confident of; the default, unless that gains at least 1 % of ln(classes)"
)


@dataclass(frozen=True)
class Evidence:
    """The answers of an entry as probabilities [N, C], and those of the model that does not adapt."""

    probabilities: Tensor
    frozen: Tensor


def measure_entropy(evidence: Evidence) -> float:
    """Return minus the mean entropy of the answers, in nats."""
    return -_entropy(evidence.probabilities).mean().item()


def measure_diversity(evidence: Evidence) -> float:
    """Return the entropy of the mean answer, in nats."""
    return _entropy(evidence.probabilities.mean(0)).item()


def measure_information(evidence: Evidence) -> float:
    """Return the mutual information of image and answer, in nats."""
    return measure_diversity(evidence) + measure_entropy(evidence)


def measure_agreement(evidence: Evidence) -> float:
    """Return the share of the frozen model's most confident images to which the entry gives the same label."""
    confidence, labels = evidence.frozen.max(1)
    count = max(1, round(CONFIDENT * len(labels)))
    chosen = confidence.sort(descending=True, stable=True).indices[:count]
    return (evidence.probabilities.argmax(1)[chosen] == labels[chosen]).double().mean().item()


CRITERIA: dict[str, Callable[[Evidence], float]] = {
    "entropy": measure_entropy,
    "diversity": measure_diversity,
    "information": measure_information,
    "agreement": measure_agreement,
}


def recommend(scores: Sequence[Mapping[str, float]], classes: int, default: int = 0) -> int:
    """Return the number of the recommended entry; ``scores`` are those of every entry, by criterion."""
    values = [
        score[CRITERION] if score["agreement"] >= LEAST_AGREEMENT or place == default else math.nan
        for place, score in enumerate(scores)
    ]
    best = choose_best(values, default)
    gain = values[best] - values[default]
    return default if gain < LEAST_GAIN * math.log(classes) else best  # a default without a score is replaced


def choose_best(values: Sequence[float], default: int = 0) -> int:
    """Return the number of the largest value; of equal ones the default, then the first. NaN never wins."""
    finite = [place for place, value in enumerate(values) if not math.isnan(value)]
    return max(finite, key=lambda place: (values[place], place == default, -place), default=default)


def _entropy(probabilities: Tensor) -> Tensor:
    """Return the entropy along the last dimension, in float64."""
    entropy: Tensor = torch.special.entr(probabilities.double()).sum(-1)
    return entropy
