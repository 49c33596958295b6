"""MarginMethod: the base of methods that restore margins and correct a class bias, as LMR does.

Equation numbers are those of the paper of LMR; ``core/functional/margin.py`` has the equations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from lmr.core.bases.norms import NormMethod
from lmr.core.functional.margin import FEW_CLASSES, TEN_CLASSES, find_candidates, gate, measure_margin
from lmr.core.method import COUNTS, SHARES, Ranges
from lmr.core.prediction import AdaptedParameters, State
from lmr.core.streams import Streams


@dataclass(kw_only=True, eq=False, repr=False)
class MarginMethod(NormMethod):
    """A NormMethod with margins (eqs. 5-10), a "bias" [C] in the state of each stream, and the arguments of both."""

    lr: float = 1e-3  # learning rate of Adam
    delta: float = 0.03  # width of the candidate set, in cosines (eq. 5)
    negatives: int = 5  # K, the number of hardest classes outside the candidate set (eq. 8)
    tau: float = 0.3  # confidence below which a sample does not enter the loss (eq. 10)
    gamma0: float = 4.0  # target margin of a class with its fair share of the mass (eq. 14)
    beta: float = 1.0  # how fast the target falls with a class's share of the mass (eq. 14)
    eta: float = 0.05  # step size of the bias correction (eq. 17)
    mu: float = 0.8  # memory of the running prediction (eq. 16)
    clip: float = 2.0  # largest absolute bias
    eps: float = 1e-6  # epsilon of all equations

    def prepare(self) -> None:
        """Check the arguments and find the norms."""
        self._require_not_negative("lr", "gamma0", "beta", "eta", "delta", "eps", "clip")
        self._require_between(0, 1 - 1e-9, "tau", "mu")
        self._require_between(torch.finfo(self.classifier.prototypes.dtype).tiny, 1, "eps")
        self._require_count("negatives", most=10**9)
        if self._restores():
            super().prepare()

    def _restores(self) -> bool:
        """Return whether norms adapt; if not, the state holds none and the frozen tower answers."""
        return True

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return norms and moments, if norms adapt."""
        return super().begin() if self._restores() else {}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        """Return the ranges of norms, mass, running prediction, bias and number of images."""
        own: Ranges = {"mass": (0, None), "running": SHARES, "bias": (-self.clip, self.clip), "images": COUNTS}
        return super().ranges(state) | own

    def _measure(self, cosines: Tensor, positives: Literal["gap", "top1"] = "gap") -> tuple[Tensor, ...]:
        """Return each sample's margin, whether it enters the loss, logits, weight, top class and size of its set."""
        logits, fixed = self.classifier.logits(cosines), cosines.detach()
        candidates = find_candidates(fixed, self.delta, positives)  # eq. 5
        margin, negatives = measure_margin(logits, fixed, candidates, self.negatives, self.eps)  # eqs. 6-8
        weight = gate(logits, self.tau) * negatives.any(1)  # eq. 10
        return margin, weight > 0, logits, weight, fixed.argmax(1), candidates.sum(1)

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        """Return logits with the adapted norms and the bias (eq. 15)."""
        logits = super().answer(images, state, streams) if self._restores() else self.classifier(images)
        return logits + streams.spread(state["bias"])

    def _export(self, state: State) -> AdaptedParameters:
        return dataclasses.replace(super()._export(state), offset=state["bias"][0].clone())

    @classmethod
    def choose_values(cls, classes: int) -> dict[str, Any]:
        """Return the published values for ten classes where there are few."""
        return dict(TEN_CLASSES) if classes < FEW_CLASSES else {}

    @property
    def trainable(self) -> int:
        """The norm parameters of one stream, or 0 if none adapt."""
        return super().trainable if self._restores() else 0

    @property
    def margin_width(self) -> float:
        """The width of the candidate set."""
        return self.delta

    def logit_offset(self) -> Tensor:
        """Return the bias [S, C]."""
        return self.state["bias"]
