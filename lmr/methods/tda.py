"""TDA, the training-free dynamic adapter (Karmanov et al. 2024): two small caches of features correct the logits."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.core.functional.losses import entropy
from lmr.core.method import Method, Mix, Prediction, Preset
from lmr.core.registry import register
from lmr.core.traits import Passes

_SOURCE = "LMR paper, appendix, Baseline implementation details (TDA's official ImageNet values)"


@register("tda")
class TDA(Method):
    """Caches of certain and of doubtful features: the first pull an image to their class, the second push it away.

    Every image enters the positive cache of its zero-shot class, and the negative one if its entropy lies in a window;
    a full cache gives up its most uncertain entry for a strictly more certain one. Then the image is answered: it is
    in the cache already, so an accepted image adds a full ``pos_alpha`` to its own class. Images are served in order,
    one at a time: a batch is only a way to encode them together. Quirks of the authors' code that are kept:

    * the entropy is in nats but its normaliser is log2(C), so ``entropy`` is a window on a scale that ends at ln 2; for
      a window on H / ln C multiply both ends by ln 2;
    * the mask of a negative entry holds every class whose probability lies in ``mask``, the predicted one included.

    The state has a fixed size: C * (pos_capacity + neg_capacity) unit features, and a mask of C
    numbers for each negative one.
    """

    source = "Karmanov et al. 2024"
    year = 2024
    emission = "after"
    presets: ClassVar[dict[str, Preset]] = {
        "default": Preset({}, _SOURCE, batch_size=1),
        "cifar10-c": Preset({}, _SOURCE, batch_size=1),
        "cifar100-c": Preset({}, _SOURCE, batch_size=1),
        "imagenet": Preset({}, _SOURCE, batch_size=1),
    }

    pos_alpha: float = 2.0  # weight of the positive cache
    pos_beta: float = 5.0  # how fast it fades with the distance of a key
    pos_capacity: int = 3  # entries per class; 0 leaves the cache out
    neg_alpha: float = 0.117
    neg_beta: float = 1.0
    neg_capacity: int = 2
    entropy: tuple[float, float] = (0.2, 0.5)  # window of the negative cache, both ends outside
    mask: tuple[float, float] = (0.03, 1.0)  # probabilities that a negative entry speaks against, both ends outside

    def prepare(self) -> None:
        self._require_not_negative("pos_alpha", "pos_beta", "neg_alpha", "neg_beta", "pos_capacity", "neg_capacity")
        for key in ("entropy", "mask"):
            low, high = getattr(self, key)
            if not low < high:
                raise LmrError(f"Expected {key!r} of tda as (low, high) with low below high, got {(low, high)}.")

    def count_passes(self, learning: float = 1.0) -> Passes:
        return Passes(forwards=1)

    def begin(self, streams: int) -> dict[str, Tensor]:
        prototypes = self.classifier.prototypes
        classes, width = prototypes.shape
        state = {}
        for sign, capacity in (("pos", self.pos_capacity), ("neg", self.neg_capacity)):
            state[f"{sign}_keys"] = prototypes.new_zeros(streams, classes, capacity, width)
            state[f"{sign}_entropy"] = prototypes.new_full((streams, classes, capacity), self._free)
        return state | {"neg_mask": prototypes.new_zeros(streams, classes, self.neg_capacity, classes)}

    def adapt(self, images: Tensor, mix: Mix) -> Prediction:
        answers, skipped = [], 0
        with torch.no_grad():
            for z in self.classifier.features(images):
                logits, label, rows = self._serve(z)
                answers.append(logits)
                skipped += not rows
                for key, row in rows.items():
                    self.state[key][0, label] = row
        info = {"stepped": skipped < len(images), "skipped": skipped}
        for word, sign in (("positive", "pos"), ("negative", "neg")):
            info[word] = int((self.state[f"{sign}_entropy"] < self._free).sum())
        return Prediction(torch.stack(answers), info)

    def answer(self, images: Tensor, mix: Mix) -> Tensor:
        """Logits as if each image arrived now, alone; the caches stay as they are."""
        return torch.stack([self._serve(z)[0] for z in self.classifier.features(images)])

    @property
    def _free(self) -> float:
        """The entropy of a free place: above every real one, and finite."""
        return torch.finfo(self.classifier.prototypes.dtype).max

    def _serve(self, z: Tensor) -> tuple[Tensor, int, dict[str, Tensor]]:
        """One unit feature [D]: its logits [C], its zero-shot class, and the places of that class that it changes.

        Where the feature is not finite the logits are not either, and no place changes.
        """
        logits = self.classifier.logits(self.classifier.cosines(z.unsqueeze(0)))
        label, p, h = int(logits.argmax(1)), logits.softmax(1)[0], entropy(logits)
        if not h.isfinite():
            return logits[0] * math.nan, label, {}
        rows = self._insert("pos", label, {"keys": z, "entropy": h[0]})
        if self.entropy[0] < h.item() / math.log2(self.classifier.classes) < self.entropy[1]:
            against = ((p > self.mask[0]) & (p < self.mask[1])).to(p.dtype)
            rows |= self._insert("neg", label, {"keys": z, "entropy": h[0], "mask": against})
        pull = self._weigh("pos", z, self.pos_alpha, self.pos_beta, label, rows).sum(1)
        weights = self._weigh("neg", z, self.neg_alpha, self.neg_beta, label, rows)
        mask = self.state["neg_mask"][0]
        push = weights[label] @ rows.get("neg_mask", mask[label])
        weights[label] = 0
        return logits[0] + pull - (push + weights.flatten() @ mask.flatten(0, 1)), label, rows

    def _insert(self, sign: str, label: int, entry: dict[str, Tensor]) -> dict[str, Tensor]:
        """The places [capacity, ...] of a class with one entry more, the most certain first, without the last.

        The sort is stable and the newcomer comes last: among equals it has to stay behind.
        """
        rows = {f"{sign}_{k}": torch.cat([self.state[f"{sign}_{k}"][0, label], v[None]]) for k, v in entry.items()}
        order = rows[f"{sign}_entropy"].sort(stable=True).indices[:-1]
        return {key: row[order] for key, row in rows.items()}

    def _weigh(self, sign: str, z: Tensor, alpha: float, beta: float, label: int, rows: dict[str, Tensor]) -> Tensor:
        """Weight [C, capacity] of every entry for this feature, with the changed places of its class; 0 if free."""
        near = self.state[f"{sign}_keys"][0] @ z
        held = self.state[f"{sign}_entropy"][0] < self._free
        if f"{sign}_keys" in rows:
            near[label], held[label] = rows[f"{sign}_keys"] @ z, rows[f"{sign}_entropy"] < self._free
        return alpha * torch.exp(-beta * (1 - near)) * held
