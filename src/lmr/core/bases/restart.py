"""RestartMethod: the base of methods that adapt the norms anew on every batch and keep nothing of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lmr.core.functional.by_stream import choose_rows
from lmr.core.gradient import NormMethod
from lmr.core.method import Mix, Prediction
from lmr.core.optim import Optimizer


@dataclass(kw_only=True, eq=False, repr=False)
class RestartMethod(NormMethod):
    """A NormMethod that starts from the tower's own norms with every batch, and answers after its last step.

    Nothing stays for the next batch, so ``predict`` gives the answer that ``step`` would give. Images of several
    streams are separate batches. A stream whose steps leave the usable range is answered by the frozen tower.
    Subclasses write ``learn``.
    """

    many_streams = True
    restarts = True
    emission = "after"
    not_frozen_because = "it starts from the original norms with every batch, so there is no adapted model to keep"

    lr: float = 1e-3

    def prepare(self) -> None:
        """Check the learning rate and find the norms."""
        self._require_not_negative("lr")
        super().prepare()
        self.optim = Optimizer("adam", self.lr)

    def begin(self, streams: int) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    @abstractmethod
    def learn(self, images: Tensor, mix: Mix, norms: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The norms [A, P] to answer with, from ``norms`` [A, P] to start from; and facts [A] for the report."""

    def score(self, features: Tensor) -> Tensor:
        """Logits [B, C] of unit features [B, D]."""
        return self.classifier.logits(self.classifier.cosines(features))

    def adapt(self, images: Tensor, mix: Mix) -> Prediction:
        """Learn from this batch and answer it."""
        logits, report = self._solve(images, mix)
        return Prediction(logits, self.summarise(report, mix))

    def answer(self, images: Tensor, mix: Mix) -> Tensor:
        """The same."""
        return self._solve(images, mix)[0]

    def descend_often(
        self,
        images: Tensor,
        mix: Mix,
        rows: tuple[Tensor, dict[str, Tensor]],
        loss: Callable[[Tensor, int], Tensor],
        steps: int,
    ) -> tuple[tuple[Tensor, dict[str, Tensor]], Tensor]:
        """Norms and moments ``steps`` steps along a loss from those in ``rows``, and the last losses [A].

        ``loss`` is that of ``differentiate``.
        """
        norms, moments = rows
        losses = norms.new_zeros(mix.count)
        for _ in range(steps):
            gradient, losses, _ = self.differentiate(images, mix, norms, loss)
            norms, moments = self.optim.step(norms, gradient, moments)
        return (norms, moments), losses

    def _solve(self, images: Tensor, mix: Mix) -> tuple[Tensor, dict[str, Tensor]]:
        start = self.bank.start.repeat(mix.count, 1)
        norms, report = self.learn(images, mix, start)
        with torch.no_grad():
            logits = self.score(self.image_features(images, norms, mix.index))
            sound = self.find_sound({"norms": norms}) & mix.all(logits.isfinite().all(1))
            if not bool(sound.all()):
                norms = choose_rows(sound, norms, start)
                logits = self.score(self.image_features(images, norms, mix.index))
        return logits, report | {"stepped": sound, "drift": self.measure_drift(norms)}
