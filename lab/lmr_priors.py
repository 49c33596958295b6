"""LMR with class shares that are counted from the frozen model: a trial of two references for its bias correction.

Both methods are LMR as published but for the reference of eq. 17, for which the frozen model answers every image once
more. ``lmr_frozen`` counts the labels of all images so far. ``lmr_history`` counts those of quiet images alone, by the
rules of ``steady``, and starts afresh when the images change. Run them as methods of a file:

    lmr bench life-skew-quick --methods zeroshot lmr ./lab/lmr_priors.py:lmr_frozen ./lab/lmr_priors.py:lmr_history
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.card import Card
from lmr.core.functional.prior import share_counts
from lmr.core.method import Ranges
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams, choose_rows
from lmr.methods.lmr import LMR
from lmr.methods.steady import Steady

SEEN = "seen/"  # before the names of what the frozen model's stream has in its state


@register("lmr_frozen", Card(label="LMR (frozen shares)"))
class FrozenShares(LMR):
    """LMR whose answers are driven to the shares of the frozen model's labels of the stream so far."""

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return the state of LMR, and counts of labels."""
        return {**super().begin(), "counts": self.classifier.prototypes.new_zeros(self.classifier.classes)}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        """Return the ranges of LMR and of counts."""
        return super().ranges(state) | {"counts": (0, None)}

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        """Count the frozen model's labels, then adapt with their shares."""
        labels = F.one_hot(self.classifier(images).argmax(1), self.classifier.classes)
        counts = state["counts"] + streams.sum(labels).to(state["counts"])
        self._shares = share_counts(counts)
        step = super().adapt(images, state, streams)
        return Step(step.logits, {**step.state, "counts": counts}, step.info)


@register("lmr_history", Card(label="LMR (shares of quiet times)"))
class HistoryShares(LMR):
    """LMR whose answers are driven to the class shares that ``steady`` has counted in quiet times."""

    needs_images = True  # pixels show that the domain has changed

    fresh: bool = True  # start LMR afresh when it has

    def prepare(self) -> None:
        """Prepare LMR, and the rules of steady on the frozen model."""
        super().prepare()
        self._counter = Steady(self.classifier, lr=0.0, eta=0.0)

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return the state of LMR, and that of the counted stream."""
        return {**super().begin(), **{SEEN + key: value for key, value in self._counter.begin().items()}}

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        """Count the labels of quiet images, then adapt with their shares."""
        seen = {key.removeprefix(SEEN): value for key, value in state.items() if key.startswith(SEEN)}
        counted = {**seen, **self._counter.adapt(images, seen, streams).state}
        self._shares = share_counts(counted["history"] + counted["labels"] * (counted["quiet_clarity"] == 0)[:, None])
        if self.fresh:
            changed = counted["looked"] < seen["looked"]
            first = {key: torch.as_tensor(value).expand_as(state[key]) for key, value in super().begin().items()}
            state = state | {key: choose_rows(changed, value, state[key]) for key, value in first.items()}
        step = super().adapt(images, state, streams)
        kept = {key: value for key, value in state.items() if not key.startswith(SEEN)}
        new = {**kept, **step.state, **{SEEN + key: value for key, value in counted.items()}}
        return Step(step.logits, new, step.info)
