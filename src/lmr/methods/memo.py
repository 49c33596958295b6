"""MEMO (Zhang et al. 2022): adapt to each image by the entropy of the mean prediction of its augmented views."""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from lmr.core.bases.norms import NormMethod
from lmr.core.bases.views import EpisodicMethod
from lmr.core.card import Card, Preset
from lmr.core.functional.losses import marginal_entropy
from lmr.core.optim import Optimizer, OptimizerName
from lmr.core.placement import widen
from lmr.core.prediction import State
from lmr.core.registry import register
from lmr.core.streams import Streams

_SOURCE = "the authors' released code"

_CARD = Card(
    source="Zhang et al. 2022",
    year=2022,
    presets={
        "default": Preset({}, _SOURCE + ": transformers on ImageNet", batch_size=1),
        "imagenet": Preset({}, _SOURCE + ": transformers on ImageNet", batch_size=1),
        "resnet50": Preset(
            {"optimizer": "sgd", "lr": 2.5e-4, "weight_decay": 0.0}, _SOURCE + ": ResNet-50", batch_size=1
        ),
        "resnet26": Preset(
            {"optimizer": "sgd", "lr": 5e-3, "weight_decay": 0.0, "views": 32},
            _SOURCE + ": ResNet-26 on CIFAR-10",
            batch_size=1,
        ),
    },
)


@register("memo", _CARD)
class MEMO(EpisodicMethod, NormMethod):
    """One step for each image, from the original weights, on the marginal entropy over ``views`` AugMix views.

    The image itself is not among the views, but it is what is answered, after the step. Of given views [B, V, ...] the
    first is the image and the others are the views; a single one is both. Weights and optimiser begin anew with each
    image: the released code reloads the weights but not the moments of AdamW. Its SGD has no momentum.

    There is no published setting for CLIP. Here the norms of the image tower adapt, or with ``weights="all"`` all of
    its parameters, as in the paper; the optimiser is that of the paper's transformers.
    """

    mixes = True
    fill = (128.0, 0.0, 0.0)  # the released code names the colour 128, which Pillow takes for this red
    export_reason = "it adapts to every image anew and keeps nothing"

    lr: float = 1e-5  # learning rate
    optimizer: OptimizerName = "adamw"  # adam, adamw, or sgd without momentum
    weight_decay: float = 0.01  # weight decay of the optimiser
    weights: Literal["norms", "all"] = "norms"  # parameters of the image tower that adapt

    def prepare(self) -> None:
        self._require_not_negative("lr", "weight_decay")
        super().prepare()
        self.optim = Optimizer(self.optimizer, self.lr, self.weight_decay)
        if self.weights == "all":
            self._shell = copy.deepcopy(self.classifier.encoder)  # its parameters are replaced during a call

    @property
    def trainable(self) -> int:
        return len(self._find_start())

    def solve(self, images: Tensor, state: State, streams: Streams) -> tuple[Tensor, dict[str, Tensor]]:
        solved = [self._solve_image(views) for views in self._iterate_views(images, state, streams)]
        logits, losses = (torch.cat(part) for part in zip(*solved, strict=True))
        return logits, {"loss": losses, "stepped": logits.isfinite().all(1)}

    def _count_made(self) -> int:
        return self.views

    def _solve_image(self, views: Tensor) -> tuple[Tensor, Tensor]:
        """Return the image's logits [1, C] after the step, and the loss [1]."""
        start = self._find_start()
        with torch.enable_grad():
            row = start.clone().requires_grad_()
            loss = marginal_entropy(self._compare(views[1:] if len(views) > 1 else views, row))
            (gradient,) = torch.autograd.grad(loss, row)
        with torch.no_grad():
            return self._compare(views[:1], self._move(start, gradient)), loss.detach().view(1)

    def _move(self, start: Tensor, gradient: Tensor) -> Tensor:
        if self.optimizer == "sgd":  # without momentum
            return start - self.lr * (gradient + self.weight_decay * start)
        rows = start.unsqueeze(0)
        return self.optim.step(rows, gradient.unsqueeze(0), self.optim.begin(rows))[0][0]

    def _find_start(self) -> Tensor:
        """Return the original parameters [P] that adapt."""
        if self.weights == "norms":
            return self.bank.start
        values = [value.detach().flatten() for value in self.classifier.encoder.parameters()]
        return torch.cat([value.to(widen(value.dtype)) for value in values])  # a step of 1e-5 is lost in half precision

    def _compare(self, images: Tensor, row: Tensor) -> Tensor:
        """Return logits [n, C] with the parameters of the image tower in a row [P]."""
        if self.weights == "norms":
            index = torch.zeros(len(images), dtype=torch.int64, device=images.device)
            return self.tower.logits(images, row.unsqueeze(0), Streams(index[:1], index))
        own = dict(self.classifier.encoder.named_parameters())
        pieces = torch.split(row, [value.numel() for value in own.values()])
        given = {key: piece.view_as(own[key]).to(own[key].dtype) for key, piece in zip(own, pieces, strict=True)}
        raw = functional_call(self._shell, given, (images,))
        features = F.normalize(raw.to(self.classifier.prototypes.dtype), dim=-1)
        return self.classifier.logits(self.classifier.cosines(features))
