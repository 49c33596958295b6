"""TDA, the training-free dynamic adapter (Karmanov et al. 2024): two small caches of features correct the logits."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from lmr.core.card import Card, Preset
from lmr.core.errors import LmrError
from lmr.core.functional.losses import entropy
from lmr.core.functional.ordered import adapt_in_order, answer_in_order
from lmr.core.method import UNIT, Method, Ranges
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams

_SOURCE = "LMR paper, appendix, Baseline implementation details (TDA's official ImageNet values)"

_CARD = Card(
    source="Karmanov et al. 2024",
    year=2024,
    in_paper=True,
    presets={name: Preset({}, _SOURCE, batch_size=1) for name in ("default", "cifar10-c", "cifar100-c", "imagenet")},
)


@register("tda", _CARD)
class TDA(Method):
    """Caches of certain and of uncertain features: the first pull an image to their class, the second push it away.

    Every image enters the positive cache of its zero-shot class, and the negative one if its entropy is in a window;
    a full cache replaces its most uncertain entry by a strictly more certain one. Then the image is answered. It is in
    the cache already, so an accepted image adds a full ``pos_alpha`` to its own class. Images are served in order, one
    at a time; a batch only encodes them together. Properties of the authors' code that are kept:

    * the entropy is in nats but its normaliser is log2(C), so ``entropy`` is a window on a scale that ends at ln 2; for
      a window on H / ln C multiply both ends by ln 2;
    * the mask of a negative entry holds every class whose probability is in ``mask``, the predicted one included.

    The state has a fixed size: C * (pos_capacity + neg_capacity) unit features, and a mask of C
    values for each negative one.
    """

    emission = "after"
    export_reason = "its answer depends on caches of image features, not on norms, prototypes and a bias alone"

    pos_alpha: float = 2.0  # weight of the positive cache
    pos_beta: float = 5.0  # how fast it falls with the distance of a key
    pos_capacity: int = 3  # entries per class; 0 switches the cache off
    neg_alpha: float = 0.117  # weight of the negative cache
    neg_beta: float = 1.0  # how fast it falls with the distance of a key
    neg_capacity: int = 2  # entries per class; 0 switches the cache off
    entropy: tuple[float, float] = (0.2, 0.5)  # window of the negative cache, both ends excluded
    mask: tuple[float, float] = (0.03, 1.0)  # probabilities that a negative entry lowers, both ends excluded

    def prepare(self) -> None:
        self._require_not_negative("pos_alpha", "pos_beta", "neg_alpha", "neg_beta", "pos_capacity", "neg_capacity")
        for key in ("entropy", "mask"):
            low, high = getattr(self, key)
            if not low < high:
                raise LmrError(f"Expected {key!r} of tda as (low, high) with low below high, got {(low, high)}.")

    def begin(self) -> Mapping[str, Tensor | int]:
        prototypes = self.classifier.prototypes
        classes, width = prototypes.shape
        state = {}
        for sign, capacity in (("pos", self.pos_capacity), ("neg", self.neg_capacity)):
            state[f"{sign}_keys"] = prototypes.new_zeros(classes, capacity, width)
            state[f"{sign}_entropy"] = prototypes.new_full((classes, capacity), self._free)
        return {**state, "neg_mask": prototypes.new_zeros(classes, self.neg_capacity, classes)}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        own: Ranges = {f"{sign}_keys": UNIT for sign in ("pos", "neg")}
        own |= {f"{sign}_entropy": (0, None) for sign in ("pos", "neg")}
        return super().ranges(state) | own | {"neg_mask": (0, 1)}

    def describe(self, state: State) -> Mapping[str, Tensor]:
        signs = {"positive": "pos", "negative": "neg"}
        return {word: (state[f"{sign}_entropy"] < self._free).flatten(1).sum(1) for word, sign in signs.items()}

    @property
    def _free(self) -> float:
        """The entropy of a free entry: above every real one, and finite."""
        return torch.finfo(self.classifier.prototypes.dtype).max

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        return adapt_in_order(self.classifier.features(images), state, streams, self.look, self.learn)

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        return answer_in_order(self.classifier.features(images), state, streams, self.look)

    def look(self, z: Tensor, cache: State) -> tuple[Tensor, tuple[Tensor, State]]:
        """Return the logits [C] of a unit feature [D]; its zero-shot class [1] and the entries of that class."""
        logits = self.classifier.logits(self.classifier.cosines(z.unsqueeze(0)))
        label, p, h = logits.argmax(1), logits.softmax(1)[0], entropy(logits)
        share = h[0].double() / math.log2(self.classifier.classes)
        against = ((p > self.mask[0]) & (p < self.mask[1])).to(p.dtype)
        changed = _insert(cache, "pos", label, {"keys": z, "entropy": h[0]})
        inside = (self.entropy[0] < share) & (share < self.entropy[1])
        changed |= _insert(cache, "neg", label, {"keys": z, "entropy": h[0], "mask": against}, inside)
        pull = self._weigh(cache, "pos", z, self.pos_alpha, self.pos_beta, label, changed).sum(1)
        weights = self._weigh(cache, "neg", z, self.neg_alpha, self.neg_beta, label, changed)
        push = weights.index_select(0, label)[0] @ changed["neg_mask"]
        weights = weights.index_fill(0, label, 0)
        return logits[0] + pull - (push + weights.flatten() @ cache["neg_mask"].flatten(0, 1)), (label, changed)

    def learn(self, found: tuple[Tensor, State], cache: State) -> Tensor:
        label, changed = found
        for key, entries in changed.items():
            cache[key].index_copy_(0, label, entries.unsqueeze(0))
        return torch.ones_like(label[0])

    def _weigh(
        self,
        cache: dict[str, Tensor],
        sign: str,
        z: Tensor,
        alpha: float,
        beta: float,
        label: Tensor,
        changed: dict[str, Tensor],
    ) -> Tensor:
        """Return the weight [C, capacity] of every entry, with the changed entries of the class; 0 where free."""
        keys, own = cache[f"{sign}_keys"], changed[f"{sign}_keys"]
        near = (keys @ z).index_copy(0, label, (own @ z).unsqueeze(0))
        held = cache[f"{sign}_entropy"].index_copy(0, label, changed[f"{sign}_entropy"].unsqueeze(0)) < self._free
        return alpha * torch.exp(-beta * (1 - near).clamp(min=0)) * held


def _insert(
    cache: dict[str, Tensor], sign: str, label: Tensor, entry: dict[str, Tensor], where: Tensor | None = None
) -> dict[str, Tensor]:
    """Return the entries [capacity, ...] of a class with one more, the most certain first, without the last.

    The sort is stable and the new entry comes last, so that it stays behind its equals. Where the bool ``where`` is
    false the entries stay as they are.
    """
    held = {key: cache[f"{sign}_{key}"].index_select(0, label)[0] for key in entry}
    order = torch.cat([held["entropy"], entry["entropy"][None]]).sort(stable=True).indices[:-1]
    new = {key: torch.cat([held[key], value[None]])[order] for key, value in entry.items()}
    return {
        f"{sign}_{key}": value if where is None else torch.where(where, value, held[key]) for key, value in new.items()
    }
