"""InfoMax (SHOT-IM, Liang et al. 2020): make each answer certain, and the answers of a batch diverse."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lmr.core.bases.norms import GradientMethod, NormMethod
from lmr.core.card import Card, Preset
from lmr.core.functional.losses import entropy
from lmr.core.method import Ranges
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams

_SHOT = "the loss of tim-learn/SHOT"
_NOTES = "bubble3jh/GeometricTTA (unpublished notes, both towers)"
_NO_GRADIENT = 1e-10  # a shorter gradient gives no strength
_RANKED = {"prior": "rank", "strength": "auto"}
NOTED = {  # the values of the notes, which adapt both towers
    "cifar10-c": Preset({**_RANKED, "optimizer": "adamw", "weight_decay": 0.01}, f"{_NOTES}: CIFAR-10-C", 200),
    "cifar100-c": Preset(
        {**_RANKED, "optimizer": "adam", "lr": 5e-4, "weight_decay": 0.0}, f"{_NOTES}: CIFAR-100-C", 200
    ),
    "cifar10-c-top": Preset(
        {"prior": "top", "strength": 2.0, "optimizer": "adamw", "weight_decay": 0.01},
        f"{_NOTES}: CIFAR-10-C, an earlier variant",
        200,
    ),
}

_CARD = Card(
    label="InfoMax",
    source="Liang et al. 2020",
    year=2020,
    presets={
        "default": Preset({}, f"{_SHOT}; Adam at 1e-3 is our choice"),
        "shot": Preset(
            {"optimizer": "sgd", "lr": 1e-3, "weight_decay": 1e-3}, f"{_SHOT}; its rate of a backbone, not its schedule"
        ),
        **NOTED,
    },
)


@dataclass(kw_only=True, eq=False, repr=False)
class InformationMaximisation(NormMethod):
    """What ``infomax`` and ``infomax_both`` share: everything but the towers."""

    prior: Literal["uniform", "rank", "top"] = "uniform"  # class shares that the mean answer is drawn to
    strength: float | Literal["auto"] = 1.0  # weight of the divergence, or "auto": measured on the first batch
    emit: Literal["before", "after"] = "before"  # answer with the norms before or after the step
    margin: float | None = None  # entropy, as a share of ln C, below which an image enters the first term; None: all
    alpha: float = 0.1  # added to the shares of "rank" and "top"
    power: float = 0.3  # power of these shares
    top: int = 5  # largest logits of an image that "top" counts

    def prepare(self) -> None:
        super().prepare()
        self._require_not_negative("alpha", "power", *(key for key in ("strength", "margin") if self._is_number(key)))
        self._require_count("top", most=10**6)

    def _is_number(self, key: str) -> bool:
        return isinstance(getattr(self, key), float)

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return also the measured strength, if there is one to measure: 0 before."""
        measured = {"strength": self.bank.start.new_zeros(())} if self.strength == "auto" else {}
        return {**super().begin(), **measured}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        return super().ranges(state) | {"strength": (0, None)}

    def fill_state(self, images: Tensor) -> None:
        if self.strength == "auto":
            self.state["strength"] = torch.ones_like(self.state["strength"])

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        strength = self._find_strength(images, state, streams)

        def loss(logits: Tensor, k: int) -> Tensor:
            return self._measure_doubt(logits) + strength[k] * self._measure_divergence(logits)

        gradient, losses, logits = self._differentiate_streams(images, state["norms"], streams, loss)
        certain = streams.sum(self._find_certain(logits).long())
        stepped = (streams.sizes > 1) & (certain > 0)
        if self.strength == "auto":
            stepped &= strength > 0
        new = self.optim.descend(state, gradient, stepped) | {"strength": strength}
        if self.emit == "after":
            with torch.no_grad():
                logits = self.answer(images, new, streams)
        return Step(logits, new, {"loss": losses, "certain": certain, "strength": strength, "stepped": stepped})

    def _find_strength(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        """Return the strength [A] of each stream; 0 where there was nothing to measure it on yet."""
        if self.strength != "auto":
            return torch.full_like(state["norms"][:, 0], self.strength)
        known = state["strength"]
        if bool((known > 0).all()):
            return known

        def measure(term: Callable[[Tensor], Tensor]) -> Tensor:
            norms = state["norms"]
            gradient, _, _ = self._differentiate_streams(images, norms, streams, lambda logits, _: term(logits))
            length: Tensor = torch.linalg.vector_norm(gradient, dim=1)
            return length

        doubt, divergence = measure(self._measure_doubt), measure(self._measure_divergence)
        usable = (streams.sizes > 1) & (torch.minimum(doubt, divergence) > _NO_GRADIENT)
        return known.where(known > 0, (doubt / divergence).where(usable, 0))

    def _find_certain(self, logits: Tensor) -> Tensor:
        """Return which images [n] enter the first term."""
        limit = math.inf if self.margin is None else self.margin * math.log(self.classifier.classes)
        return entropy(logits.detach()) < limit

    def _measure_doubt(self, logits: Tensor) -> Tensor:
        """Return the mean entropy of the images that enter it, or 0."""
        certain = self._find_certain(logits)
        return entropy(logits).where(certain, 0).sum() / certain.sum().clamp(min=1)

    def _measure_divergence(self, logits: Tensor) -> Tensor:
        """Return the divergence between the mean answer and the prior, from logarithms, which cannot underflow."""
        mean, prior = logits.log_softmax(1).logsumexp(0) - math.log(len(logits)), self._find_prior(logits.detach())
        if self.prior == "top":
            return (prior.exp() * (prior - mean)).sum()
        return (mean.exp() * (mean - prior)).sum()

    def _find_prior(self, logits: Tensor) -> Tensor:
        """Return the logarithms of the class shares [C] that the mean answer is drawn to."""
        classes = logits.shape[1]
        if self.prior == "uniform":
            return torch.full_like(logits[0], -math.log(classes))
        ranks = torch.arange(1, classes + 1, device=logits.device).to(logits.dtype)
        weights = (ranks <= self.top).to(logits.dtype) if self.prior == "top" else 1 / ranks / (1 / ranks).sum()
        order = logits.sort(dim=1, descending=True, stable=True).indices
        shares = torch.zeros_like(logits).scatter(1, order, weights.expand_as(logits)).mean(0)
        smallest = torch.finfo(shares.dtype).tiny
        return (self.power * (shares + self.alpha).clamp(min=smallest).log()).log_softmax(0)


@register("infomax", _CARD)
class InfoMax(InformationMaximisation, GradientMethod):
    """Information maximisation: the mean entropy of the answers plus the divergence of their mean from a prior.

    One step per batch on L = mean H(p) + ``strength`` KL(m, prior), m the mean probabilities of the batch. With the
    uniform prior and strength 1 this is SHOT's mean H(p) - H(m), up to a constant. SHOT itself trains on all images for
    15 epochs and answers then, with pseudo-labels beside this loss.

    ``prior="rank"`` gives class c the mean over the images of 1 / rank of its logit (the weights of an image sum to 1),
    ``prior="top"`` the share of the images that have c among their ``top`` largest logits; ``alpha`` is added and the
    sum raised to ``power``. These priors are of the present batch alone and have no gradient. With "top" the divergence
    is KL(prior, m). ``strength="auto"`` is the length of the gradient of the entropy over that of the divergence at the
    original weights; it is measured on the first batch of the stream, while the notes that it is from use three
    batches before the stream.

    With ``margin`` the entropy is the mean over images whose own is below margin ln C (our choice, off by default). A
    stream without such an image takes no step, nor does one with a single image, whose two terms cancel. The loss
    assumes classes as frequent as its prior says: bursts of one class are its worst case.
    """
