"""MINT (Bao et al. 2025): move the norms so that the class means separate, and let the text prototypes follow them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.batch import FrozenAnswer
from lmr.core.errors import LmrError
from lmr.core.functional.by_stream import choose_rows
from lmr.core.gradient import NormMethod
from lmr.core.method import COUNTS, UNIT, Mix, Prediction, Preset, Ranges
from lmr.core.registry import register
from lmr.core.traits import Passes

_SOURCE = "LMR paper, appendix, Baseline implementation details"


@register("mint")
class MINT(NormMethod):
    """Larger variance between pseudo-classes: one step from the original norms per batch, prototypes mixed with means.

    Neither weights nor an optimiser are kept between batches. The stream remembers the mean feature and the count of
    every pseudo-class before the step (pre) and after it (post), and the average gradient of all its batches. A batch
    joins the pre means first; they are constants in its loss, whose gradient joins the average; a fresh Adam's first
    step along it, norms - lr g / (|g| + 1e-8), moves every parameter by about ``lr`` whatever the scale of the loss.
    Seen through those norms the batch joins the post means, its pseudo-classes again those of the frozen text; the
    answer is the one after the step, by prototypes normalise((1 - rho) text + rho mean), rho = n / (prior + n) for n
    images so far, the mean of an unseen class 0. Within a batch every present class has equal weight, while means are
    the stream's. There is no weight decay: in a step of signs it would outweigh the data.

    ``predict`` answers with the present state: the original norms moved along the present average gradient,
    the text mixed with the present post means; before the first step that is the zero-shot classifier.
    """

    source = "Bao et al. 2025"
    year = 2025
    in_paper = True
    needs_images = False
    emission = "after"
    many_streams = True
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
        smallest = torch.finfo(self.classifier.prototypes.dtype).tiny
        if not smallest <= self.prior < float("inf"):
            raise LmrError(f"Expected 'prior' of mint to be finite and above 0, got {self.prior}.")
        super().prepare()

    def count_passes(self, learning: float = 1.0) -> Passes:
        return Passes(forwards=2, backwards=1)

    def begin(self, streams: int) -> dict[str, Tensor]:
        prototypes = self.classifier.prototypes
        counts = torch.zeros(streams, len(prototypes), dtype=torch.int64, device=prototypes.device)
        means = prototypes.new_zeros(streams, *prototypes.shape)
        gradient = torch.zeros_like(self.bank.start).repeat(streams, 1)
        state = {"batches": counts[:, 0].clone(), "gradient": gradient, "pre_means": means, "pre_counts": counts}
        return state | {"post_means": means.clone(), "post_counts": counts.clone()}

    def ranges(self, state: Mapping[str, Tensor]) -> Ranges:
        own: Ranges = {
            "batches": COUNTS,
            "pre_means": UNIT,
            "pre_counts": COUNTS,
            "post_means": UNIT,
            "post_counts": COUNTS,
        }
        return super().ranges(state) | own

    def adapt(self, images: Tensor, mix: Mix) -> Prediction:
        old, norms = self.take(mix), self.bank.start.repeat(mix.count, 1).requires_grad_()
        with torch.enable_grad():
            features = self.image_features(images, norms, mix.index)
            labels = self._label(features.detach())
            means, counts = _join(old["pre_means"], old["pre_counts"], features.detach(), labels, mix)
            loss = -_spread(features, labels, means, counts, mix)
            (gradient,) = torch.autograd.grad(loss.sum(), norms)
        loss = loss.detach()
        del features  # the memory of the first forward serves the second
        batches = old["batches"] + 1
        gradient = old["gradient"].lerp(gradient, 1 / batches.unsqueeze(1).to(gradient.dtype))
        new = {"pre_means": means, "pre_counts": counts, "batches": batches, "gradient": gradient}
        with torch.no_grad():
            moved = self._move(gradient)
            features = self.image_features(images, moved, mix.index)
            seen = _join(old["post_means"], old["post_counts"], features, self._label(features), mix)
            new["post_means"], new["post_counts"] = seen
            logits = self._score(features, *seen, mix)
            stepped = self.find_sound(new | {"norms": moved}) & mix.all(logits.isfinite().all(1))
            if not bool(stepped.all()):
                logits = torch.where(stepped[mix.index].unsqueeze(1), logits, self.answer(images, mix))
        self.put({key: choose_rows(stepped, value, old[key]) for key, value in new.items()}, mix)
        count = self.take(mix, "post_counts")["post_counts"].sum(1).cpu().double()
        classes = torch.tensor([len(set(labels[mix.index == k].tolist())) for k in range(mix.count)])
        report = {"loss": loss, "classes": classes, "rho": count / (self.prior + count), "stepped": stepped}
        return Prediction(logits, self.summarise(report, mix))

    def answer(self, images: Tensor, mix: Mix) -> Tensor:
        rows = self.take(mix)
        features = self.image_features(images, self._move(rows["gradient"]), mix.index)
        return self._score(features, rows["post_means"], rows["post_counts"], mix)

    def settle(self, stream: int) -> FrozenAnswer:
        norms = self.name_norms(self._move(self.state["gradient"][stream]))
        mixed = self._mix(self.state["post_means"][stream], self.state["post_counts"][stream].sum())
        return FrozenAnswer(mixed, None, norms, from_prompts=False)

    def _label(self, features: Tensor) -> Tensor:
        return self.classifier.cosines(features).argmax(1)

    def _move(self, gradient: Tensor) -> Tensor:
        """The original norms after the first step of Adam along the gradient: [A, P]."""
        return self.bank.start - self.lr * gradient / (gradient.abs() + 1e-8)

    def _score(self, features: Tensor, means: Tensor, counts: Tensor, mix: Mix) -> Tensor:
        """Logits by the mixed prototypes."""
        mixed = self._mix(means, counts.sum(1).view(-1, 1, 1))
        if mix.count == 1:
            return self.classifier.logits(features @ mixed[0].T)
        cosines = features.new_empty(len(features), len(self.classifier.prototypes))
        for k in range(mix.count):
            own = mix.index == k
            cosines[own] = features[own] @ mixed[k].T
        return self.classifier.logits(cosines)

    def _mix(self, means: Tensor, count: Tensor) -> Tensor:
        """Text and means [..., C, D] mixed; as only the direction counts, both parts are divided by 1 - rho."""
        return F.normalize(self.classifier.prototypes + count.to(means.dtype) / self.prior * means, dim=-1)


def _join(means: Tensor, counts: Tensor, features: Tensor, labels: Tensor, mix: Mix) -> tuple[Tensor, Tensor]:
    """Class means [A, C, D] and counts [A, C] after adding a batch [B, D] of labelled features."""
    place = mix.index * counts.shape[1] + labels
    fresh = torch.bincount(place, minlength=counts.numel()).view_as(counts)
    sums = torch.zeros_like(means).flatten(0, 1).index_add(0, place, features).view_as(means)
    counts = counts + fresh
    return means + (sums - fresh.unsqueeze(2) * means) / counts.clamp(min=1).unsqueeze(2), counts


def _spread(features: Tensor, labels: Tensor, means: Tensor, counts: Tensor, mix: Mix) -> Tensor:
    """Variance between classes, total less within: sum of w (|z - all|^2 - |z - own|^2) with constant means, [A].

    Written as w (2 z - own - all) (own - all). With a single class, own and all are equal to the bit, and
    the gradient is exactly 0: no noise for a step of signs. The weights w give each class of this batch the same total.
    """
    present = torch.bincount(mix.index * counts.shape[1] + labels, minlength=counts.numel()).view_as(counts)
    weight = 1 / (present.count_nonzero(1)[mix.index] * present[mix.index, labels]).to(features.dtype)
    shares = counts.to(means.dtype) / counts.sum(1, keepdim=True)
    own, everything = means[mix.index, labels], (shares.unsqueeze(1) @ means).squeeze(1)[mix.index]
    return mix.sum(weight * ((2 * features - own - everything) * (own - everything)).sum(1))
