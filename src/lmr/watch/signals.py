"""Signals: label-free numbers that compare the adapted model with the frozen one. Pure functions on small values."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lmr.watch.settings import Thresholds

FREE_STEPS = 1000  # in which the limit of the drift does not grow
FEW_CLASSES = 4.75  # effective number of classes in sure answers to a stream that some classes dominate, at most
SLOW = 2  # times the memory, over which sure answers are averaged: there are fewer of them


class Alarm(enum.StrEnum):
    """The name of a signal that is an alarm."""

    NOT_FINITE = "not finite"
    CONCENTRATION = "concentration"
    ENTROPY = "entropy"
    DOUBT = "doubt"
    DRIFT = "drift"


@dataclass(frozen=True)
class Tally:
    """Sums over the compared images of a stream, the older an image the smaller its weight; float64, on the CPU."""

    classes: Tensor  # [3, C] weights of predicted classes: adapted, frozen, and frozen by how sure each answer is
    sums: Tensor  # [5] weighted sums: entropy adapted, entropy frozen, equal labels; sure answers: images, equal
    compared: int = 0  # images so far

    @cached_property
    def averages(self) -> tuple[float | None, ...]:
        """Concentration, excess of the top share, entropy adapted and frozen, agreement, and three of sure answers.

        The last three are the mean sureness, and the effective number of classes and the agreement of sure answers.
        None before the first image. Cached, because between two comparisons they are needed at every step.
        """
        if not self.compared:
            return (None,) * 8
        adapted, frozen, sure = self.classes
        weight, certain = float(adapted.sum()), float(sure.sum())
        *sums, images, kept = self.sums.tolist()
        concentration = effective_number(adapted) / effective_number(frozen)
        top_share = (float(adapted.max()) - float(frozen.max())) / weight
        means = (value / weight for value in sums)
        of_sure = (effective_number(sure), kept / certain) if certain else (None, None)
        return concentration, top_share, *means, certain / images, *of_sure

    @classmethod
    def begin(cls, classes: int) -> Tally:
        """Return the tally of a stream without any comparison yet."""
        return cls(torch.zeros(3, classes, dtype=torch.float64), torch.zeros(5, dtype=torch.float64))


@dataclass(frozen=True)
class Signals:
    """The signals of a stream; None where a signal is not known (yet)."""

    compared: int  # images, since the last fresh start
    not_finite: int  # steps in a row
    concentration: float | None  # effective number of predicted classes, adapted over frozen
    top_share: float | None  # share of the most predicted class, adapted minus frozen
    entropy: float | None
    frozen_entropy: float | None
    drift: float | None
    agreement: float | None  # on the stream; shown, never an alarm: under heavy drift the frozen model is wrong
    steps: int = 0  # since the start of the state
    sureness: float | None = None  # of the frozen model: how far its probabilities are above 1/2, doubled
    sure_classes: float | None = None  # effective number of classes it predicts, answers weighted by their sureness
    sure_agreement: float | None = None  # share of equal labels, weighted in the same way


def measure_sureness(logits: Tensor) -> Tensor:
    """Return how sure each answer is [n], in float64: 0 up to a probability of 1/2, then in proportion, 1 at 1."""
    return (2 * logits.double().softmax(1).amax(1) - 1).clamp(min=0)


def add_images(tally: Tally, labels: Tensor, entropies: Tensor, sureness: Tensor, memory: int) -> Tally:
    """Add n images to a tally, in order.

    ``labels`` and ``entropies`` [2, n] are those of the adapted and the frozen model, ``sureness`` [n] of the frozen.
    """
    count, keep = labels.shape[1], 1 - 1 / torch.tensor([memory, SLOW * memory], dtype=torch.float64)
    weights, slow = keep.unsqueeze(1) ** torch.arange(count - 1, -1, -1, dtype=torch.float64)
    kept, kept_slow = (keep**count).tolist()
    same = (labels[0] == labels[1]).double()
    rest = torch.stack([same @ weights, slow.sum(), (slow * sureness) @ same])
    fresh = torch.cat([entropies.double() @ weights, rest])
    classes = tally.classes * torch.tensor([[kept], [kept], [kept_slow]], dtype=torch.float64)
    classes.scatter_add_(1, labels[[0, 1, 1]], torch.stack([weights, weights, slow * sureness]))
    old = tally.sums * torch.tensor([*[kept] * 3, *[kept_slow] * 2], dtype=torch.float64)
    return Tally(classes, old + fresh, tally.compared + count)


def effective_number(weights: Tensor) -> float:
    """Return exp(H) of the distribution proportional to the weights [C]: the number of classes it spreads over."""
    shares = weights / weights.sum()
    return math.exp(float(torch.special.entr(shares).sum()))


def measure(tally: Tally, not_finite: int, drift: float | None, steps: int = 0) -> Signals:
    """Return the signals of a stream from its tally and its drift after ``steps`` steps."""
    concentration, top_share, entropy, frozen_entropy, agreement, *of_sure = tally.averages
    drift = drift if drift is not None and math.isfinite(drift) else None
    return Signals(
        tally.compared, not_finite, concentration, top_share, entropy, frozen_entropy, drift, agreement, steps, *of_sure
    )


def find_alarms(signals: Signals, limits: Thresholds, classes: int) -> tuple[Alarm, ...]:
    """Return the names of the signals that are alarms, for this number of classes.

    A model that improves over thousands of steps becomes confident. But it spreads its answers over more classes. So
    entropy is an alarm only while the answers are narrower than the frozen model's. Its distance from the start grows,
    too, at most as that of a random walk, the root of the steps, and so does the limit.
    Where one class really dominates, a method that expects all classes equally often moves answers away from it, and
    they become less sure than the frozen model's. The same is seen where adapting helps, under heavy noise that makes
    the frozen model prefer a class. But there the frozen model is seldom sure, or its sure answers show many classes,
    or the adapted model gives many of them up. So doubt is an alarm only while it is often sure, of few classes, and
    the adapted model mostly agrees with these answers and is not narrower.
    """
    found = [Alarm.NOT_FINITE] if signals.not_finite >= limits.not_finite else []
    if signals.compared >= limits.least:
        narrower = _below(signals.concentration, limits.spread)
        if _below(signals.concentration, limits.concentration) and _above(signals.top_share, limits.top_share):
            found.append(Alarm.CONCENTRATION)
        low = limits.entropy * math.log(classes) / math.log(1000)
        if narrower and _below(signals.entropy, low) and _above(signals.frozen_entropy, limits.entropy_ratio * low):
            found.append(Alarm.ENTROPY)
    if signals.compared >= limits.doubt_least and not _below(signals.concentration, limits.spread):
        few = _below(signals.sure_classes, min(FEW_CLASSES, classes / 2))
        sure = few and _above(signals.sureness, limits.doubt_sureness)
        agreed = sure and _above(signals.sure_agreement, limits.doubt_agreement)
        if agreed and _above(signals.entropy, limits.doubt * (signals.frozen_entropy or 0.0)):
            found.append(Alarm.DOUBT)
    if _above(signals.drift, limits.drift * math.sqrt(max(1.0, signals.steps / FREE_STEPS))):
        found.append(Alarm.DRIFT)
    return tuple(found)


def _below(value: float | None, limit: float) -> bool:
    return value is not None and value < limit


def _above(value: float | None, limit: float) -> bool:
    return value is not None and value > limit
