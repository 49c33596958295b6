"""NormMethod and GradientMethod: bases of methods that adapt the norm parameters of the image tower."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from lmr.core.card import Tower
from lmr.core.method import COUNTS, Method, Ranges
from lmr.core.norms import NormBank
from lmr.core.optim import Optimizer, OptimizerName
from lmr.core.prediction import AdaptedParameters, State, Step
from lmr.core.streams import Streams
from lmr.core.tower import AdaptedTower


class NormMethod(Method):
    """A method that runs its tower with norm parameters of each stream, P = ``self.bank.size`` numbers.

    ``self.tower`` runs and differentiates the tower with given norms; ``self.optim`` takes optimiser steps on them. The
    state holds "norms" and the moments of the optimiser.

    Examples:
        >>> import lmr, torch
        >>> clip = lmr.load("pocket").classifier(["red ring", "blue star"])
        >>> method = lmr.create("lmr", clip, streams=2)
        >>> isinstance(method, lmr.NormMethod), method.state["norms"].shape == (2, method.bank.size)
        (True, True)
    """

    towers: ClassVar[tuple[Tower, ...]] = (Tower.IMAGE,)
    tower: AdaptedTower
    bank: NormBank
    optim: Optimizer

    def prepare(self) -> None:
        """Find the norms of the tower."""
        self.tower = AdaptedTower(self.classifier, self._find_module(), self._find_skipped())
        self.bank = self.tower.bank

    def _find_module(self) -> nn.Module:
        """Return the module whose norms adapt."""
        return self.classifier.encoder

    def _find_skipped(self) -> Collection[str]:
        """Return the names of norms that do not adapt."""
        return ()

    @property
    def trainable(self) -> int:
        """P, the norm parameters of one stream."""
        return self.bank.size

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return the tower's own norms, and the moments of the optimiser before its first step."""
        norms = self.bank.start.unsqueeze(0)
        return {key: value[0] for key, value in ({"norms": norms} | self.optim.begin(norms)).items()}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        """Return the ranges of norms that a tower can compute with, of squares and of counts."""
        own: Ranges = {"second": (0, None), "steps": COUNTS}
        if "norms" in state:
            own["norms"] = (-self.bank.limit, self.bank.limit)
        return super().ranges(state) | own

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        """Return logits with the adapted norms and the frozen prototypes."""
        return self.tower.logits(images, state["norms"], streams)

    def _describe(self, state: State) -> Mapping[str, Tensor]:
        return {"drift": self.tower.drift(state["norms"])} if "norms" in state else {}

    def _export(self, state: State) -> AdaptedParameters:
        if self.memory_span != "stream":
            return super()._export(state)
        norms = self._name_norms(state["norms"][0]) if "norms" in state else {}
        return AdaptedParameters(self.classifier.prototypes.clone(), norms=norms)

    def _name_norms(self, row: Tensor) -> dict[Tower, dict[str, Tensor]]:
        """Return a copy of a row [P] of norms as parameters of the tower, by their names."""
        return {Tower.IMAGE: self.bank.name_parameters(row.clone())}


@dataclass(kw_only=True, eq=False, repr=False)
class GradientMethod(NormMethod):
    """A NormMethod that takes one optimiser step per batch on the mean of a loss of single samples.

    Subclasses define ``loss``, or write an ``adapt`` of their own. The answer is the one before the step.

    Examples:
        >>> import lmr, torch
        >>> @lmr.register("certain")
        ... class Certain(lmr.GradientMethod):
        ...     'Raise the largest logit of every image.'
        ...
        ...     lr: float = 1e-4
        ...
        ...     def loss(self, logits):
        ...         return -logits.amax(1)
        >>> clip = lmr.load("pocket").classifier(["red ring", "blue star"])
        >>> method = lmr.create("certain(optimizer='sgd')", clip, streams=2)
        >>> method.step(torch.randn(4, 3, 32, 32), streams=[0, 0, 1, 1]).info["stepped"]
        True
    """

    lr: float = 1e-3  # learning rate
    optimizer: OptimizerName = "adam"  # adam, adamw, or sgd with momentum
    weight_decay: float = 0.0  # weight decay of the optimiser

    def prepare(self) -> None:
        """Check the optimiser's arguments and find the norms."""
        self._require_not_negative("lr", "weight_decay")
        super().prepare()
        self.optim = Optimizer(self.optimizer, self.lr, self.weight_decay)

    def loss(self, logits: Tensor) -> Tensor:
        """Return the loss [n] of each sample from its logits [n, C]."""
        raise NotImplementedError

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        """Take one step on the mean loss of each stream."""
        gradient, logits, losses = self.tower.sum_gradients(
            images, state["norms"], streams, lambda logits, _: (self.loss(logits),)
        )
        new = self.optim.descend(state, gradient / streams.sizes.unsqueeze(1))
        stepped = streams.sizes > 0
        return Step(logits, new, {"loss": streams.mean(losses), "stepped": stepped})
