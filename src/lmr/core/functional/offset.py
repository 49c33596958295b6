"""An offset on the logits of a stream, fitted to a few labels, and the accuracy that these labels show.

Labels settle what answers alone cannot: is a class frequent, or does the model prefer it? The offset d [C] minimises

    sum_i [logsumexp(z_i + d) - (z_i + d)[y_i]] + |d - d0|^2 / (2 s^2)

for the logits z_i and the labels y_i of the labelled images. d0 is an offset for the mean answer to all images. The
problem is convex, and Newton's method solves it in float64 on the CPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

WIDTH = 1.0  # s: how far labels may move the offset from d0, in logits
HALF = 0.5  # the part of the offset towards the counted shares that enters d0
PSEUDO_LABELS = 50.0  # spread evenly over the classes and added to counted labels: few labels say little about shares
ENOUGH, FEWER_PSEUDO_LABELS = 20, 8.0  # labels of other domains that alone give d0, and the pseudo-labels then
ANSWERS = 1000  # images whose answers are enough to know the mean answer
MOST_FITTED = 2_000_000  # labels times classes to which an offset is fitted; of more labels, some in equal distances
_LOOSE = 100.0  # s where shares alone decide; it only keeps the problem well posed
_STEPS, _HALVINGS = 60, 40  # at most; a dozen Newton steps are usual
_PRECISE = 1e-10  # of the gradient, relative to the number of images
_LARGEST = 3e6  # the most numbers in the problems of one estimate; above it, labels are left out in five folds
_FOLDS = 5
_NORMAL = 1.959963984540054  # the 97.5 % quantile of the normal distribution


def learn_offset(
    logits: Tensor, labels: Tensor, answers: Tensor | None = None, elsewhere: Tensor | None = None
) -> Tensor:
    """Return the offset [C], float64, that ``labels`` [n] of images with ``logits`` [n, C] give.

    ``answers`` [m, C] are logits of images of the same domain, with or without labels. d0 is then between the offset
    that moves their mean answer to equal shares and half of that to the shares of the labels, nearer to the one that
    explains the labels better. Without ``answers``, as for a method that corrects its own bias, d0 is 0. ``elsewhere``
    [C] counts labels of images of other domains, which say something about these shares alone. Without labels of this
    domain the offset is half of that to these shares if there are at least 20 of them, else 0.
    """
    chosen = _spread(*logits.shape)
    everyone = torch.ones(1, len(chosen), dtype=torch.float64)
    return _learn(logits[chosen], labels[chosen], everyone, answers, elsewhere)[0]


def match_shares(answers: Tensor, shares: Tensor) -> Tensor:
    """Return the offsets [F, C], float64 with mean 0, that give the mean answer to ``answers`` [m, C] these ``shares``.

    ``shares`` [F, C] are positive.
    """
    shares, which = torch.unique(shares.double().cpu(), dim=0, return_inverse=True)  # many are equal
    counts = len(answers) * shares / shares.sum(1, keepdim=True)
    everyone = torch.ones(len(shares), len(answers), dtype=torch.float64)
    offset = _minimise(answers, everyone, counts, None, _LOOSE)
    return (offset - offset.mean(1, keepdim=True))[which]


@dataclass(frozen=True)
class Estimate:
    """An accuracy that labels show: the share of them that is answered right, with a 95 % interval."""

    right: int
    labels: int

    @property
    def accuracy(self) -> float:
        """The share of the labels that are answered right."""
        return self.right / self.labels

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the accuracy (Wilson 1927)."""
        n, share, z = self.labels, self.accuracy, _NORMAL
        middle = (share + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return max(0.0, middle - half), min(1.0, middle + half)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.accuracy:.0f} % ({100 * low:.0f} to {100 * high:.0f})"


def estimate_accuracy(
    logits: Tensor, labels: Tensor, answers: Tensor | None = None, elsewhere: Tensor | None = None
) -> Estimate:
    """Estimate the accuracy with the offset of ``learn_offset``: every label is judged by an offset learnt without it.

    Where there are many classes and labels, the labels are left out in five folds. Labels to which no offset is fitted
    because there are so many are judged by the offset of the others.
    """
    found = answer_held_out(logits, labels, answers, elsewhere)
    return Estimate(int((found == labels.cpu()).sum()), len(logits))


def answer_held_out(
    logits: Tensor, labels: Tensor, answers: Tensor | None = None, elsewhere: Tensor | None = None
) -> Tensor:
    """Return the classes [n] that labelled images get from offsets which were learnt without them.

    The arguments are those of ``estimate_accuracy``.
    """
    logits, labels, chosen = logits.double().cpu(), labels.cpu(), _spread(*logits.shape)
    found = torch.empty_like(labels)
    if len(chosen) < len(labels):
        found = (logits + learn_offset(logits, labels, answers, elsewhere)).argmax(1)
    found[chosen] = _answer_folds(logits[chosen], labels[chosen], answers, elsewhere)
    return found


def _spread(labels: int, classes: int) -> Tensor:
    """Return the numbers of the labels to which an offset is fitted."""
    return torch.linspace(0, labels - 1, min(labels, MOST_FITTED // classes), dtype=torch.float64).round().long()


def _answer_folds(logits: Tensor, labels: Tensor, answers: Tensor | None, elsewhere: Tensor | None) -> Tensor:
    """Return the classes [n] of labelled images, each by the offset that was learnt without its fold."""
    count, classes = logits.shape
    rows = count + (0 if answers is None else min(len(answers), ANSWERS))
    folds = count if count * rows * classes <= _LARGEST else _FOLDS
    fold = torch.arange(count) % folds
    weights = (fold.unsqueeze(0) != torch.arange(folds).unsqueeze(1)).double()
    offsets = _learn(logits, labels, weights, answers, elsewhere)
    return (logits + offsets[fold]).argmax(1)


def _learn(logits: Tensor, labels: Tensor, weights: Tensor, answers: Tensor | None, elsewhere: Tensor | None) -> Tensor:
    """Return the offsets [F, C] that are learnt with weights [F, n] of the labels."""
    classes = logits.shape[1]
    counts = weights @ F.one_hot(labels.cpu(), classes).double()
    start = None
    if answers is not None and len(answers):
        chosen = torch.linspace(0, len(answers) - 1, min(len(answers), ANSWERS)).round().long().to(answers.device)
        answers, known = answers[chosen], counts if elsewhere is None else counts + elsewhere.double().cpu()
        if len(logits):
            start = _start(logits, labels, weights, answers, known + PSEUDO_LABELS / classes)
        elif known.sum() >= ENOUGH:
            start = HALF * match_shares(answers, known + FEWER_PSEUDO_LABELS / classes)
    return _minimise(logits, weights, counts, start, WIDTH)


def _start(logits: Tensor, labels: Tensor, weights: Tensor, answers: Tensor, counted: Tensor) -> Tensor:
    """Return d0 [F, C]: the mean of two offsets, weighted by how likely they make the labels.

    The first is half of that which moves the mean answer to the ``counted`` shares [F, C]. It has seen the labels, so
    it is judged in five folds, by labels that it has not seen. The second moves the mean answer to equal shares.
    """
    z, labels, classes = logits.detach().double().cpu(), labels.cpu(), logits.shape[1]
    equal = match_shares(answers, torch.ones(1, classes))
    gain = torch.zeros(len(weights), dtype=torch.float64)  # of log likelihood, of the first over the second
    for k in range(min(_FOLDS, len(z))):
        own, some = labels[k::_FOLDS], weights[:, k::_FOLDS]
        first = HALF * match_shares(answers, counted - some @ F.one_hot(own, classes).double())
        likely = [
            (z[k::_FOLDS] + offset.unsqueeze(1)).log_softmax(2)[:, range(len(own)), own] for offset in (first, equal)
        ]
        gain += (some * (likely[0] - likely[1])).sum(1)
    share = gain.sigmoid().unsqueeze(1)
    return share * HALF * match_shares(answers, counted) + (1 - share) * equal


def _minimise(logits: Tensor, weights: Tensor, counts: Tensor, start: Tensor | None, width: float) -> Tensor:
    """Return the offsets [F, C] of F problems on the same logits [n, C].

    The problems have weights [F, n] of the images, label counts [F, C] and d0 = ``start`` [F, C] or [C].
    """
    z, counts = logits.detach().double().cpu(), counts.double().cpu()
    centre = torch.zeros(z.shape[1], dtype=torch.float64) if start is None else start.detach().double().cpu()
    stiffness = width**-2
    offset = centre.expand(len(weights), -1).clone()

    def measure(offset: Tensor) -> tuple[Tensor, Tensor]:
        shifted = z.unsqueeze(0) + offset.unsqueeze(1)
        fit = (weights * shifted.logsumexp(2)).sum(1) - (counts * offset).sum(1)
        return fit + stiffness * (offset - centre).square().sum(1) / 2, shifted

    value, shifted = measure(offset)
    for _ in range(_STEPS):
        shares = shifted.softmax(2)
        gradient = torch.einsum("fn,fnc->fc", weights, shares) - counts + stiffness * (offset - centre)
        if gradient.abs().max() <= _PRECISE * max(1, len(z)):
            break
        direction = _solve(shares, weights, stiffness, gradient)
        slope = (gradient * direction).sum(1)
        size = torch.ones_like(value)
        for _ in range(_HALVINGS):
            trial, _ = measure(offset - size.unsqueeze(1) * direction)
            short = trial <= value - 1e-4 * size * slope + 1e-12 * value.abs()
            if bool(short.all()):
                break
            size = torch.where(short, size, size / 2)
        offset = offset - size.unsqueeze(1) * direction
        value, shifted = measure(offset)
    return offset


def _solve(shares: Tensor, weights: Tensor, stiffness: float, gradient: Tensor) -> Tensor:
    """Return the Newton directions [F, C]: the inverse of the Hessian times the gradient.

    The Hessian is diagonal but for n products of shares [F, n, C] with themselves. Where there are fewer images than
    classes, the Woodbury identity leaves systems of n equations.
    """
    diagonal = torch.einsum("fn,fnc->fc", weights, shares) + stiffness
    rows = shares * weights.sqrt().unsqueeze(2)
    if shares.shape[1] >= shares.shape[2]:
        hessian = torch.diag_embed(diagonal) - rows.transpose(1, 2) @ rows
        exact: Tensor = torch.linalg.solve(hessian, gradient)
        return exact
    scaled = rows / diagonal.unsqueeze(1)
    inner = torch.eye(rows.shape[1], dtype=rows.dtype) - scaled @ rows.transpose(1, 2)
    plain = gradient / diagonal
    found = torch.linalg.solve(inner, (scaled @ gradient.unsqueeze(2)).squeeze(2))
    return plain + torch.einsum("fnc,fn->fc", scaled, found)
