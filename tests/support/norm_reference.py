"""What the references of methods that adapt norms share: a problem, and a tower whose norms are plain leaves.

Nothing of the library is in it but ``create`` and ``ZeroShot``, which make what is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lmr_reference as book
import torch
from torch import Tensor

import lmr

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


def make_method(spec: str, **more: Any) -> lmr.Method:
    tower, prototypes, _ = make_problem()
    return lmr.create(spec, lmr.ZeroShot(tower, prototypes, SCALE, input_shape=(3, 6), **more))


class NormReference:
    """A tower written out, its norms as leaves, and the frozen prototypes."""

    def __init__(self) -> None:
        tower, prototypes, _ = make_problem()
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
        return SCALE * self.features(images, leaves) @ self.prototypes.T

    def set_leaves(self, values: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for leaf, value in zip(self.leaves, values, strict=True):
                leaf.copy_(value)


def measure_entropies(logits: Tensor) -> Tensor:
    """[B], from probabilities and their logarithms."""
    p = torch.exp(logits - logits.max(1, keepdim=True).values)
    p = p / p.sum(1, keepdim=True)
    return -(p * torch.log(p.clamp(min=1e-300))).sum(1)


def compare_norms(method: lmr.Method, reference: NormReference) -> None:
    torch.testing.assert_close(method.state["norms"][0], reference.flat, atol=1e-8, rtol=0)
