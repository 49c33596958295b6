"""CLIPArTT (Hakim et al. 2025): every image gets a caption of its likeliest classes, and learns to match it."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.bases.norms import NormMethod
from lmr.core.card import Card, Preset
from lmr.core.errors import LmrError
from lmr.core.functional.losses import match_captions
from lmr.core.log import LOGGER
from lmr.core.optim import Optimizer
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams

_SOURCE = "dosowiechi/CLIPArTT: CIFAR-10, CIFAR-100 and Tiny ImageNet"

_CARD = Card(
    label="CLIPArTT",
    source="Hakim et al. 2025",
    year=2025,
    presets={name: Preset({}, _SOURCE, batch_size=128) for name in ("default", "cifar10-c", "cifar100-c", "imagenet")},
)


@register("clipartt", _CARD)
class CLIPArTT(NormMethod):
    """Captions of the ``top`` classes of each image, and ``steps`` of Adam on how images and captions of a batch match.

    At every step the classes of an image are chosen again, and written as "a photo of a A or B or C", the likeliest
    first. The loss compares all images of the batch with all captions (``match_captions``). Every batch starts from the
    original norms and a fresh Adam, and is answered after the last step. Classes are chosen and images answered by the
    authors' own prompts, "a photo of a A" without a full stop, whatever the prompts of the classifier are.

    The authors' code leaves images out of a step whose largest probability is exactly 1, as it often is in half
    precision; here every image of the batch stays.

    ``captions="text"`` encodes prompts and captions. Where the model cannot read them, because the classifier has no
    text encoder or a vocabulary without "or", ``"mean"`` has the classifier's prototypes in place of the prompts, and
    their normalised means in place of the captions, which is not the published method; ``"auto"`` is the first that
    works; a warning says if it is the second.
    """

    memory_span = "batch"
    emission = "after"
    export_reason = "it starts from the original norms with every batch, so there is no adapted model to keep"

    lr: float = 1e-3  # learning rate of Adam
    top: int = 3  # classes in a caption
    steps: int = 10  # steps of Adam on a batch
    captions: Literal["auto", "text", "mean"] = "auto"  # encoded captions, or means of prototypes

    def prepare(self) -> None:
        self._require_count("top", "steps")
        self._require_not_negative("lr")
        super().prepare()
        self.optim = Optimizer("adam", self.lr)
        self.reads, self.prompts = self.captions != "mean", self.classifier.prototypes
        if self.reads:
            try:
                self.classifier.read_texts([_write(self.classifier.names[: self.top])])
                self.prompts = self.classifier.read_texts([_write([name]) for name in self.classifier.names])
            except LmrError as error:
                if self.captions == "text":
                    raise
                self.reads = False
                LOGGER.warning("clipartt uses means of prototypes in place of captions: %s", error)

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        learnt = self.learn(images, streams, self.bank.start.repeat(streams.count, 1))
        return self._answer_learnt(images, streams, learnt, self.prompts)

    def learn(self, images: Tensor, streams: Streams, norms: Tensor) -> tuple[Tensor, Tensor]:
        """Return the norms [A, P] to answer with, from ``norms`` [A, P] to start from, and the last losses [A]."""
        known: dict[tuple[int, ...], Tensor] = {}

        def loss(features: Tensor, _: int) -> Tensor:
            return match_captions(features, self._caption(features.detach(), known), self.classifier.logit_scale)

        (norms, _), losses = self._run_steps(images, streams, (norms, self.optim.begin(norms)), loss, self.steps)
        return norms, losses

    def _caption(self, features: Tensor, known: dict[tuple[int, ...], Tensor]) -> Tensor:
        """Return a unit caption [B, D] of each feature; those not ``known`` yet are encoded and added."""
        few = min(self.top, self.classifier.classes)
        chosen = self.classifier.cosines(features, self.prompts).topk(few, 1).indices
        if not self.reads:
            return F.normalize(self.prompts[chosen].mean(1), dim=-1)
        keys = [tuple(row) for row in chosen.tolist()]
        new = [key for key in dict.fromkeys(keys) if key not in known]
        if new:
            texts = [_write([self.classifier.names[c] for c in key]) for key in new]
            known.update(zip(new, self.classifier.read_texts(texts), strict=True))
        return torch.stack([known[key] for key in keys])


def _write(names: list[str] | tuple[str, ...]) -> str:
    return f"a photo of a {' or '.join(names)}"
