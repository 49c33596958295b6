"""TPS, test-time prototype shifting (Sui et al. 2025): for each image, prototypes that its confident views agree on."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.bases.views import EpisodicMethod
from lmr.core.card import Card, Preset
from lmr.core.functional.losses import marginal_entropy
from lmr.core.functional.select import count_kept, rank_confident
from lmr.core.optim import Optimizer
from lmr.core.prediction import State
from lmr.core.registry import register
from lmr.core.streams import Streams

_SOURCE = "elaine-sui/TPS: the ImageNet family, views without AugMix"

_CARD = Card(
    source="Sui et al. 2025",
    year=2025,
    presets={
        "default": Preset({}, _SOURCE, batch_size=1),
        "imagenet": Preset({}, _SOURCE, batch_size=1),
        "fine-grained": Preset(
            {"lr": 1e-3, "augmix": True},
            "the port tta-vlm: fine-grained sets; views with AugMix as in elaine-sui/TPS",
            batch_size=1,
        ),
    },
)


@register("tps", _CARD)
class TPS(EpisodicMethod):
    """A shift of every prototype, learnt anew for each image on the entropy of the mean of its confident views.

    The prototypes are t + S, normalised, S zero at first. In every step the views of lowest entropy, a share ``keep``
    of them, are chosen again, and AdamW lowers the entropy of their mean probabilities along S. The answer is that of
    the image itself with the last prototypes. ``per_class=False`` learns one shift for all classes. With one step from
    zero every number of S moves by about ``lr``, and ``weight_decay`` does nothing.

    The image tower runs without gradient and the text tower not at all, so any prototypes will do. The authors' best
    ones are the mean of 80 templates and of descriptions by a language model, which are not part of this package.
    """

    lr: float = 5e-3  # learning rate of AdamW
    weight_decay: float = 0.01  # weight decay of AdamW
    keep: float = 0.1  # share of the views, the most confident ones, that enters the loss
    steps: int = 1  # steps of AdamW for an image
    per_class: bool = True  # a shift for each class, or one for all
    augmix: bool = False  # AugMix of the crops, as published for fine-grained sets

    def prepare(self) -> None:
        super().prepare()
        self._require_not_negative("lr", "weight_decay")
        self._require_count("steps")
        self._require_between(1e-9, 1, "keep")
        self.optim = Optimizer("adamw", self.lr, self.weight_decay)

    @property
    def trainable(self) -> int:
        classes, width = self.classifier.prototypes.shape
        return classes * width if self.per_class else width

    def solve(self, images: Tensor, state: State, streams: Streams) -> tuple[Tensor, dict[str, Tensor]]:
        solved = [self._solve_image(views) for views in self._encode_views(images, state, streams)]
        logits, losses = (torch.stack(part) for part in zip(*solved, strict=True))
        return logits, {"loss": losses, "stepped": logits.isfinite().all(1)}

    def _solve_image(self, views: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits [C] of the first of the views [V, D] after the last step, and the last loss."""
        shift = self.classifier.prototypes.new_zeros(1, self.trainable)
        moments, loss = self.optim.begin(shift), shift.new_zeros(())
        for _ in range(self.steps):
            with torch.no_grad():
                best = rank_confident(self._compare(views, shift))[: count_kept(len(views), self.keep)]
            with torch.enable_grad():
                shift.requires_grad_()
                loss = marginal_entropy(self._compare(views[best], shift))
                (gradient,) = torch.autograd.grad(loss, shift)
            shift, moments = self.optim.step(shift.detach(), gradient, moments)
        with torch.no_grad():
            return self._compare(views[:1], shift)[0], loss.detach()

    def _compare(self, views: Tensor, shift: Tensor) -> Tensor:
        """Return logits [V, C] of unit features [V, D] with the prototypes after a shift [1, C * D] or [1, D]."""
        text = self.classifier.prototypes
        prototypes = F.normalize(text + shift.view(-1, text.shape[1]), dim=1)
        return self.classifier.logits(self.classifier.cosines(views, prototypes))
