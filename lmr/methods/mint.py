"""MINT (Bao et al. 2025): move the norms so that the classes' means part, and let the text prototypes follow them."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.errors import LmrError
from lmr.core.method import Method, Mix, Prediction, Preset
from lmr.core.norms import NormBank
from lmr.core.registry import register
from lmr.core.traits import Passes, Tower

_SOURCE = "LMR paper, appendix, Baseline implementation details"


@register("mint")
class MINT(Method):
    """Larger variance between pseudo-classes: one step from the original norms per batch, prototypes mixed with means.

    No weights and no optimiser are carried on. The stream remembers the mean feature and the count of every
    pseudo-class before the step (pre) and after it (post), and the average gradient of all its batches. A batch joins
    the pre means first; they are constants in its loss, whose gradient joins the average; a fresh Adam's first step
    along it, norms - lr g / (|g| + 1e-8), moves every number by about ``lr`` whatever the scale of the loss. Seen
    through those norms the batch joins the post means, its pseudo-classes again those of the frozen text; the answer
    is the one after the step, by prototypes normalise((1 - rho) text + rho mean), rho = n / (prior + n) for n images so
    far, the mean of an unseen class 0. Within a batch every present class has equal weight, while means are the
    stream's. There is no weight decay: in a step of signs it would outweigh the data.

    ``predict`` answers with what the stream has gathered: the original norms moved along the present average gradient,
    the text mixed with the present post means; before the first step that is the zero-shot classifier.
    """

    source = "Bao et al. 2025"
    year = 2025
    towers = (Tower.IMAGE,)
    emission = "after"
    presets: ClassVar[dict[str, Preset]] = {
        "default": Preset({}, _SOURCE + ": all benchmarks"),
        "cifar10-c": Preset({"lr": 7e-3, "prior": 10000.0}, _SOURCE),
        "cifar100-c": Preset({"lr": 7e-3, "prior": 10000.0}, _SOURCE),
        "imagenet": Preset({"lr": 7e-3, "prior": 10000.0}, _SOURCE),
    }

    lr: float = 7e-3
    prior: float = 10000.0  # how many images the text is worth

    def prepare(self) -> None:
        self._require_not_negative("lr")
        if not 0 < self.prior < float("inf"):
            raise LmrError(f"Expected 'prior' of mint to be finite and above 0, got {self.prior}.")
        self.bank = NormBank(self.classifier.encoder)

    @property
    def trainable(self) -> int:
        return self.bank.size

    def count_passes(self, learning: float = 1.0) -> Passes:
        return Passes(forwards=2, backwards=1)

    def begin(self, streams: int) -> dict[str, Tensor]:
        prototypes = self.classifier.prototypes
        counts = torch.zeros(streams, len(prototypes), dtype=torch.int64, device=prototypes.device)
        means = prototypes.new_zeros(streams, *prototypes.shape)
        gradient = torch.zeros_like(self.bank.start).repeat(streams, 1)
        state = {"batches": counts[:, 0].clone(), "gradient": gradient, "pre_means": means, "pre_counts": counts}
        return state | {"post_means": means.clone(), "post_counts": counts.clone()}

    def adapt(self, images: Tensor, mix: Mix) -> Prediction:
        old, norms = self.state, self.bank.start.repeat(1, 1).requires_grad_()
        with torch.enable_grad():
            features = self._see(images, norms)
            labels = self._label(features.detach())
            means, counts = _join(old["pre_means"], old["pre_counts"], features.detach(), labels)
            loss = -_spread(features, labels, means[0], counts[0])
        new = {"pre_means": means, "pre_counts": counts, "batches": old["batches"] + 1}
        new["gradient"] = old["gradient"].lerp(torch.autograd.grad(loss, norms)[0], 1 / new["batches"].item())
        with torch.no_grad():
            features = self._see(images, self._move(new["gradient"]))
            seen = _join(old["post_means"], old["post_counts"], features, self._label(features))
            new["post_means"], new["post_counts"] = seen
            logits = self._score(features, *seen)
            stepped = all(bool(value.isfinite().all()) for value in (logits, *new.values()))
            if stepped:
                self._replace(new, mix.active)
            else:
                logits = self.answer(images, mix)
        count = int(self.state["post_counts"].sum())
        info = {"loss": loss.item(), "classes": len(set(labels.tolist())), "rho": count / (self.prior + count)}
        return Prediction(logits, info | {"stepped": stepped})

    def answer(self, images: Tensor, mix: Mix) -> Tensor:
        features = self._see(images, self._move(self.state["gradient"]))
        return self._score(features, self.state["post_means"], self.state["post_counts"])

    def _see(self, images: Tensor, norms: Tensor) -> Tensor:
        with self.bank.serve(norms):
            return self.classifier.features(images)

    def _label(self, features: Tensor) -> Tensor:
        return self.classifier.cosines(features).argmax(1)

    def _move(self, gradient: Tensor) -> Tensor:
        """The original norms [1, P] after the first step of Adam along the gradient [1, P]."""
        return self.bank.start - self.lr * gradient / (gradient.abs() + 1e-8)

    def _score(self, features: Tensor, means: Tensor, counts: Tensor) -> Tensor:
        """Logits by the mixed prototypes; as only their direction counts, both parts are divided by 1 - rho."""
        mixed = F.normalize(self.classifier.prototypes + int(counts.sum()) / self.prior * means[0], dim=-1)
        return self.classifier.logits(features @ mixed.T)


def _join(means: Tensor, counts: Tensor, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Class means [1, C, D] and counts [1, C] with a batch [B, D] of labelled features among them."""
    member = F.one_hot(labels, counts.shape[1])
    fresh = member.sum(0)
    sums = member.T.to(features.dtype) @ features
    counts = counts + fresh
    return means + (sums - fresh.unsqueeze(1) * means) / counts.clamp(min=1).unsqueeze(2), counts


def _spread(features: Tensor, labels: Tensor, means: Tensor, counts: Tensor) -> Tensor:
    """Variance between classes, total less within: sum of w (|z - all|^2 - |z - own|^2) with constant means.

    Written as w (2 z - own - all) (own - all). Where one class is all there is, own and all are equal to the bit: the
    gradient is an exact 0, no noise for a sign step. The weights w give each class of this batch the same total.
    """
    present = labels.bincount()
    weight = 1 / (present.count_nonzero() * present[labels]).to(features.dtype)
    own, everything = means[labels], counts.to(means.dtype) / counts.sum() @ means
    between: Tensor = (weight * ((2 * features - own - everything) * (own - everything)).sum(1)).sum()
    return between
