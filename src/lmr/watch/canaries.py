"""Canaries: a few images of the stream on which the frozen model is confident, kept to check the adapted model with."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lmr.watch.signals import POINTS, average_earlier

CONFIDENT = 0.9  # probability of the frozen model's answer to an image that becomes a canary
FEWEST = 8  # canaries before they are checked
PER_CLASS = 4  # canaries of one predicted class, if there are enough classes: one class alone is no reference
KEPT = torch.float16  # half of the memory of float32; a confident answer does not depend on the digits that are lost
STEPS = 200  # between two checks, at least; the images between them follow from the cost of a step (pace.py)


@dataclass(frozen=True)
class Canaries:
    """Images [n, ...], the labels the frozen model gives them [n], and the agreement at the last checks."""

    images: Tensor | None = None  # in half precision
    labels: tuple[int, ...] = ()
    history: tuple[float, ...] = ()
    steps: int = 0  # since the last check
    passed: int = 0  # images of the stream since the last check
    earlier: float | None = None  # mean agreement before the last suspicion, until the history is long enough again


def count_room(most: int, megabytes: float, streams: int, values: int) -> int:
    """Return the number of images of ``values`` numbers that each of ``streams`` may keep: at most ``most``.

    All streams together keep at most ``megabytes``, each the same share: a stream is watched as it would be alone. A
    stream without room for the fewest that are checked keeps none.
    """
    room = int(1e6 * megabytes / (streams * values * KEPT.itemsize))
    return min(most, room) if room >= FEWEST else 0


def keep_first(kept: Canaries, most: int) -> Canaries:
    """Return the first ``most`` canaries; without their history if that leaves some out."""
    if kept.images is None or len(kept.labels) <= most:
        return kept
    return Canaries(kept.images[:most].clone() if most else None, kept.labels[:most])


def collect(kept: Canaries, images: Tensor, logits: Tensor, most: int) -> Canaries:
    """Add those of the ``images`` [n, ...] with the frozen model's ``logits`` [n, C] that qualify, up to ``most``.

    All have one shape, as they are checked together: images of another size than the first ones, or tokens among
    images, are not kept.
    """
    if len(kept.labels) >= most or (kept.images is not None and kept.images.shape[1:] != images.shape[1:]):
        return kept
    share = max(PER_CLASS, -(-most // logits.shape[1]))
    confidence, found = logits.softmax(1).max(1)
    small = images.to(KEPT)
    suitable = (confidence >= CONFIDENT) & small.isfinite().flatten(1).all(1)
    labels, chosen = list(kept.labels), []
    for place, (suits, label) in enumerate(zip(suitable.tolist(), found.tolist(), strict=True)):
        if suits and labels.count(label) < share and len(labels) < most:
            labels.append(label)
            chosen.append(place)
    if not chosen:
        return kept
    more = small[chosen]
    return replace(kept, images=more if kept.images is None else torch.cat([kept.images, more]), labels=tuple(labels))


def is_due(kept: Canaries, suspected: bool, coming: int, confirm: int, spacing: int) -> bool:
    """Return True if a check is due: after at least ``spacing`` images of the stream for each canary.

    Under suspicion: at its first step, and in the step whose ``coming`` images make ``confirm`` since the last check.
    """
    if len(kept.labels) < FEWEST:
        return False
    if suspected:
        return not kept.history or kept.passed + coming >= confirm
    return kept.steps >= STEPS and kept.passed >= spacing * len(kept.labels)


def note_check(kept: Canaries, labels: Tensor) -> Canaries:
    """Return the canaries after the adapted model gave these labels [n]."""
    same = sum(a == b for a, b in zip(labels.tolist(), kept.labels, strict=True)) / len(kept.labels)
    return replace(kept, history=(*kept.history, same)[-2 * POINTS :], steps=0, passed=0)


def begin_suspicion(kept: Canaries) -> Canaries:
    """Return the canaries without their history, so that fresh checks confirm an alarm; the mean before it stays."""
    return replace(kept, history=(), earlier=average_earlier(kept.history, kept.earlier))
