"""EATA (Niu et al. 2022): ETA with a penalty that keeps what matters on clean images near its start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.card import Card, Preset
from lmr.core.errors import LmrError
from lmr.core.log import LOGGER
from lmr.core.method import Ranges
from lmr.core.optim import Optimizer
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import StreamIds, Streams
from lmr.methods.eta import ETA

_PAPER = "LMR paper, appendix, Baseline implementation details (ETA)"
_PORT = "mariodoebler/test-time-adaptation"
_OFFICIAL = "mr-eggplant/EATA: ImageNet-C"

_CARD = Card(
    source="Niu et al. 2022",
    year=2022,
    presets={
        "default": Preset({}, f"learning rate and diversity of the {_PAPER}; penalty of {_OFFICIAL}", batch_size=200),
        "cifar10-c": Preset(
            {"diversity": 0.4, "fisher": 1.0},
            f"learning rate of the {_PAPER}; diversity and penalty of {_PORT}: CIFAR-10-C",
            batch_size=200,
        ),
        "cifar100-c": Preset(
            {"diversity": 0.1, "fisher": 1.0},
            f"learning rate of the {_PAPER}; diversity and penalty of {_PORT}: CIFAR-100-C",
            batch_size=200,
        ),
        "imagenet": Preset({"optimizer": "sgd", "nesterov": False, "fisher": 2000.0}, _OFFICIAL, batch_size=64),
    },
    source_images=2000,
)


@register("eata", _CARD)
class EATA(ETA):
    """ETA's step with a penalty on changes of the parameters that matter most on clean images.

    The penalty is ``fisher`` times the sum of F (norm - start)^2 over all parameters. F is measured once on clean
    images, before the stream, by ``method.fit_source(batches)``, which a bench calls. It is the mean over the batches
    of the squared gradient of the batch's mean cross-entropy to the model's own labels, so it depends on the size of
    the batches (64, of 2000 images, in the authors' code). It is part of the state: saved, loaded, and kept by
    ``reset``. Without it there is no penalty, a step is ETA's, and the log says so once.

    Without a diverse sample there is no step, also not of the penalty. The authors' SGD has no Nesterov term
    (``nesterov``). Of their weights for the penalty, 2000 is for ImageNet and 1 for CIFAR.
    """

    fisher: float = 2000.0  # weight of the penalty
    nesterov: bool = True  # Nesterov momentum of SGD

    def prepare(self) -> None:
        super().prepare()
        self._require_not_negative("fisher")
        self.optim = Optimizer(self.optimizer, self.lr, self.weight_decay, nesterov=self.nesterov)
        self._warned = False

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return also the Fisher values: zeros before they are estimated."""
        return {**super().begin(), "fisher": torch.zeros_like(self.bank.start)}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        return super().ranges(state) | {"fisher": (0, None)}

    def fit_source(self, batches: Iterable[Tensor | Sequence[Tensor]]) -> None:
        """Measure F on batches of clean images, or on tuples that begin with one, as a DataLoader gives them.

        All streams get the same values; the tower is used with its own norms.
        """
        with self.session():
            total, count = torch.zeros_like(self.bank.start), 0
            for given in batches:
                images = given if isinstance(given, Tensor) else given[0]
                self.classifier.check(images)
                images, batch = self.check(images, [0] * len(images))
                gradient, *_ = self.tower.sum_gradients(images, self.bank.start.unsqueeze(0), batch, _own_label_loss)
                total, count = total + (gradient[0] / len(images)).square(), count + 1
            if not count or not bool(total.isfinite().all()):
                raise LmrError("Expected batches of clean images with finite gradients to estimate Fisher values.")
            self.state["fisher"] = (total / count).repeat(self.streams, 1)

    def reset(self, streams: StreamIds = None) -> None:
        """Return all streams, or the named ones, to their start; the Fisher values stay."""
        with self.session():
            kept = self.state["fisher"].clone()
            super().reset(streams)
            self.state["fisher"] = kept

    def _penalise(self, state: State) -> tuple[Tensor, Tensor]:
        moved = state["norms"] - self.bank.start
        weighted = self.fisher * state["fisher"] * moved
        return (weighted * moved).sum(1), 2 * weighted

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        if not self._warned and self.fisher and not bool(state["fisher"].any()):
            LOGGER.warning(
                "eata has no Fisher values, so its step is that of eta; call method.fit_source(batches) with "
                "clean images before the stream."
            )
            self._warned = True
        return super().adapt(images, state, streams)


def _own_label_loss(logits: Tensor, index: Tensor) -> tuple[Tensor]:
    return (F.cross_entropy(logits, logits.detach().argmax(1), reduction="none"),)
