"""BATCLIP and BITTA once more, slowly: loops over samples and classes, torch.optim on the towers' own LayerNorms.

Two small towers in float64. The reference owns a copy of them, lets plain autograd build one
graph over images and all prompts, and shares no loss, bank or optimiser with the library.
"""

from __future__ import annotations

import copy
import dataclasses
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

import lmr
from lmr.core.text import TextSide
from lmr.models.embedded import EmbeddedConfig, EmbeddedTowers

CONFIG = EmbeddedConfig(
    resolution=8,
    patch=4,
    width=12,
    depth=2,
    heads=2,
    text_width=8,
    text_depth=2,
    text_heads=2,
    context=16,
    vocabulary=30,
    features=10,
)
SCALE = 60.0
SEED = 10  # a pair of towers that predicts every class and is certain of some images only


@dataclasses.dataclass
class Problem:
    """Two towers, one prompt per class (ids [C, L], ends [C]) and the classifier made of them."""

    model: EmbeddedTowers
    tokens: Tensor
    end: Tensor
    scale: float = SCALE

    @property
    def text(self) -> TextSide:
        tower = self.model.text
        return TextSide(tower, lambda tower, part: tower(self.tokens[part], self.end[part]), len(self.tokens))

    @property
    def classifier(self) -> lmr.ZeroShot:
        with torch.no_grad():
            prototypes = self.model.text(self.tokens, self.end)
        return lmr.ZeroShot(self.model.image, prototypes, self.scale, text=self.text)


def make_problem(
    classes: int = 7, seed: int = SEED, dtype: torch.dtype = torch.float64, scale: float = SCALE
) -> Problem:
    """Towers whose texts and images point in different directions and whose norms are not the identity."""
    torch.manual_seed(seed)
    model = EmbeddedTowers(CONFIG).double()
    with torch.no_grad():
        model.text.words.weight.mul_(50)
        for block in model.image.blocks:
            block.qkv.weight.mul_(4)
            block.out.weight.mul_(4)
        for norm in list_norms(model):
            norm.weight.add_(0.3 * torch.randn_like(norm.weight))
            norm.bias.add_(0.3 * torch.randn_like(norm.bias))
    tokens, end = make_prompts(classes)
    return Problem(model.to(dtype), tokens, end, scale)


def make_prompts(classes: int, longest: int = 9) -> tuple[Tensor, Tensor]:
    """Random words (ids 3 and up) of different number between a start (1) and an end (2), padded with 0."""
    lengths = torch.randint(4, longest + 1, (classes,))
    lengths[0] = longest
    tokens = torch.zeros(classes, longest, dtype=torch.int64)
    for row, length in zip(tokens, lengths.tolist(), strict=True):
        row[:length] = torch.randint(3, CONFIG.vocabulary, (length,))
        row[0], row[length - 1] = 1, 2
    return tokens, lengths - 1


def make_images(count: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 8, 8, generator=generator, dtype=torch.float64).to(dtype)


def list_norms(model: nn.Module) -> list[nn.LayerNorm]:
    return [module for module in model.modules() if isinstance(module, nn.LayerNorm)]


def dot(a: Tensor, b: Tensor) -> Tensor:
    return sum((x * y for x, y in zip(a, b, strict=True)), torch.zeros((), dtype=a.dtype))


def unit(vector: Tensor) -> Tensor:
    return vector / torch.sqrt(dot(vector, vector))


def measure_entropy(logits: Tensor) -> Tensor:
    """Of one sample: minus the sum of p log p."""
    shifted = [value - max(logits.tolist()) for value in logits]
    total = sum(torch.exp(value) for value in shifted)
    return -sum(torch.exp(value) / total * (value - torch.log(total)) for value in shifted)


def find_label(logits: Tensor) -> int:
    values = logits.tolist()
    return values.index(max(values))


def measure_objective(features: list[Tensor], prototypes: Tensor, logits: list[Tensor]) -> tuple[Tensor, ...]:
    """L_ent, L_pm and L_sp of BATCLIP."""
    entropy = sum(measure_entropy(row) for row in logits) / len(logits)
    members: dict[int, list[Tensor]] = {}
    for feature, row in zip(features, logits, strict=True):
        members.setdefault(find_label(row), []).append(feature)
    means = {label: sum(group) / len(group) for label, group in members.items()}
    matching = sum(dot(mean, prototypes[label]) for label, mean in means.items()) / len(means)
    apart = torch.zeros((), dtype=torch.float64)
    for one in means:
        for other in means:
            if one != other:
                apart = apart + 1 - dot(unit(means[one]), unit(means[other]))
    return entropy, matching, apart


class Reference:
    """What both methods share: copies of the towers and torch's own optimiser on their norms."""

    def __init__(self, problem: Problem, lr: float, optimizer: str, weight_decay: float) -> None:
        self.problem = copy.deepcopy(problem)
        self.model = self.problem.model.double().requires_grad_(False)
        norms = [*list_norms(self.model.image), *list_norms(self.model.text)]
        self.numbers = [number.requires_grad_() for norm in norms for number in (norm.weight, norm.bias)]
        self.start = self.flat
        if optimizer == "sgd":
            self.optim: Any = torch.optim.SGD(self.numbers, lr, momentum=0.9, nesterov=True, weight_decay=weight_decay)
        else:
            kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
            self.optim = kind(self.numbers, lr, weight_decay=weight_decay)

    @property
    def flat(self) -> Tensor:
        return torch.cat([number.detach().clone() for number in self.numbers])

    @property
    def drift(self) -> float:
        return ((self.flat - self.start).square().sum() / self.start.square().sum()).sqrt().item()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Raw image features, unit prototypes, logits: everything in one graph."""
        raw = self.model.image(images.double())
        text = self.model.text(self.problem.tokens, self.problem.end)
        prototypes = torch.stack([unit(row) for row in text])
        logits = torch.stack([torch.stack([dot(unit(v), t) for t in prototypes]) for v in raw])
        return raw, prototypes, self.problem.scale * logits

    def answer(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return self.forward(images)[2]

    def descend(self, loss: Tensor) -> None:
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()


class BatclipReference(Reference):
    """One step on L_ent - L_pm - L_sp of the whole batch; the logits before it."""

    def __init__(
        self, problem: Problem, lr: float = 1e-3, optimizer: str = "adamw", weight_decay: float = 0.01
    ) -> None:
        super().__init__(problem, lr, optimizer, weight_decay)

    def step(self, images: Tensor) -> tuple[Tensor, dict[str, Any]]:
        raw, prototypes, logits = self.forward(images)
        entropy, matching, apart = measure_objective(list(raw), prototypes, list(logits))
        loss = entropy - matching - apart
        self.parts = (entropy.item(), matching.item(), apart.item())
        self.descend(loss)
        present = len({find_label(row) for row in logits})
        info = {"loss": loss.item(), "present": present, "stepped": True, "drift": self.drift}
        return logits.detach(), info


class BittaReference(Reference):
    """Selection by entropy with the shares of the first batch, learning on Low, unlearning on High."""

    def __init__(
        self,
        problem: Problem,
        lr: float = 1e-3,
        optimizer: str = "adamw",
        weight_decay: float = 0.01,
        alpha: float = -3.8e-4,
        beta: float = 0.83,
        high: float = 0.1,
        unlearn: float = 1.2,
        high_mode: str = "range",
        features: str = "unit",
        emit: str = "after",
    ) -> None:
        super().__init__(problem, lr, optimizer, weight_decay)
        self.alpha, self.beta, self.high, self.unlearn = alpha, beta, high, unlearn
        self.high_mode, self.features, self.emit = high_mode, features, emit
        self.share_low: Fraction | None = None
        self.share_not_high: Fraction | None = None
        self.history: list[tuple[list[int], list[int]]] = []

    def step(self, images: Tensor) -> tuple[Tensor, dict[str, Any]]:
        raw, prototypes, logits = self.forward(images)
        entropies = [measure_entropy(row) for row in logits]
        low, high = self.select([value.item() for value in entropies])
        self.history.append((low, high))
        used = [unit(raw[i]) if self.features == "unit" else raw[i] for i in low]
        entropy, matching, apart = measure_objective(used, prototypes, [logits[i] for i in low])
        uncertain = sum(entropies[i] for i in high) / len(high)
        weight = entropy.item() / uncertain.item() if uncertain.item() > 0 else 0.0
        loss = entropy - matching - apart - self.unlearn * weight * uncertain
        self.descend(loss)
        info = {"loss": loss.item(), "low": len(low), "high": len(high), "stepped": True, "drift": self.drift}
        return (self.answer(images) if self.emit == "after" else logits.detach()), info

    def select(self, entropies: list[float]) -> tuple[list[int], list[int]]:
        size, largest = len(entropies), max(entropies)
        if self.share_low is None or self.share_not_high is None:
            bound = largest * (self.alpha * len(self.problem.tokens) + self.beta)
            self.share_low = Fraction(sum(value <= bound for value in entropies), size)
            self.share_not_high = Fraction(sum(value <= (1 - self.high) * largest for value in entropies), size)
        ranking = sorted(range(size), key=lambda i: entropies[i])
        share = 1 - self.share_not_high
        if self.high_mode == "top_fraction":
            share = Fraction(str(self.high))
        count_low, count_high = int(size * self.share_low), int(size * share)
        return ranking[: count_low or size], ranking[::-1][: count_high or size]
