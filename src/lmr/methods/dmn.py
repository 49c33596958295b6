"""DMN-ZS (Zhang et al. 2024): the dynamic memory network without training, which reads class prototypes from memory."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.bases.views import ViewMethod
from lmr.core.card import Card, Preset, Scores
from lmr.core.functional.ordered import adapt_in_order, answer_in_order
from lmr.core.functional.select import find_place
from lmr.core.method import UNIT, Ranges
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams

_SOURCE = "YBZh/DMN; alpha 1 as in the port tta-vlm"

_CARD = Card(
    label="DMN-ZS",
    source="Zhang et al. 2024",
    year=2024,
    presets={
        "default": Preset({}, _SOURCE + ", its form without views", batch_size=1),
        "cifar10-c": Preset({}, _SOURCE + ", its form without views", batch_size=1),
        "cifar100-c": Preset({}, _SOURCE + ", its form without views", batch_size=1),
        "imagenet": Preset({}, _SOURCE + ", its form without views", batch_size=1),
        "views": Preset({"views": 32}, _SOURCE + ", the authors' views", batch_size=1),
    },
)


@register("dmn", _CARD)
class DMN(ViewMethod):
    """A memory of features per class; an image reads a prototype of every class from it, by likeness to itself.

    An image enters the memory of its zero-shot class; a full class gives up its most uncertain entry for a more certain
    one. Then, of every class, the features in memory and the class text are added with weights exp(-beta (1 - cosine))
    and normalised; the answer is the logarithm of the text's probabilities plus ``alpha`` times those with the
    prototypes read. Images are served in order, one at a time; a batch only encodes them together.

    Class and uncertainty are those of the mean over the views with the lowest entropy, a share ``keep`` of them; a
    single view is taken as it is. The authors' script has 32 views. They choose ``alpha`` for each dataset on test
    labels, which is not done here. The state has a fixed size: C * memory unit features.
    """

    scores = Scores.LABELS
    export_reason = "its answer depends on a memory of image features, not on norms, prototypes and a bias alone"

    alpha: float = 1.0  # weight of the memory
    beta: float = 5.5  # how fast the weight of an entry falls with its distance
    memory: int = 50  # features kept of a class
    views: int = 1  # views of each image, the image itself included
    keep: float = 0.1  # share of the views that count

    def prepare(self) -> None:
        super().prepare()
        self._require_not_negative("alpha", "beta", "memory")
        self._require_between(0, 1, "keep")

    def logit_floor(self) -> float:
        return math.log(torch.finfo(self.classifier.prototypes.dtype).tiny)

    def begin(self) -> Mapping[str, Tensor | int]:
        prototypes = self.classifier.prototypes
        classes, width = prototypes.shape
        keys = prototypes.new_zeros(classes, self.memory, width)
        return {**super().begin(), "keys": keys, "entropy": prototypes.new_full((classes, self.memory), self._free)}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        return super().ranges(state) | {"keys": UNIT, "entropy": (-1e-3, None)}

    def describe(self, state: State) -> Mapping[str, Tensor]:
        return {"held": (state["entropy"] < self._free).flatten(1).sum(1)}

    @property
    def _free(self) -> float:
        """The entropy of a free entry: above every real one, and finite."""
        return torch.finfo(self.classifier.prototypes.dtype).max

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        features = self._encode_views(images, state, streams)
        return adapt_in_order(features, state, streams, self.look, self.learn, lambda sums: {"entered": sums})

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        return answer_in_order(self._encode_views(images, state, streams), state, streams, self.look)

    def look(self, views: Tensor, row: State) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Return the logits [C] of an image; its class [1], features and entropies there, and the entry it takes."""
        keys, entropy = row["keys"], row["entropy"]
        p = self.classifier.logits(self.classifier.cosines(views)).softmax(1)
        mean, z = p[0], views[0]
        if len(views) > 1:
            order = -(p * (p + 1e-6).log()).sum(1)
            mean = p[order.argsort(stable=True)[: max(1, int(self.keep * len(views)))]].mean(0)
        label, uncertainty = mean.argmax(0, keepdim=True), -(mean * (mean + 1e-8).log()).sum()
        text, before = self.classifier.prototypes, entropy.index_select(0, label)[0]
        taken = find_place(-before, -uncertainty)
        own = torch.where(taken.unsqueeze(1), z, keys.index_select(0, label)[0])  # of its class, as they will be
        near, after = keys @ z, torch.where(taken, uncertainty, before)
        near = near.index_copy(0, label, torch.where(taken, z @ z, near.index_select(0, label)))
        held = entropy.index_copy(0, label, after.unsqueeze(0)) < self._free
        weights, by_text = self._weigh(near, held, text @ z)
        read = (weights.unsqueeze(1) @ keys).squeeze(1)
        read = read.index_copy(0, label, weights.index_select(0, label) @ own) + by_text * text
        dynamic = self.classifier.logits(F.normalize(read, dim=-1) @ z).softmax(0)
        return (p[0] + self.alpha * dynamic + torch.finfo(p.dtype).tiny).log(), (label, own, after, taken)

    def learn(self, found: tuple[Tensor, Tensor, Tensor, Tensor], row: State) -> Tensor:
        label, own, entropies, taken = found
        row["keys"].index_copy_(0, label, own.unsqueeze(0))
        row["entropy"].index_copy_(0, label, entropies.unsqueeze(0))
        return taken.any()

    def _weigh(self, near: Tensor, held: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights [C, n] of the ``held`` entries, and [C, 1] of the text, by their cosines with an image.

        Only the direction of a class's sum counts, so its largest weight may be 1, and a large ``beta`` leaves one.
        """
        near = near.masked_fill(~held, -math.inf)
        most = torch.cat([near, text.unsqueeze(1)], 1).amax(1, keepdim=True)
        weights = torch.exp(self.beta * (near - most)).masked_fill(~held, 0)
        return weights, torch.exp(self.beta * (text.unsqueeze(1) - most))
