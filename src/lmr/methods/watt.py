"""WATT (Osowiechi et al. 2024): adapt with several templates and average the weights they lead to."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.bases.norms import NormMethod
from lmr.core.card import Card, Preset
from lmr.core.errors import LmrError
from lmr.core.functional.losses import follow_labels, match_captions
from lmr.core.log import LOGGER
from lmr.core.optim import Optimizer
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams

TEMPLATES = (
    "a photo of a {}",
    "itap of a {}",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
_SOURCE = "Mehrdad-Noori/WATT: WATT-S"

_CARD = Card(
    source="Osowiechi et al. 2024",
    year=2024,
    presets={
        "default": Preset({}, _SOURCE + ", CIFAR", batch_size=128),
        "cifar10-c": Preset({"lr": 1e-3}, _SOURCE + ", CIFAR", batch_size=128),
        "cifar100-c": Preset({"lr": 1e-3}, _SOURCE + ", CIFAR", batch_size=128),
        "imagenet": Preset({"lr": 1e-4}, _SOURCE + ", other datasets", batch_size=128),
    },
)


@register("watt", _CARD)
class WATT(NormMethod):
    """Weight averaging over eight templates: each leads ``inner`` steps away, the mean of the ends is the next start.

    A template gives every image the prompt of its nearest class; the loss compares all images of the batch with all
    these prompts (``match_captions``). In a round every template takes ``inner`` steps of Adam, and the norms after
    each are averaged; ``rounds`` rounds make the answer, by the mean of the templates' prototypes. In mode "s" a
    template continues from the one before, and Adam begins with the batch. In mode "p" each starts where the round did;
    Adam begins anew with every template of the first round and then never, as in the authors' code. Their scripts for
    "p" have 50 rounds, their default is 5. Every batch starts from the original norms.

    The prompts are the eight templates with the names of the classes, not the classifier's own. Templates with a word
    that the model does not know are left out, and the log tells which; a classifier without a text encoder has
    its own prototypes as the only template. Neither is the published method.
    """

    memory_span = "batch"
    emission = "after"
    export_reason = "it starts from the original norms with every batch, so there is no adapted model to keep"

    lr: float = 1e-3  # learning rate of Adam
    mode: Literal["s", "p"] = "s"  # templates one after the other, or each from the start of the round
    inner: int = 2  # steps of a template in a round
    rounds: int = 5  # rounds on a batch

    def prepare(self) -> None:
        self._require_count("inner", "rounds")
        self._require_not_negative("lr")
        super().prepare()
        self.optim = Optimizer("adam", self.lr)
        self.prompts = self._encode_templates()  # [templates, C, D]
        self.mean = F.normalize(self.prompts.mean(0), dim=-1)

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        learnt = self.learn(images, streams, self.bank.start.repeat(streams.count, 1))
        return self._answer_learnt(images, streams, learnt, self.mean)

    def learn(self, images: Tensor, streams: Streams, norms: Tensor) -> tuple[Tensor, Tensor]:
        """Return the norms [A, P] to answer with, from ``norms`` [A, P] to start from, and the last losses [A]."""
        moments, losses = self.optim.begin(norms), norms
        for number in range(self.rounds):
            rows, ends = (norms, moments), []
            for prompts in self.prompts:
                if self.mode == "p":
                    rows = norms, self.optim.begin(norms) if number == 0 else rows[1]

                def loss(features: Tensor, _: int, prompts: Tensor = prompts) -> Tensor:
                    return match_captions(features, follow_labels(features, prompts), self.classifier.logit_scale)

                rows, losses = self._run_steps(images, streams, rows, loss, self.inner)
                ends.append(rows[0])
            norms, moments = torch.stack(ends).mean(0), rows[1]
        return norms, losses

    def _encode_templates(self) -> Tensor:
        found, unread = [], {}
        for template in TEMPLATES:
            try:
                found.append(
                    self.classifier.read_texts([template.replace("{}", name) for name in self.classifier.names])
                )
            except LmrError as error:
                unread[template] = error
        if unread:
            message = ", ".join(map(repr, unread)) if found else "all templates and has the classifier's own prompts"
            LOGGER.warning("watt leaves out %s: %s", message, next(iter(unread.values())))
        return torch.stack(found) if found else self.classifier.prototypes.unsqueeze(0)
