"""What the references of methods that adapt norms share: a problem, and a tower whose norms are plain leaves.

Nothing of the library is in it but ``create`` and ``ZeroShot``, which make what is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import lmr
import lmr_reference as book

CLASSES = 12
SCALE = 100.0


def make_problem(seed: int = 11, count: int = 59) -> tuple[Any, Tensor, Tensor]:
    """A tower, prototypes [C, 10] in groups of near ones, and images, clear and doubtful, in float64."""
    torch.manual_seed(seed)
    tower = book.Tower().double()
    anchors = torch.randn(3, 3, 6).double().repeat_interleave(4, 0) + 0.1 * torch.randn(CLASSES, 3, 6).double()
    noise = torch.tensor([0.1, 0.5, 1.5])[torch.randint(3, (count, 1, 1))]
    images = anchors[torch.randint(CLASSES, (count,))] + noise * torch.randn(count, 3, 6)
    with torch.no_grad():
        return tower, tower(anchors), images


def make_method(spec: str, scale: float = SCALE, **more: Any) -> lmr.Method:
    tower, prototypes, _ = make_problem()
    return lmr.create(spec, lmr.ZeroShot(tower, prototypes, scale, input_shape=(3, 6), **more))


class NormReference:
    """A tower written out, its norms as leaves, and the frozen prototypes."""

    def __init__(self, scale: float = SCALE) -> None:
        tower, prototypes, _ = make_problem()
        self.scale = scale
        self.encode = book.write_out(tower)
        self.leaves = [t.detach().double().clone().requires_grad_() for norm in tower.norms for t in norm]
        self.start = [leaf.detach().clone() for leaf in self.leaves]
        self.prototypes = prototypes / prototypes.norm(dim=1, keepdim=True)

    @property
    def flat(self) -> Tensor:
        return torch.cat([leaf.detach() for leaf in self.leaves])

    @property
    def drift(self) -> float:
        start = torch.cat(self.start)
        return float((self.flat - start).norm() / start.norm())

    def features(self, images: Tensor, leaves: Sequence[Tensor] | None = None) -> Tensor:
        """Unit features [B, 10] with the leaves, or with others."""
        given = self.leaves if leaves is None else leaves
        raw = self.encode(images.double(), list(zip(given[::2], given[1::2], strict=True)))
        return raw / raw.norm(dim=1, keepdim=True)

    def score(self, images: Tensor, leaves: Sequence[Tensor] | None = None) -> Tensor:
        return self.scale * self.features(images, leaves) @ self.prototypes.T

    def set_leaves(self, values: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for leaf, value in zip(self.leaves, values, strict=True):
                leaf.copy_(value)


def make_optimizer(
    leaves: Sequence[Tensor], name: str, lr: float, weight_decay: float = 0.0, nesterov: bool = True
) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(leaves, lr, momentum=0.9, nesterov=nesterov, weight_decay=weight_decay)
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name](leaves, lr, weight_decay=weight_decay)


def measure_entropies(logits: Tensor) -> Tensor:
    """[B], from probabilities and their logarithms."""
    p = torch.exp(logits - logits.max(1, keepdim=True).values)
    p = p / p.sum(1, keepdim=True)
    return -(p * torch.log(p.clamp(min=1e-300))).sum(1)


def compare_norms(method: lmr.Method, reference: NormReference) -> None:
    torch.testing.assert_close(method.state["norms"][0], reference.flat, atol=1e-8, rtol=0)


NAMES = tuple(f"thing_{c}" for c in range(CLASSES))


def read_words(texts: Sequence[str]) -> Tensor:
    """A feature [10] of every text that depends on all its characters and their order; not of unit length."""
    rows = []
    for text in texts:
        total = torch.zeros(10, dtype=torch.float64)
        for place, letter in enumerate(text):
            total += torch.sin(torch.arange(1, 11, dtype=torch.float64) * (ord(letter) * 0.37 + 1.3 * place))
        rows.append(total)
    return torch.stack(rows)


def make_reader() -> lmr.TextReader:
    return lmr.TextReader(torch.nn.Identity(), read_words)


def match_loss(features: Tensor, captions: Tensor, scale: float) -> Tensor:
    """The transposed cross-entropy of WATT and CLIPArTT, element by element."""
    count = len(features)
    likeness = [
        [(features[i] @ features[j] + captions[i] @ captions[j]) / 2 / 0.01 for j in range(count)] for i in range(count)
    ]
    target = [torch.stack(row).softmax(0) for row in likeness]
    total = torch.zeros((), dtype=torch.float64)
    for i in range(count):
        logits = scale * torch.stack([features[i] @ captions[j] for j in range(count)])
        logs = logits - torch.logsumexp(logits, 0)
        for j in range(count):
            total = total - target[j][i] * logs[j]
    return total / count
