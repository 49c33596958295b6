"""LMR once more, slowly: one stream in float64, plain Python sums over samples and classes, nothing of the library.

Written from the equations only. The encoder is a function of the images and of a list of norms [(weight, bias), ...];
the gradient of the loss on the logits is the paper's closed form, carried to the norms by the chain rule, and Adam is
spelled out. ``step_by_autograd`` differentiates the loss itself instead, as a second opinion on the closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Norms = list[tuple[Tensor, Tensor]]


def normalise(x: Tensor, norm: tuple[Tensor, Tensor], eps: float = 1e-5) -> Tensor:
    """LayerNorm over the last axis, written out."""
    mean = x.sum(-1, keepdim=True) / x.shape[-1]
    variance = ((x - mean) ** 2).sum(-1, keepdim=True) / x.shape[-1]
    return (x - mean) / torch.sqrt(variance + eps) * norm[0] + norm[1]


class Tower(nn.Module):
    """A small image tower with four LayerNorms: images [B, 3, 6] to features [B, 10].

    ``sideways`` lets the norms see [tokens, batch, width], as some towers do.
    """

    def __init__(self, sideways: bool = False) -> None:
        super().__init__()
        self.sideways = sideways
        self.embed = nn.Linear(6, 8)
        self.place = nn.Parameter(0.3 * torch.randn(3, 8))
        self.ln_pre, self.ln_1, self.ln_2, self.ln_post = (nn.LayerNorm(8) for _ in range(4))
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.projection = nn.Parameter(torch.randn(8, 10))
        for norm in (self.ln_pre, self.ln_1, self.ln_2, self.ln_post):
            nn.init.normal_(norm.weight, 1.0, 0.2)
            nn.init.normal_(norm.bias, 0.0, 0.2)

    def forward(self, images: Tensor) -> Tensor:
        x = self._turn(self.embed(images) + self.place)
        x = self.ln_pre(x)
        q, k, v = self._turn(self.qkv(self.ln_1(x))).chunk(3, -1)
        x = x + self._turn(self.out((q @ k.transpose(1, 2) / 8**0.5).softmax(-1) @ v))
        x = x + self.down(torch.tanh(self.up(self.ln_2(x))))
        return self.ln_post(self._turn(x).mean(1)) @ self.projection

    def _turn(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1) if self.sideways else x

    @property
    def norms(self) -> Norms:
        return [(norm.weight, norm.bias) for norm in (self.ln_pre, self.ln_1, self.ln_2, self.ln_post)]


def write_out(tower: Tower) -> Callable[[Tensor, Norms], Tensor]:
    """The same tower as a float64 function of images and norms, without a module in it."""
    frozen = {name: value.detach().double() for name, value in tower.state_dict().items()}

    def project(x: Tensor, name: str) -> Tensor:
        return torch.einsum("...i,oi->...o", x, frozen[f"{name}.weight"]) + frozen[f"{name}.bias"]

    def encode(images: Tensor, norms: Norms) -> Tensor:
        x = normalise(project(images, "embed") + frozen["place"], norms[0])
        mixed = project(normalise(x, norms[1]), "qkv")
        q, k, v = mixed[..., :8], mixed[..., 8:16], mixed[..., 16:]
        attention = torch.exp(torch.einsum("bid,bjd->bij", q, k) / math.sqrt(8))
        attention = attention / attention.sum(-1, keepdim=True)
        x = x + project(torch.einsum("bij,bjd->bid", attention, v), "out")
        x = x + project(torch.tanh(project(normalise(x, norms[2]), "up")), "down")
        return torch.einsum("bi,io->bo", normalise(x.sum(1) / 3, norms[3]), frozen["projection"])

    return encode


def softmax(row: Sequence[float]) -> list[float]:
    """Probabilities of one row of logits."""
    top = max(row)
    powers = [math.exp(value - top) for value in row]
    return [power / sum(powers) for power in powers]


def weigh_log_sum(values: Sequence[float], weights: Sequence[float]) -> float:
    """log of the weighted sum of exp(values)."""
    top = max(values)
    return top + math.log(sum(w * math.exp(v - top) for v, w in zip(values, weights, strict=True)))


def soften(x: float) -> float:
    """softplus(x) = log(1 + exp(x))."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def squash(x: float) -> float:
    """The logistic sigmoid."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


@dataclass
class Sample:
    """What one image of a batch says before the step."""

    label: int
    protected: list[int]
    alpha: list[float]
    negatives: list[int]
    margin: float | None
    weight: float
    slack: float


@dataclass
class Reference:
    """One stream of LMR from its first batch on."""

    encode: Callable[[Tensor, Norms], Tensor]
    norms: Norms
    prototypes: Tensor
    scale: float = 100.0
    lr: float = 1e-3
    delta: float = 0.03
    negatives: int = 5
    tau: float = 0.3
    gamma0: float = 4.0
    beta: float = 1.0
    eta: float = 0.05
    mu: float = 0.8
    clip: float = 2.0
    eps: float = 1e-6
    pmr: bool = True
    am: bool = True
    bc: bool = True
    positives: str = "gap"
    emit: str = "after"
    pace: str = "batch"
    share: float = 1.0
    prior: Any = "uniform"
    step_by_autograd: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.norms = [(w.detach().double().clone(), b.detach().double().clone()) for w, b in self.norms]
        self.start = self.flat
        wide = self.prototypes.double()
        self.prototypes = wide / torch.sqrt((wide**2).sum(1, keepdim=True))
        self.classes = len(self.prototypes)
        self.shares = self.read_shares()
        self.mass = [0.0] * self.classes
        self.bias = [0.0] * self.classes
        self.running: list[float] | None = None
        self.predicted = [0] * self.classes
        self.steps = 0
        self.images = 0
        self.waiting = 0  # images since the last step, at most 64 or those of the present batch
        self.time = 0.0  # steps taken, in usual steps
        self.first = [torch.zeros_like(t) for t in self.parameters]
        self.second = [torch.zeros_like(t) for t in self.parameters]

    def read_shares(self) -> list[float]:
        """Shares of all classes with sum 1; none below a thousandth of an even share before the last division."""
        if self.prior == "uniform":
            return [1 / self.classes] * self.classes
        floor = 0.001 / self.classes
        raised = [max(number / math.fsum(self.prior), floor) for number in self.prior]
        return [number / math.fsum(raised) for number in raised]

    @property
    def parameters(self) -> list[Tensor]:
        return [t for norm in self.norms for t in norm]

    @property
    def flat(self) -> Tensor:
        return torch.cat([t.flatten() for t in self.parameters])

    def score(self, images: Tensor, norms: Norms) -> Tensor:
        """Logits, not corrected."""
        features = self.encode(images.double(), norms)
        unit = features / torch.sqrt((features**2).sum(1, keepdim=True))
        return self.scale * (unit @ self.prototypes.T)

    def pick(self, count: int) -> list[int]:
        """The images of a batch that teach: a share of them, rounded up, evenly spaced, the last one among them."""
        wanted = math.ceil(round(self.share * count, 6))
        return [k for k in range(count) if (k + 1) * wanted // count > k * wanted // count]

    def examine(self, logits: Sequence[float]) -> Sample:
        """Steps 1 to 4: protected classes, their weights, hard negatives, margin, gate."""
        cosines = [value / self.scale for value in logits]
        label = max(range(self.classes), key=lambda c: cosines[c])
        posterior = softmax(logits)
        if self.positives == "top1":
            protected = [label]
        else:
            protected = [c for c in range(self.classes) if cosines[c] >= cosines[label] - self.delta]
        share = sum(posterior[c] for c in protected) + self.eps
        alpha = [posterior[c] / share for c in protected]
        outside = sorted((c for c in range(self.classes) if c not in protected), key=lambda c: -cosines[c])
        negatives = outside[: self.negatives]
        weight = (posterior[label] - self.tau) / (1 - self.tau) if posterior[label] >= self.tau else 0.0
        margin = None
        if negatives:
            positive = weigh_log_sum([logits[c] for c in protected], alpha)
            margin = positive - weigh_log_sum([logits[c] for c in negatives], [1 / len(negatives)] * len(negatives))
        else:
            weight = 0.0
        # How far the nearest yes-or-no decision is from its border: rounding must not be able to turn one over.
        borders = [abs(posterior[label] - self.tau)]
        ranked = sorted(cosines, reverse=True)
        borders.append(ranked[0] - ranked[1])
        if self.positives == "gap" and self.delta > 0:
            borders += [abs(s - cosines[label] + self.delta) for c, s in enumerate(cosines) if c != label]
        if len(outside) > len(negatives):
            borders.append(cosines[negatives[-1]] - cosines[outside[len(negatives)]])
        return Sample(label, protected, alpha, negatives, margin, weight, min(borders))

    def aim(self, samples: Sequence[Sample]) -> list[float]:
        """Step 5: add the batch to the mass, then read each sample's target margin without its own part."""
        for sample in samples:
            self.mass[sample.label] += sample.weight
        if not self.am:
            return [self.gamma0] * len(samples)
        targets = []
        for sample in samples:
            others = max(self.mass[sample.label] - sample.weight, 0.0)
            share = others / (sum(self.mass) - sample.weight + self.eps)
            base = self.gamma0 - self.beta * math.log(self.classes)
            targets.append(base - self.beta * math.log(share + self.eps))
        return targets

    def differentiate(
        self, rows: Sequence[Sequence[float]], samples: Sequence[Sample], targets: Sequence[float]
    ) -> Tensor:
        """The closed form: dL/do, dense [B, C], zero wherever a class is neither protected nor a hard negative."""
        total = sum(sample.weight for sample in samples) + self.eps
        gradient = torch.zeros(len(rows), self.classes, dtype=torch.float64)
        for i, (row, sample, target) in enumerate(zip(rows, samples, targets, strict=True)):
            if sample.margin is None:
                continue
            pressure = squash(target - sample.margin) * sample.weight / total
            top = row[sample.label]
            lift = [a * math.exp(row[c] - top) for c, a in zip(sample.protected, sample.alpha, strict=True)]
            for c, part in zip(sample.protected, lift, strict=True):
                gradient[i, c] = -pressure * part / sum(lift)
            for c, part in zip(sample.negatives, softmax([row[c] for c in sample.negatives]), strict=True):
                gradient[i, c] = pressure * part
        return gradient

    def lose(self, logits: Tensor, samples: Sequence[Sample], targets: Sequence[float]) -> Tensor:
        """Step 6 as an expression autograd can follow."""
        total = sum(sample.weight for sample in samples) + self.eps
        loss = torch.zeros((), dtype=torch.float64)
        for row, sample, target in zip(logits, samples, targets, strict=True):
            if sample.margin is None:
                continue
            top = row.detach().max()
            positive = sum(a * torch.exp(row[c] - top) for c, a in zip(sample.protected, sample.alpha, strict=True))
            negative = sum(torch.exp(row[c] - top) for c in sample.negatives) / len(sample.negatives)
            margin = torch.log(positive) - torch.log(negative)
            loss = loss + sample.weight * torch.log1p(torch.exp(target - margin)) / total
        return loss

    def update(self, gradients: Sequence[Tensor]) -> None:
        """Adam of Kingma and Ba, bias-corrected, with 1e-8 added after the root; paced by images, a share of a step."""
        share = self.waiting / 64 if self.pace == "image" else 1.0
        self.steps += self.waiting if self.pace == "image" else 1
        self.waiting = 0
        self.time += share
        one, two = 0.9**share, 0.999**share
        fresh = []
        for k, (value, gradient) in enumerate(zip(self.parameters, gradients, strict=True)):
            self.first[k] = one * self.first[k] + (1 - one) * gradient
            self.second[k] = two * self.second[k] + (1 - two) * gradient**2
            first = self.first[k] / (1 - 0.9**self.time)
            second = self.second[k] / (1 - 0.999**self.time)
            fresh.append(value - self.lr * math.sqrt(share) * first / (torch.sqrt(second) + 1e-8))
        self.norms = list(zip(fresh[::2], fresh[1::2], strict=True))

    def step(self, images: Tensor) -> Tensor:
        """One batch: corrected logits [B, C]. What happened is appended to ``history``."""
        leaves: Norms = [(w.clone().requires_grad_(), b.clone().requires_grad_()) for w, b in self.norms]
        self.waiting = min(self.waiting + len(images), max(64, len(images)))
        logits = self.score(images, leaves)
        rows = logits.tolist()
        event: dict[str, Any] = {"stepped": False, "loss": 0.0, "slack": math.inf, "gradients": []}
        if self.pmr:
            teachers = self.pick(len(images))
            rows = [rows[k] for k in teachers]
            samples = [self.examine(row) for row in rows]
            event["samples"] = samples
            event["slack"] = min(sample.slack for sample in samples)
            if sum(sample.weight for sample in samples) > 0:
                targets = self.aim(samples)
                flat = [t for norm in leaves for t in norm]
                if self.step_by_autograd:
                    gradients = torch.autograd.grad(self.lose(logits[teachers], samples, targets), flat)
                else:
                    slopes = self.differentiate(rows, samples, targets)
                    gradients = torch.autograd.grad(logits[teachers], flat, slopes)
                self.update(gradients)
                event |= {"stepped": True, "gradients": gradients, "loss": self.average(samples, targets)}
        rows = self.score(images, self.norms).tolist() if self.emit == "after" else logits.tolist()
        emitted = [[value + offset for value, offset in zip(row, self.bias, strict=True)] for row in rows]
        if self.bc:
            self.correct(emitted)
        for row in emitted:
            self.predicted[max(range(self.classes), key=lambda c: row[c])] += 1
        self.history.append(event)
        return torch.tensor(emitted, dtype=torch.float64)

    def average(self, samples: Sequence[Sample], targets: Sequence[float]) -> float:
        """Step 6 in plain numbers."""
        total = sum(sample.weight for sample in samples) + self.eps
        parts = zip(samples, targets, strict=True)
        return sum(s.weight * soften(g - s.margin) for s, g in parts if s.margin is not None) / total

    def correct(self, emitted: Sequence[Sequence[float]]) -> None:
        """Step 9: the bias that the next batch will get."""
        mean = [0.0] * self.classes
        for row in emitted:
            for c, probability in enumerate(softmax(row)):
                mean[c] += probability / len(emitted)
        before, self.images = self.images, self.images + len(emitted)
        self.drive(mean, *self.keep_pace(before, len(emitted)))

    def keep_pace(self, before: int, count: int) -> tuple[float, float]:
        """The memory of a batch after ``before`` images, and its part of a usual step."""
        if self.pace == "batch":
            return self.mu, 1.0
        memory = 1.0  # image by image: the plain mean of the first 64, then an exponential one
        for number in range(before + 1, before + count + 1):
            memory *= (number - 1) / number if number <= 64 else self.mu ** (1 / 64)
        return memory, count / 64

    def drive(self, mean: Sequence[float], memory: float, part: float = 1.0) -> None:
        """The running prediction, and the bias that drives it to the shares."""
        if self.running is None:
            self.running = list(mean)
        else:
            self.running = [memory * old + (1 - memory) * new for old, new in zip(self.running, mean, strict=True)]
        excess = [math.log((u + self.eps) / s) for u, s in zip(self.running, self.shares, strict=True)]
        moved = [b - self.eta * part * e for b, e in zip(self.bias, excess, strict=True)]
        centre = sum(moved) / self.classes
        self.bias = [min(max(b - centre, -self.clip), self.clip) for b in moved]
