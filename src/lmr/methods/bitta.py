"""BITTA (Sun et al. 2026): learn from the certain samples with BATCLIP's objective, unlearn the uncertain ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.bases.bimodal import BimodalMethod
from lmr.core.card import Card, Preset
from lmr.core.functional.losses import bimodal_loss, entropy
from lmr.core.method import Ranges
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams

_SOURCE = "LMR paper, appendix, Baseline implementation details"

_CARD = Card(
    source="Sun et al. 2026",
    year=2026,
    in_paper=True,
    presets={
        "default": Preset({}, _SOURCE + ": CIFAR-10-C", batch_size=200),
        "cifar10-c": Preset({"lr": 1e-3}, _SOURCE, batch_size=200),
        "cifar100-c": Preset({"lr": 5e-4}, _SOURCE, batch_size=200),
        "imagenet": Preset({"lr": 5e-4}, _SOURCE, batch_size=64),
    },
)


@register("bitta", _CARD)
class BITTA(BimodalMethod):
    """Bilateral entropy selection: BATCLIP's objective on certain samples, entropy pushed up on uncertain ones.

    The first batch fixes two shares, measured against its largest entropy H_max: Low is what is at or below (alpha C
    + beta) H_max, High what is above (1 - high) H_max. Every batch then takes these shares of its samples, rounded
    down, from the bottom and from the top of its entropies; all of them where a share comes to none. The shares are
    kept as whole numbers, so a full batch gets exactly the counts of the first one. With more than 2184 classes the
    default alpha C + beta is negative and Low is always all.

    The answer is the one after the step (``emit``), and class means are of unit features (``features``): both unlike
    BATCLIP, and part of the reported gain over BATCLIP. The paper's text reads as if High were the top tenth of the
    samples; its code takes the top tenth of the entropy range of the first batch (``high_mode``). ``unlearn=0``
    switches unlearning off, ``high=0`` does not. Where every uncertain sample has entropy 0 there is nothing to
    unlearn.
    """

    alpha: float = -3.8e-4  # slope of the limit of Low in the number of classes
    beta: float = 0.83  # the limit of Low with no classes, as a share of the largest entropy
    high: float = 0.1  # width of High, as a share of the largest entropy
    unlearn: float = 1.2  # weight of the unlearning term
    high_mode: Literal["range", "top_fraction"] = "range"  # High by the range of entropies, or by a share of samples
    features: Literal["unit", "raw"] = "unit"  # features that class means are made of
    emit: Literal["after", "before"] = "after"  # answer with the norms after or before the step

    def prepare(self) -> None:
        self._require_between(-1e9, 1e9, "alpha", "beta")
        self._require_between(0, 1, "high")
        self._require_not_negative("unlearn")
        super().prepare()

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return also the counts (low, high, all) of the first batch: zeros before it."""
        return {**super().begin(), "selection": torch.zeros(3, dtype=torch.int64)}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        whole = state["selection"][:, 2].max().item() if "selection" in state else 0
        return super().ranges(state) | {"selection": (0, whole)}

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        def objective(raw: Tensor, prototypes: Tensor, logits: Tensor) -> tuple[Tensor, tuple[Tensor, int, int]]:
            return self._evaluate(raw, prototypes, logits, state["selection"])

        loss, logits, (selection, low, high), gradient = self._differentiate(images, state["norms"], streams, objective)
        new = self.optim.descend(state, gradient) | {"selection": selection}
        if self.emit == "after":
            with torch.no_grad():
                logits = self.answer(images, new, streams)
        info = {"loss": loss.view(1), "low": torch.tensor([low]), "high": torch.tensor([high])}
        return Step(logits, new, info | {"stepped": streams.sizes > 0})

    def _evaluate(
        self, raw: Tensor, prototypes: Tensor, logits: Tensor, selection: Tensor
    ) -> tuple[Tensor, tuple[Tensor, int, int]]:
        """Return L_learn(Low) - unlearn sg(L_ent(Low) / U) U, U the mean entropy of High; and the selection."""
        entropies = entropy(logits)
        selection = self._select(entropies.detach(), selection)
        low, high = self._count(selection, len(raw))
        order = entropies.detach().argsort(stable=True)
        bottom, top = order[:low], order[len(raw) - high :]
        features = F.normalize(raw, dim=-1) if self.features == "unit" else raw
        learned = bimodal_loss(features[bottom], prototypes, logits[bottom])
        certain, uncertain = entropies[bottom].mean().detach(), entropies[top].mean()
        scale = torch.where(uncertain == 0, 0, certain / uncertain).detach()
        return learned - self.unlearn * scale * uncertain, (selection, low, high)

    def _select(self, entropies: Tensor, selection: Tensor) -> Tensor:
        """Return the counts (low, high, all) [1, 3] of the first batch, which this one is if there are none yet."""
        if selection[0, 2] > 0:
            return selection
        largest = entropies.max()
        low = entropies <= largest * (self.alpha * self.classifier.classes + self.beta)
        high = ~(entropies <= largest * (1 - self.high))
        return torch.stack([low.sum(), high.sum(), torch.ones_like(low).sum()]).unsqueeze(0)

    def _count(self, selection: Tensor, size: int) -> tuple[int, int]:
        """Return the numbers of Low and High among ``size`` samples: the first batch's shares, rounded down, or all."""
        low, high, first = selection[0].tolist()
        top = int(size * self.high + 1e-9) if self.high_mode == "top_fraction" else size * high // first
        return (size * low // first) or size, top or size
