"""Ramen (Bao et al. 2026): every image gets norms of its own, from the gradients of near images in a memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lmr.core.bases.norms import NormMethod
from lmr.core.card import Card, Preset
from lmr.core.functional.losses import entropy
from lmr.core.log import LOGGER
from lmr.core.method import UNIT, Method, Ranges
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams

_SOURCE = "baowenxuan/Ramen"
_LARGE = 2**28  # bytes of a full memory from which a warning says how many there are

_CARD = Card(
    label="Ramen",
    source="Bao et al. 2026",
    year=2026,
    presets={
        "default": Preset({}, _SOURCE + ": CIFAR-100-C", batch_size=100),
        "cifar10-c": Preset({"capacity": 7500, "topk": 50}, _SOURCE, batch_size=100),
        "cifar100-c": Preset({}, _SOURCE, batch_size=100),
        "imagenet": Preset({"capacity": 75, "topk": 1, "beta": 0.0}, _SOURCE, batch_size=50),
        "domainnet": Preset({"capacity": 300, "topk": 10}, _SOURCE, batch_size=100),
    },
)


@register("ramen", _CARD)
class Ramen(NormMethod):
    """A memory of entropy gradients per class; every image steps from the original norms along those of its neighbours.

    An image enters with its unit feature, the entropy H of its answer and the gradient of H, all at the original norms;
    a full class gives up its oldest entry. All images of a batch enter before the first is answered. An image at the
    distances d from the ``topk`` nearest entries of every class gets the mean over classes of the sums of
    exp(-H - ``beta`` d) times their gradients, itself among them, and is answered by the norms after one step of
    ``lr`` along the sign of that mean, or with ``optimizer="sgd"`` along the mean itself. Norms and optimiser keep
    nothing: only the memory goes on. Made for streams in which many domains mix.

    The memory grows to C * capacity entries of D + P + 2 numbers, P the norms of the tower: for ViT-B/16 160 kB each,
    1.2 GB for ten classes of 750. A warning says so where that is much. The authors keep it in half precision, and the
    ages of entries too, which are equal from image 65,520 on; here the order of arrival is exact.
    """

    emission = "after"
    export_reason = "every image has norms of its own, which depend on a memory of gradients"
    single_stream_reason = "the memory of a stream grows with it, so the tensors of two streams would differ in length"
    classes_reason = "its memory is one of the images of each class"
    grows: ClassVar[tuple[str, ...]] = ("features", "gradients", "entropy", "label")

    capacity: int = 750  # entries of a class
    topk: int = 5  # nearest entries of each class that an image steps along
    beta: float = 5.0  # how fast the weight of an entry falls with its distance
    lr: float = 0.01  # size of the step
    optimizer: Literal["signsgd", "sgd"] = "signsgd"  # step along the sign, or along the mean gradient

    export = Method.export  # refuses

    def prepare(self) -> None:
        self._require_not_negative("lr", "beta")
        self._require_count("capacity", "topk", most=10**9)
        super().prepare()
        classes, width = self.classifier.prototypes.shape
        needed = classes * self.capacity * (width + self.bank.size + 2) * self.bank.start.element_size()
        if needed >= _LARGE:
            LOGGER.warning(
                "The memory of ramen grows to %s bytes, for %d images of each of %d classes; capacity=N keeps fewer.",
                f"{needed:,}", self.capacity, classes,
            )  # fmt: skip

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return an empty memory, in the order of arrival."""
        prototypes, start = self.classifier.prototypes, self.bank.start
        return {
            "features": prototypes.new_zeros(0, prototypes.shape[1]),
            "gradients": start.new_zeros(0, len(start)),
            "entropy": prototypes.new_zeros(0),
            "label": torch.zeros(0, dtype=torch.int64, device=start.device),
        }

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        own: Ranges = {"features": UNIT, "entropy": (-1e-3, None), "label": (0, self.classifier.classes - 1)}
        return super().ranges(state) | own

    def fill_state(self, images: Tensor) -> None:
        self.bank.locate_batch(images, self.classifier.encode)  # once for all steps

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        fresh = self._describe_images(images)
        memory = self._enter({key: state[key][0] for key in self.grows}, fresh)
        logits = self._answer_each(images, fresh["features"], memory)
        facts = {"loss": fresh["entropy"].mean(), "held": torch.tensor(len(memory["label"]), device=logits.device)}
        info = {key: value.view(1) for key, value in facts.items()}
        new = {key: value.unsqueeze(0) for key, value in memory.items()}
        return Step(logits, new, info | {"stepped": streams.sizes > 0})

    def answer(self, images: Tensor, state: State, streams: Streams) -> Tensor:
        """Return logits with the entries of the memory, which these images do not enter."""
        features = self.classifier.features(images)
        return self._answer_each(images, features, {key: state[key][0] for key in self.grows})

    def _describe_images(self, images: Tensor) -> State:
        """Return the entries of images: their features, gradients, entropies and labels at the original norms."""
        entries: dict[str, list[Tensor]] = {key: [] for key in self.grows}
        for part in self.classifier.split(len(images)):
            rows, streams = self._spread(len(images[part]))
            rows.requires_grad_()
            with torch.enable_grad():
                features = self.tower.features(images[part], rows, streams)
                logits = self.classifier.logits(self.classifier.cosines(features))
                uncertainty = entropy(logits)
                (gradients,) = torch.autograd.grad(uncertainty.sum(), rows)
            found = (features.detach(), gradients, uncertainty.detach(), logits.argmax(1))
            for key, value in zip(self.grows, found, strict=True):
                entries[key].append(value)
        return {key: torch.cat(values) for key, values in entries.items()}

    def _spread(self, count: int) -> tuple[Tensor, Streams]:
        """Return the original norms [n, P] for each of n images, as if each were a stream."""
        each = torch.arange(count, device=self.bank.start.device)
        return self.bank.start.repeat(count, 1), Streams(each, each)

    def _enter(self, memory: State, fresh: State) -> State:
        """Return the memory with new entries, of each class the last ``capacity``."""
        joined = {key: torch.cat([memory[key], value]) for key, value in fresh.items()}
        label = joined["label"]
        if len(label) <= self.capacity:
            return joined
        classes = Streams(torch.arange(self.classifier.classes, device=label.device), label)
        kept = classes.rank() >= classes.repeat(classes.sizes - self.capacity)
        return {key: value[kept] for key, value in joined.items()}

    @torch.no_grad()
    def _answer_each(self, images: Tensor, features: Tensor, memory: State) -> Tensor:
        """Return logits [B, C], each image by norms of its own."""
        step = self._average_gradients(features, memory)
        rows, streams = self._spread(len(images))
        return self.tower.logits(
            images, rows - self.lr * (step.sign() if self.optimizer == "signsgd" else step), streams
        )

    def _average_gradients(self, features: Tensor, memory: State) -> Tensor:
        """Return the weighted gradients [B, P] of the nearest entries of every class."""
        label, classes = memory["label"], self.classifier.classes
        distance = torch.cdist(features, memory["features"], compute_mode="donot_use_mm_for_euclid_dist")
        near = distance.argsort(dim=1, stable=True)
        order = near.gather(1, label[near].argsort(dim=1, stable=True))  # by class, within it by distance
        sizes = torch.zeros(classes, dtype=torch.int64, device=label.device).index_add(0, label, torch.ones_like(label))
        group = label.sort().values  # the class of each place of ``order``, the same for all images
        place = torch.arange(len(label), device=label.device) - (sizes.cumsum(0) - sizes)[group]
        order = order[:, place < self.topk]
        weight = (-memory["entropy"][order] - self.beta * distance.gather(1, order)).exp()
        weight = (weight / sizes.count_nonzero().clamp(min=1)).to(memory["gradients"].dtype)
        return torch.stack([own @ memory["gradients"][some] for own, some in zip(weight, order, strict=True)])
