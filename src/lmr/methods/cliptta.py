"""CLIPTTA (Lafon et al. 2025): a contrastive loss on the batch's own captions, with a memory of confident images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from lmr.core.errors import LmrError
from lmr.core.functional.by_stream import choose_rows
from lmr.core.functional.class_memory import draw_by_class, enter_best
from lmr.core.functional.transduction import caption_entropy, follow_labels, spread_entropy
from lmr.core.gradient import NormMethod
from lmr.core.method import COUNTS, SHARES, Mix, Prediction, Preset, Ranges
from lmr.core.optim import Optimizer
from lmr.core.registry import register
from lmr.core.traits import Passes
from lmr.core.views.view_maker import seed_generator

_SOURCE = "MarcLafon/cliptta"
_FREE = -1.0  # the confidence of a free place

Entered = dict[tuple[int, int], int]  # (class, place) of a memory -> the image of the batch that is now there


@register("cliptta")
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

    source = "Lafon et al. 2025"
    year = 2025
    emission = "after"
    many_streams = True
    keeps_images = True
    presets: ClassVar[dict[str, Preset]] = {
        "default": Preset({}, _SOURCE + ": CIFAR-10-C", batch_size=128),
        "cifar10-c": Preset({"shots": 4, "sample": 40}, _SOURCE, batch_size=128),
        "cifar100-c": Preset({"shots": 16, "sample": 128}, _SOURCE, batch_size=128),
        "imagenet": Preset({"shots": 16, "sample": 64, "batch": False}, _SOURCE + ": older class", batch_size=256),
    }

    lr: float = 1e-4
    steps: int = 10
    shots: int = 4  # images of a class in the memory
    sample: int = 40  # images of the memory in a step
    memory: bool = True
    batch: bool = True  # whether the images of the batch are in the loss
    seed: int = 42  # of the sample

    def prepare(self) -> None:
        self._require_not_negative("lr", "sample")
        self._require_count("steps", "shots")
        if not self.memory and not self.batch:
            raise LmrError("Expected 'memory' or 'batch' of cliptta to be True, or there is nothing to learn from.")
        self.shape = self.classifier.require_shape(self.name) if self.memory else (0,)
        super().prepare()
        self.optim = Optimizer("adam", self.lr, eps=1e-6)
        classes = self.classifier.classes
        self.most = max(1, min(self.sample, self.shots * classes) // classes)

    def begin(self, streams: int) -> dict[str, Tensor]:
        """Also the memory, and how many batches there were."""
        prototypes, places = self.classifier.prototypes, self.shots if self.memory else 0
        images = torch.zeros(
            (streams, len(prototypes), places, *self.shape), dtype=self.classifier.dtype, device=prototypes.device
        )
        confidence = prototypes.new_full((streams, len(prototypes), places), _FREE)
        norms = super().begin(streams)
        return norms | {"images": images, "confidence": confidence, "batches": norms["steps"].clone()}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        return super().ranges(state) | {"confidence": (_FREE, SHARES[1]), "batches": COUNTS}

    def count_passes(self, learning: float = 1.0) -> Passes:
        """Without the images of the memory, whose number per image depends on the batch."""
        steps = self.steps * self.batch
        return Passes(forwards=steps + (2 if self.memory else 1), backwards=steps)

    def adapt(self, images: Tensor, mix: Mix) -> Prediction:
        old = self.take(mix, *(key for key in self.state if key not in ("images", "predicted")))
        confidence, entered = self._enter(images, mix, old)
        norms, moments, losses = old["norms"], old, old["norms"].new_zeros(mix.count)
        for number in range(self.steps):
            some, own = self._gather(images, mix, confidence, entered, number)
            if len(some):
                gradient, losses, _ = self.differentiate(
                    some, own, norms, lambda z, k: self._judge(z, int(mix.sizes[k]))
                )
                norms, moments = self.optim.step(norms, gradient, moments)
        new = {"norms": norms, **{key: moments[key] for key in ("first", "second", "steps")}}
        new |= {"confidence": confidence, "batches": old["batches"] + 1}
        with torch.no_grad():
            logits = self.classifier.logits(self.image_cosines(images, norms, mix.index))
            stepped = self.find_sound(new) & mix.all(logits.isfinite().all(1))
            if not bool(stepped.all()):
                kept = choose_rows(stepped, norms, old["norms"])
                logits = self.classifier.logits(self.image_cosines(images, kept, mix.index))
        self.put({key: choose_rows(stepped, value, old[key]) for key, value in new.items()}, mix)
        for stream, places, went in zip(mix.active.tolist(), entered, stepped.tolist(), strict=True):
            for (label, place), number in places.items() if went else ():
                self.state["images"][stream, label, place] = images[number]
        held = (self.take(mix, "confidence")["confidence"] > _FREE).flatten(1).sum(1)
        report = {"loss": losses, "held": held, "stepped": stepped, "drift": self.drift(mix)}
        return Prediction(logits, self.summarise(report, mix))

    def _enter(self, images: Tensor, mix: Mix, old: Mapping[str, Tensor]) -> tuple[Tensor, list[Entered]]:
        """The confidences [A, C, n] of the memory with this batch, and where its images of each stream go."""
        confidence, entered = [], []
        if not self.memory:
            return old["confidence"], [{} for _ in range(mix.count)]
        with torch.no_grad():
            cosines = self.image_cosines(images, old["norms"], mix.index)
        fresh, labels = cosines.softmax(1).max(1)
        for k, before in enumerate(old["confidence"]):
            own = ((mix.index == k) & cosines.isfinite().all(1)).nonzero()[:, 0]
            after, changed = enter_best(before, labels[own].tolist(), fresh[own].tolist())
            confidence.append(after)
            entered.append({place: int(own[number]) for place, number in changed.items()})
        return torch.stack(confidence), entered

    def _gather(
        self, images: Tensor, mix: Mix, confidence: Tensor, entered: list[Entered], number: int
    ) -> tuple[Tensor, Mix]:
        """The images of a step: those of the batch, then a sample of each stream's memory."""
        parts, index = ([images], [mix.index]) if self.batch else ([], [])
        for k, stream in enumerate(mix.active.tolist() if self.memory else ()):
            generator = seed_generator(self.seed, int(self.state["batches"][stream]) * self.steps + number)
            held = (confidence[k] > _FREE).sum(1).tolist()
            for place in draw_by_class(held, self.most, generator):
                new = entered[k].get(place)
                parts.append((self.state["images"][stream, *place] if new is None else images[new]).unsqueeze(0))
                index.append(torch.full_like(mix.index[:1], k))
        if not parts:
            return images[:0], Mix(mix.active, mix.index[:0])
        return torch.cat(parts), Mix(mix.active, torch.cat(index))

    def _judge(self, features: Tensor, here: int) -> Tensor:
        """The loss of a stream: of the images of the batch, which come first, and of those of the memory."""
        total, first = features.sum() * 0, here if self.batch else 0
        for part in (features[:first], features[first:]):
            if len(part):
                captions = follow_labels(part, self.classifier.prototypes)
                logits = self.classifier.logits(self.classifier.cosines(part))
                total = total + caption_entropy(part, captions, self.classifier.logit_scale) - spread_entropy(logits)
        return total
