"""SubTTA (Zeng et al. 2026): align the main directions of the images with those of the texts, then separate in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lmr.core.bases.norms import NormMethod
from lmr.core.card import Card, Preset
from lmr.core.functional.losses import entropy
from lmr.core.gradients import vjp
from lmr.core.optim import Optimizer, OptimizerName
from lmr.core.prediction import State, Step
from lmr.core.registry import register
from lmr.core.streams import Streams, choose_rows

_SOURCE = "zhichenz98/SubTTA_EMNLP26"
_EPS = 1e-6  # added to divisors, and to the diagonal of a batch's covariance

_CARD = Card(
    label="SubTTA",
    source="Zeng et al. 2026",
    year=2026,
    presets={
        "default": Preset({}, _SOURCE + ": CIFAR-10-C", batch_size=200),
        "cifar10-c": Preset({}, _SOURCE, batch_size=200),
        "cifar100-c": Preset({"optimizer": "adam", "lr": 5e-4, "rank": 64, "momentum": 0.5}, _SOURCE, batch_size=200),
        "imagenet": Preset({"lr": 5e-4, "momentum": 0.5, "ent_scale": 3.0}, _SOURCE),
    },
)


@register("subtta", _CARD)
class SubTTA(NormMethod):
    """Two steps per batch: align the subspaces of images and texts, then a loss on the images in that of the texts.

    The text subspace is spanned by the main directions of the centred prototypes, at most ``rank``, the first left out
    with ``drop_first``. Of the covariance S = ``momentum`` G + (1 - momentum) S_batch as many main directions are
    taken, and the first step lowers minus the mean square of their projections on the text subspace, divided by
    1 - momentum. G is the last S, at first the covariance of the prototypes. The second step, of the same optimiser,
    is on features q, projected on the text subspace and normalised, with the pseudo-labels of q: ``loss="mint"`` lowers
    the variance within classes less that of all, "batclip" the mean cosine of two class means, "tent" the entropy of
    the softmax over the *coordinates* of ``ent_scale`` q; "source" takes no second step. The answer is that after
    both steps, without a projection. With a single class both class losses are 0. A single image has no covariance and
    takes no step. As in the authors' code ``momentum=0`` switches the alignment off.

    Unlike their code, gradients are cleared before every step: theirs adds what is left of the batch before, divided
    by the factor of a loss scaler where there is one. There are at most C - 1 main directions of C prototypes; their
    code also takes the next, which rounding decides. Of two classes the only direction is kept. The alignment does not
    change when all features shift, so in CLIP the gradient of the last bias is rounding noise, which Adam would make a
    step of ``lr``: it is set to 0, for every tower.
    """

    emission = "after"

    loss: Literal["mint", "tent", "batclip", "source"] = "mint"  # loss of the second step; "source": none
    lr: float = 1e-3  # learning rate
    optimizer: OptimizerName = "adamw"  # adam, adamw, or sgd with Nesterov momentum 0.9
    weight_decay: float = 0.01  # weight decay of the optimiser
    rank: int = 256  # directions of the text subspace, at most
    momentum: float = 0.1  # weight of the old covariance; 0: no alignment
    drop_first: bool = True  # leave out the first direction of texts and of images
    ent_scale: float = 0.05  # scale of the features whose softmax "tent" takes

    def prepare(self) -> None:
        self._require_not_negative("lr", "weight_decay", "ent_scale")
        self._require_count("rank", most=10**6)
        self._require_between(0, 1 - 1e-9, "momentum")
        super().prepare()
        self.optim = Optimizer(self.optimizer, self.lr, self.weight_decay)
        most = min(self.classifier.classes - 1, self.classifier.prototypes.shape[1])
        self.first = int(self.drop_first and most > 1)  # two prototypes have a single direction
        found = torch.linalg.svd(self._centre_prototypes(), full_matrices=False).Vh
        self.basis = found[self.first : min(most, self.first + self.rank)]

    def _centre_prototypes(self) -> Tensor:
        return self.classifier.prototypes - self.classifier.prototypes.mean(0)

    def begin(self) -> Mapping[str, Tensor | int]:
        """Return also the covariance [D, D] of the prototypes."""
        centred = self._centre_prototypes()
        return {**super().begin(), "covariance": centred.T @ centred / (len(centred) - 1 + _EPS)}

    def adapt(self, images: Tensor, state: State, streams: Streams) -> Step:
        several = streams.sizes > 1
        new, info = dict(state), {"stepped": several & (self.momentum > 0 or self.loss != "source")}
        if self.momentum > 0:
            gradient, info["alignment"], covariance = self._align(images, state, streams)
            new |= self.optim.descend(new, gradient, several)
            new["covariance"] = choose_rows(several, covariance, state["covariance"])
        if self.loss != "source":
            gradient, info["loss"], _ = self.tower.differentiate(
                images, new["norms"], streams, lambda features, _: self._measure(features)
            )
            new |= self.optim.descend(new, gradient, several)
        with torch.no_grad():
            return Step(self.answer(images, new, streams), new, info)

    def _align(self, images: Tensor, state: State, streams: Streams) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradient [A, P] of the alignment, its loss [A], and the new covariances [A, D, D]."""
        norms = state["norms"].detach().requires_grad_()
        with torch.enable_grad():
            raw = self.tower.encode(images, norms, streams)
        slope, losses, covariances = torch.zeros_like(raw), [], []
        for k in range(streams.count):
            loss, own, covariance = self._differentiate_alignment(streams.pick(raw.detach(), k), state["covariance"][k])
            slope[streams.index == k] = own
            losses.append(loss)
            covariances.append(covariance)
        gradient = vjp(raw, norms, slope)
        if (bias := self.bank.norms[-1].bias) is not None:
            gradient[:, bias] = 0
        return gradient, torch.stack(losses), torch.stack(covariances)

    def _differentiate_alignment(self, features: Tensor, old: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the alignment of features [n, D], its gradient along them, and the covariance [D, D] with them.

        With all eigenvectors W, K = W' B' B W of the basis B, and eigenvalues v, the gradient along the covariance is
        -W M W' / (r (1 - momentum)); M_ij is K_ij over the chosen eigenvalue less the other where exactly one of i and
        j is chosen. Automatic differentiation would divide by the gaps of all pairs, and most are 0 in small batches.
        """
        r, width = self.basis.shape
        centred, divisor = features - features.mean(0), len(features) - 1 + _EPS
        unit = torch.eye(width, dtype=features.dtype, device=features.device)
        fresh = centred.T @ centred / divisor + _EPS * unit
        covariance = self.momentum * old + (1 - self.momentum) * fresh
        values, vectors = torch.linalg.eigh(
            covariance.nan_to_num(0.0, 0.0, 0.0)
        )  # a step that is not finite is refused
        place = torch.arange(width, device=features.device)  # eigenvalues rise
        last = width - self.first
        chosen = ((place >= last - r) & (place < last)).to(features.dtype)
        seen = self.basis @ vectors
        overlap = seen.T @ seen
        gap = (chosen.unsqueeze(1) - chosen) * (values.unsqueeze(1) - values)
        equal = gap.abs() <= 10 * torch.finfo(gap.dtype).eps * values.abs().max()  # as far as rounding can tell
        mixed = vectors @ torch.where(equal, 0, overlap / gap) @ vectors.T
        loss = -(overlap.diagonal() * chosen).sum() / (r * (1 - self.momentum))
        return loss, -2 / (r * divisor) * centred @ mixed, covariance

    def _measure(self, features: Tensor) -> Tensor:
        """Return the second loss of a stream's features [n, D]."""
        q = F.normalize(features @ self.basis.T @ self.basis, dim=1)
        if self.loss == "tent":
            return entropy(self.ent_scale * q).mean()
        labels = self.classifier.cosines(q.detach()).argmax(1)
        member = F.one_hot(labels, self.classifier.classes).to(q.dtype)
        counts = member.sum(0)
        present, means = counts.count_nonzero(), member.T @ q / counts.clamp(min=1).unsqueeze(1)
        if self.loss == "mint":
            within, whole = (q - means[labels]).square().sum(1).mean(), (q - q.mean(0)).square().sum(1).mean()
            return (within - whole) * (present > 1)
        unit = F.normalize(means, dim=1)
        pairs = (present * (present - 1)).clamp(min=1)
        return (unit.sum(0).square().sum() - unit.square().sum()) / pairs * (present > 1)
