"""RestartMethod: the base of methods that adapt the norms anew on every batch and keep nothing of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lmr.core.bases.norms import NormMethod
from lmr.core.optim import Optimizer
from lmr.core.prediction import State, Step
from lmr.core.streams import Streams


@dataclass(kw_only=True, eq=False, repr=False)
class RestartMethod(NormMethod):
    """A NormMethod that starts from the tower's own norms with every batch, and answers after its last step.

    Nothing is kept for the next batch, so ``predict`` gives the answer that ``step`` would give. Images of several
    streams are separate batches. Subclasses define ``learn``.
    """

    memory_span = "batch"
    emission = "after"
    export_reason = "it starts from the original norms with every batch, so there is no adapted model to keep"

    lr: float = 1e-3  # learning rate of Adam

    def prepare(self) -> None:
        """Check the learning rate and find the norms."""
        self._require_not_negative("lr")
        super().prepare()
        self.optim = Optimizer("adam", self.lr)

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return an empty state."""
        return {}

    @abstractmethod
    def learn(self, images: Tensor, streams: Streams, norms: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the norms [A, P] to answer with, from ``norms`` [A, P] to start from, and facts [A]."""

    def score(self, features: Tensor) -> Tensor:
        """Return logits [B, C] of unit features [B, D]."""
        return self.classifier.logits(self.classifier.cosines(features))

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        """Learn from this batch and answer it."""
        norms, info = self.learn(images, streams, self.bank.start.repeat(streams.count, 1))
        with torch.no_grad():
            logits = self.score(self.tower.features(images, norms, streams))
        info |= {"stepped": streams.sizes > 0, "drift": self.tower.drift(norms)}
        return Step(logits, {"norms": norms}, info)

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        """Return the logits that ``adapt`` gives."""
        return self.adapt(images, state, streams).logits

    def _run_steps(
        self,
        images: Tensor,
        streams: Streams,
        start: tuple[Tensor, dict[str, Tensor]],
        loss: Callable[[Tensor, int], Tensor],
        steps: int,
    ) -> tuple[tuple[Tensor, dict[str, Tensor]], Tensor]:
        """Return norms and moments after a number of steps from ``start``, and the last losses [A].

        ``loss`` is that of ``AdaptedTower.differentiate``.
        """
        norms, moments = start
        losses = norms.new_zeros(streams.count)
        for _ in range(steps):
            gradient, losses, _ = self.tower.differentiate(images, norms, streams, loss)
            norms, moments = self.optim.step(norms, gradient, moments)
        return (norms, moments), losses
