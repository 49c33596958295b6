"""CLIPTTA (Lafon et al. 2025): a contrastive loss on the batch's own captions, with a memory of confident images."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lmr.core.bases.norms import NormMethod
from lmr.core.card import Card, Preset
from lmr.core.functional.losses import entropy, follow_labels
from lmr.core.functional.select import enter_best
from lmr.core.method import COUNTS, SHARES, Ranges
from lmr.core.optim import Optimizer
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.state import move_together
from lmr.core.streams import Streams
from lmr.core.views.view_maker import seed_generator

_SOURCE = "MarcLafon/cliptta"
_FREE = -1.0  # the confidence of a free entry

_CARD = Card(
    source="Lafon et al. 2025",
    year=2025,
    presets={
        "default": Preset({}, _SOURCE + ": CIFAR-10-C", batch_size=128),
        "cifar10-c": Preset({"shots": 4, "sample": 40}, _SOURCE, batch_size=128),
        "cifar100-c": Preset({"shots": 16, "sample": 128}, _SOURCE, batch_size=128),
        "imagenet": Preset({"shots": 16, "sample": 64, "batch": False}, _SOURCE + ": older class", batch_size=256),
    },
)


@register("cliptta", _CARD)
class CLIPTTA(NormMethod):
    """Entropy over the captions of a batch, ``steps`` of Adam per batch, on the batch and on a sample of a memory.

    The caption of an image is the prototype of its nearest class. The loss of a set of images is the mean entropy of
    their distributions over the captions of the set, equal ones included, less the entropy of their mean distribution
    over classes. The step's loss is that of the batch and that of a sample of the memory; ``memory=False`` leaves out
    the second, ``batch=False`` the first (the authors' older class, which their scripts use for ImageNet). The memory
    holds the ``shots`` most confident images of every class, by the softmax of cosines without a scale; a batch enters
    before its first step, confidences stay as they were, and pseudo-labels are taken anew at every step. A step draws
    max(1, sample / C) images of every class, ``sample`` at most shots C: with 4, 40 and ten classes nothing is random.

    Norms, Adam (eps 1e-6) and memory go on through the stream; the answer is the one after the last step. The memory
    is part of the state: classes x shots images.
    """

    emission = "after"

    lr: float = 1e-4  # learning rate of Adam
    steps: int = 10  # steps of Adam on a batch
    shots: int = 4  # images of a class in the memory
    sample: int = 40  # images of the memory in a step
    memory: bool = True  # whether images of the memory are in the loss
    batch: bool = True  # whether the images of the batch are in the loss
    seed: int = 42  # seed of the sample

    def prepare(self) -> None:
        self._require_not_negative("lr", "sample")
        self._require_count("steps", "shots")
        self.shape = self.classifier.require_shape(self.name) if self.memory else (0,)
        super().prepare()
        self.optim = Optimizer("adam", self.lr, eps=1e-6)
        classes = self.classifier.classes
        self.most = max(1, min(self.sample, self.shots * classes) // classes)

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return also the memory, and the number of batches."""
        prototypes, places = self.classifier.prototypes, self.shots if self.memory else 0
        shape = (len(prototypes), places)
        images = torch.zeros((*shape, *self.shape), dtype=self.classifier.dtype, device=prototypes.device)
        return {**super().begin(), "images": images, "confidence": prototypes.new_full(shape, _FREE), "batches": 0}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        return super().ranges(state) | {"confidence": (_FREE, SHARES[1]), "batches": COUNTS}

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        memory = self._enter(images, state, streams) if self.memory else {}
        norms, moments, losses = state["norms"], state, state["norms"].new_zeros(streams.count)
        held = ((state | memory)["confidence"] > _FREE).sum(2)
        facts = move_together({"held": held, "batches": state["batches"], "sizes": streams.sizes}, torch.device("cpu"))
        known = {key: value.tolist() for key, value in facts.items()}
        for number in range(self.steps):
            draws = [batches * self.steps + number for batches in known["batches"]]
            some, own = self._gather(images, state | memory, streams, known["held"], draws)
            if len(some):
                gradient, losses, _ = self.tower.differentiate(
                    some, norms, own, lambda features, k: self._loss(features, known["sizes"][k])
                )
                norms, moments = self.optim.step(norms, gradient, moments)
        new = {"norms": norms, **{key: moments[key] for key in ("first", "second", "steps")}, **memory}
        with torch.no_grad():
            logits = self.tower.logits(images, norms, streams)
        info = {"loss": losses, "held": held.sum(1), "stepped": streams.sizes > 0}
        return Step(logits, new | {"batches": state["batches"] + 1}, info)

    def _enter(self, images: Tensor, state: State, streams: Streams) -> State:
        """Return images and confidences [A, C, n] of the memory with this batch."""
        with torch.no_grad():
            cosines = self.tower.cosines(images, state["norms"], streams)
        fresh, labels = cosines.softmax(1).max(1)
        new = enter_best(state["confidence"], labels, fresh, streams)
        stored = state["images"].index_put(new.places.unbind(1), images[new.samples])
        return {"images": stored, "confidence": new.scores}

    def _gather(
        self, images: Tensor, state: State, streams: Streams, held: list[list[int]], draws: list[int]
    ) -> tuple[Tensor, Streams]:
        """Return the images of a step: those of the batch, then a sample of each stream's memory.

        ``held`` [A, C] are the entries of each class, and ``draws`` [A] the numbers of the draws.
        """
        drawn = [
            (k, *place)
            for k, (own, draw) in enumerate(zip(held, draws, strict=True))
            for place in (draw_by_class(own, self.most, seed_generator(self.seed, draw)) if self.memory else ())
        ]
        first, index = (images, streams.index) if self.batch else (images[:0], streams.index[:0])
        if not drawn:
            return first, Streams(streams.active, index)
        places = torch.tensor(drawn).to(images.device).unbind(1)
        some = torch.cat([first, state["images"][places]])
        return some, Streams(streams.active, torch.cat([index, places[0]]))

    def _loss(self, features: Tensor, here: int) -> Tensor:
        """Return the loss of a stream: of the images of the batch, which come first, and of those of the memory."""
        total, first = features.sum() * 0, here if self.batch else 0
        for part in (features[:first], features[first:]):
            if len(part):
                captions = follow_labels(part, self.classifier.prototypes)
                logits = self.classifier.logits(self.classifier.cosines(part))
                total = total + caption_entropy(part, captions, self.classifier.logit_scale) - spread_entropy(logits)
        return total


def caption_entropy(features: Tensor, captions: Tensor, scale: float) -> Tensor:
    """Return the mean entropy of every image's distribution over the captions of the batch, equal captions included."""
    return entropy(scale * features @ captions.T).mean()


def spread_entropy(logits: Tensor, eps: float = 1e-6) -> Tensor:
    """Return the entropy of the mean distribution over classes; it is large where all classes are used alike."""
    mean = logits.softmax(1).mean(0)
    return -(mean * (mean + eps).log()).sum()


def draw_by_class(held: list[int], most: int, generator: torch.Generator) -> list[tuple[int, int]]:
    """Draw at most ``most`` entries of each class, which holds ``held`` of them: (class, position)."""
    drawn = []
    for label, count in enumerate(held):
        places = range(count) if count <= most else torch.randperm(count, generator=generator)[:most].tolist()
        drawn += [(label, place) for place in places]
    return drawn
