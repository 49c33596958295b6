"""NormMethod and GradientMethod: bases of methods that adapt the norm parameters of the image tower."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import vmap

from lmr.core.card import Tower
from lmr.core.errors import LmrError
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
        return self.classifier.encoder

    def _find_skipped(self) -> Collection[str]:
        return ()

    @property
    def trainable(self) -> int:
        """P, the norm parameters of one stream."""
        return self.bank.size

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return the tower's own norms, and the moments of the optimiser before its first step, if they are kept."""
        if self.memory_span == "batch":
            return {}
        norms = self.bank.start.unsqueeze(0)
        return {key: value[0] for key, value in ({"norms": norms} | self.optim.begin(norms)).items()}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        """Return the ranges of norms that a tower can compute with, of squares and of counts."""
        limits: Ranges = {"second": (0, None), "steps": COUNTS}
        if "norms" in state:
            limits["norms"] = (-self.bank.limit, self.bank.limit)
        return super().ranges(state) | limits

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        """Return logits with the adapted norms and the frozen prototypes."""
        if self.memory_span == "batch":
            return super().answer(images, state, streams)
        return self.tower.logits(images, state["norms"], streams)

    def describe(self, state: State) -> Mapping[str, Tensor]:
        """Return how far the norms have moved."""
        return {"drift": self.tower.drift(state["norms"])} if "norms" in state else {}

    def export(self, state: State) -> AdaptedParameters:
        """Return the adapted norms, and what else the answer adds."""
        if self.memory_span != "stream":
            return super().export(state)
        norms = self._name_norms(state["norms"][0]) if "norms" in state else {}
        return AdaptedParameters(self.classifier.prototypes.clone(), norms=norms)

    def _name_norms(self, row: Tensor) -> dict[Tower, dict[str, Tensor]]:
        """Return a copy of a row [P] of norms as parameters of the tower, by their names."""
        return {Tower.IMAGE: self.bank.name_parameters(row.clone())}

    def _differentiate_streams(
        self, images: Tensor, norms: Tensor, streams: Streams, loss: Callable[[Tensor, int], Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return gradients [A, P], losses [A] and logits [B, C] of a loss of whole streams.

        ``loss`` maps the logits [n, C] of a stream's images, and its position among the active ones, to one number.
        """

        def compute(features: Tensor, k: int) -> Tensor:
            value = loss(self.classifier.logits(self.classifier.cosines(features)), k)
            if value.shape != ():
                raise LmrError(
                    f"Expected one number from 'batch_loss' of {self.name}, got shape {list(value.shape)}; reduce it, "
                    "or define 'loss' for a loss of each sample."
                )
            return value

        gradient, losses, features = self.tower.differentiate(images, norms, streams, compute)
        return gradient, losses, self.classifier.logits(self.classifier.cosines(features))

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

    def _answer_learnt(self, images: Tensor, streams: Streams, learnt: tuple[Tensor, Tensor], prompts: Tensor) -> Step:
        """Answer a batch by prompts [C, D] with the norms [A, P] that were learnt on it; also the last losses [A]."""
        norms, losses = learnt
        with torch.no_grad():
            features = self.tower.features(images, norms, streams)
            logits = self.classifier.logits(self.classifier.cosines(features, prompts))
        info = {"loss": losses, "stepped": streams.sizes > 0, "drift": self.tower.drift(norms)}
        return Step(logits, {"norms": norms}, info)


@dataclass(kw_only=True, eq=False, repr=False)
class GradientMethod(NormMethod):
    """A NormMethod that takes one optimiser step per batch on the loss of each stream.

    Subclasses define one of two losses, or write an ``adapt`` of their own. ``loss`` is that of each sample alone; its
    mean over a stream's images is minimised. ``batch_loss`` compares a stream's images of the batch with each other.
    The answer is the one before the step.

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
        >>> clip = lmr.load().classifier(["cat", "dog"])
        >>> method = lmr.create("certain(optimizer='sgd')", clip, streams=2)
        >>> method.step(torch.randn(4, 3, 32, 32), streams=[0, 0, 1, 1]).info["stepped"]
        True
    """

    lr: float = 1e-3  # learning rate
    optimizer: OptimizerName = "adam"  # adam, adamw, or sgd with Nesterov momentum 0.9
    weight_decay: float = 0.0  # weight decay of the optimiser

    def prepare(self) -> None:
        """Check the optimiser's arguments and find the norms."""
        self._require_not_negative("lr", "weight_decay")
        super().prepare()
        self.optim = Optimizer(self.optimizer, self.lr, self.weight_decay)
        self._checked_sizes: set[int] = set()  # of parts of a batch for which 'loss' is one of single samples

    def loss(self, logits: Tensor) -> Tensor:
        """Return the loss [n] of each sample from its own logits [n, C].

        It is called on one sample at a time, n = 1, under ``torch.func.vmap``: a sample's loss cannot depend on others.
        A loss that would depend on them is refused at the first batch of each size.
        """
        raise NotImplementedError

    def batch_loss(self, logits: Tensor) -> Tensor:
        """Return the loss, one number, of all images of one stream in a batch, from their logits [n, C]."""
        raise NotImplementedError

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        """Take one step on the loss of each stream."""
        if type(self).batch_loss is not GradientMethod.batch_loss:
            gradient, loss, logits = self._differentiate_streams(
                images, state["norms"], streams, lambda logits, _: self.batch_loss(logits)
            )
        else:
            sums, logits, losses = self.tower.sum_gradients(
                images, state["norms"], streams, lambda logits, _: (self._compute_losses(logits),)
            )
            gradient, loss = sums / streams.sizes.unsqueeze(1), streams.mean(losses)
        return Step(logits, self.optim.descend(state, gradient), {"loss": loss, "stepped": streams.sizes > 0})

    def _compute_losses(self, logits: Tensor) -> Tensor:
        """Return the loss [n] of each sample, computed as if it was alone, so that no loss can see other samples."""
        if len(logits) not in self._checked_sizes:
            self._check_loss(logits)
            self._checked_sizes.add(len(logits))
        return vmap(self._compute_loss)(logits)

    def _compute_loss(self, logits: Tensor) -> Tensor:
        """Return the loss, one number, of a sample with logits [C]."""
        losses = self.loss(logits.unsqueeze(0))
        if losses.shape != (1,):
            raise LmrError(
                f"Expected losses [n] of logits [n, C] from 'loss' of {self.name}, got shape {list(losses.shape)} for "
                "n = 1; define 'batch_loss' for a loss that is one number."
            )
        return losses[0]

    def _check_loss(self, logits: Tensor) -> None:
        """Refuse a loss that gives random logits of this shape [n, C] other losses together than one by one."""
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(logits.shape, generator=generator) * torch.linspace(1, 10, len(logits)).unsqueeze(1)
        with torch.no_grad():
            drawn = drawn.to(logits)
            try:
                alone = vmap(self._compute_loss)(drawn)
            except RuntimeError as error:
                raise LmrError(
                    f"The 'loss' of {self.name} cannot run on each sample alone; compute with tensors only, such as "
                    f"torch.where in place of 'if', or define 'batch_loss'. ({error})"
                ) from error
            together = self.loss(drawn)
        limit = 100 * torch.finfo(drawn.dtype).eps
        if together.shape != alone.shape or not torch.allclose(together, alone, limit, limit, equal_nan=True):
            raise LmrError(
                f"The 'loss' of {self.name} gives a sample another loss when other samples are left out. As it may "
                "get samples of several streams, or a part of a batch, define 'batch_loss' for a loss that compares "
                "samples."
            )
