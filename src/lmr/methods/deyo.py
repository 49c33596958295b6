"""DeYO (Lee et al. 2024): entropy minimisation on answers that are certain and need the shape of the object."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.bases.norms import GradientMethod
from lmr.core.card import Card, Preset
from lmr.core.errors import LmrError
from lmr.core.functional.losses import entropy
from lmr.core.method import COUNTS, Ranges
from lmr.core.norms import list_top_modules
from lmr.core.optim import Optimizer, OptimizerName
from lmr.core.placement import widen
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams
from lmr.core.views.view_maker import seed_generator

_SOURCE = "Jhyun17/DeYO"
_PORT = "mariodoebler/test-time-adaptation"

_CARD = Card(
    label="DeYO",
    source="Lee et al. 2024",
    year=2024,
    presets={
        "default": Preset({}, _SOURCE + ": ViT, learning rate 0.001 for 64 images"),
        "cifar10-c": Preset({"optimizer": "adam"}, _PORT + ": CIFAR", batch_size=200),
        "cifar100-c": Preset({"optimizer": "adam"}, _PORT + ": CIFAR", batch_size=200),
        "imagenet": Preset({}, _SOURCE + ": ViT, learning rate 0.001 for 64 images"),
        "imagenet-port": Preset({"lr": 2.5e-4, "nesterov": True}, _PORT + ": ImageNet-C"),
        "single-images": Preset({"lr": 3.125e-5}, _SOURCE + ": ViT, twice the rate of a 64th batch", batch_size=1),
        "resnet": Preset({"lr": 2.5e-4, "plpd": 0.3}, _SOURCE + ": ResNet-50 with BatchNorm, mild shifts"),
        "waterbirds": Preset({"lr": 5e-3, "plpd": 0.5}, _SOURCE + ": Waterbirds, five times the learning rate"),
        "coloredmnist": Preset(
            {"lr": 5e-3, "plpd": 0.5, "margin": 1.0, "weight_margin": 1.0},
            _SOURCE + ": ColoredMNIST, five times the learning rate",
        ),
    },
)


@register("deyo", _CARD)
class DeYO(GradientMethod):
    """Entropy minimisation on the certain samples whose answer falls when the object in the image is destroyed.

    A sample is certain if its entropy H is below ``margin`` ln C. Of every certain image a copy is made whose object is
    destroyed: its ``patches`` x ``patches`` patches change places, or (``aug="occ"``) a square of half the side in the
    middle gets the image's mean colour. With the norms before the step, d is how much less probable the copy is than
    the image, for the class of the image. The loss is the mean over the certain samples with d above ``plpd`` of
    (exp(E0 - H) + exp(d)) H, E0 = ``weight_margin`` ln C, the weight without gradient. Without such a sample there is
    no step, also not of the momentum. The answer is the one before the step.

    The norms that ``sar`` leaves alone do not adapt here either. The order of the patches is drawn from ``seed`` and
    the number of the image in its stream. Where the side of an image is no multiple of
    ``patches``, the image is made smaller to the next one, and large again.

    Where the patches are whole patches of a transformer (224 / 4 = 56 pixels are four patches of 14), its tokens only
    change places, so that d sees positions alone and is small: take other ``patches`` there.
    """

    lr: float = 1e-3  # learning rate
    optimizer: OptimizerName = "sgd"  # adam, adamw, or sgd with momentum 0.9
    nesterov: bool = False  # Nesterov momentum of SGD
    margin: float = 0.5  # limit of a certain sample's entropy, as a share of the largest entropy ln C
    weight_margin: float = 0.4  # E0 in the weights, as a share of the largest entropy ln C
    plpd: float = 0.2  # probability that the class of an image must lose without the object
    patches: int = 4  # patches in a row and in a column
    aug: Literal["patch", "occ"] = "patch"  # destroy the object by shuffled patches, or by a square in the middle
    seed: int = 0  # seed of the order of the patches

    def prepare(self) -> None:
        super().prepare()
        self._require_not_negative("margin", "weight_margin")
        self._require_between(-1, 1, "plpd")
        self._require_count("patches")
        self.optim = Optimizer(self.optimizer, self.lr, self.weight_decay, nesterov=self.nesterov)

    def _find_skipped(self) -> set[str]:
        return list_top_modules(self.classifier.encoder)

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return also the number of images that the stream has seen."""
        return {**super().begin(), "seen": 0}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        return super().ranges(state) | {"seen": COUNTS}

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        largest = math.log(self.classifier.classes)

        def measure(cosines: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            logits = self.classifier.logits(cosines)
            uncertainty = entropy(logits)
            return uncertainty, uncertainty.detach() < self.margin * largest, logits

        measured = self.tower.measure(images, state["norms"], streams, measure)
        uncertainty, certain, logits = measured.values
        drop = self._measure_drop(images, logits, certain, state, streams)
        chosen = certain & (drop > self.plpd)
        count = streams.sum(chosen.long())
        weight = (self.weight_margin * largest - uncertainty).exp() + drop.exp()
        weight = weight.where(chosen, 0) / streams.repeat(count.clamp(min=1))
        gradient = measured.vjp(weight) if bool(chosen.any()) else torch.zeros_like(state["norms"])
        stepped = count > 0
        new = self.optim.descend(state, gradient, stepped) | {"seen": state["seen"] + streams.sizes}
        loss = streams.sum((weight * uncertainty).where(chosen, 0))
        info = {"certain": streams.sum(certain.long()), "chosen": count, "loss": loss, "stepped": stepped}
        return Step(logits, new, info)

    @torch.no_grad()
    def _measure_drop(self, images: Tensor, logits: Tensor, certain: Tensor, state: State, streams: Streams) -> Tensor:
        """Return how much probability the class of each certain image loses without its object: [B], else 0."""
        drop = logits.new_zeros(len(logits))
        if bool(certain.any()):
            numbers = (streams.repeat(state["seen"]) + streams.rank())[certain]
            changed = self._destroy(images[certain], numbers.tolist())
            after = self.tower.logits(changed, state["norms"], streams.take(certain)).softmax(1)
            before, labels = logits[certain].softmax(1).max(1)
            drop[certain] = before - after.gather(1, labels.unsqueeze(1)).squeeze(1)
        return drop

    def _destroy(self, images: Tensor, numbers: list[int]) -> Tensor:
        """Return the images [n, ..., H, W] of these numbers in their streams without their objects."""
        if images.ndim < 3 or min(images.shape[-2:]) < self.patches:
            raise LmrError(
                f"{self.name} cuts images [..., H, W] into {self.patches} x {self.patches} patches, and got images "
                f"of shape {list(images.shape[1:])}; give it larger images, or a smaller 'patches'."
            )
        if self.aug == "occ":
            return cover_middle(images)
        return shuffle_patches(images, self._order(numbers).to(images.device), self.patches)

    def _order(self, numbers: list[int]) -> Tensor:
        """Return the order [n, patches^2] of the patches of each image."""
        drawn = [
            torch.rand(self.patches**2, generator=seed_generator(self.seed, number), dtype=torch.float64)
            for number in numbers
        ]
        return torch.stack(drawn).argsort(1)


def shuffle_patches(images: Tensor, order: Tensor, patches: int) -> Tensor:
    """Return images [n, ..., H, W] in which patch j, row by row, is patch ``order[:, j]``; order: [n, patches^2]."""
    count, (height, width) = len(images), images.shape[-2:]
    high, wide = height // patches, width // patches
    x = _resize(images.reshape(count, -1, height, width), high * patches, wide * patches)
    cut = x.reshape(count, -1, patches, high, patches, wide).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    mixed = cut[torch.arange(count, device=images.device).unsqueeze(1), order]
    x = mixed.reshape(count, patches, patches, -1, high, wide).permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
    return _resize(x, height, width).reshape(images.shape)


def cover_middle(images: Tensor) -> Tensor:
    """Return images [n, ..., H, W] whose middle, half of each side, has the mean of its channel and image."""
    height, width = images.shape[-2:]
    covered = images.clone()
    top, left = height // 4, width // 4
    covered[..., top : top + height // 2, left : left + width // 2] = images.mean((-2, -1), keepdim=True)
    return covered


def _resize(x: Tensor, height: int, width: int) -> Tensor:
    if x.shape[-2:] == (height, width):
        return x
    wide = F.interpolate(x.to(widen(x.dtype)), (height, width), mode="bilinear", align_corners=False)
    return wide.to(x.dtype)
